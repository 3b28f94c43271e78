"""Defaults that follow the data: which rules there are, and how their choices become those of a run."""
