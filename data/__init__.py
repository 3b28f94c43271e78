"""Data of a task, always with the same columns: embedded, from the Hub, or from local files."""
