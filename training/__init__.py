"""Training: tasks, the trainer, metrics, run folders, reports."""
