"""Scores that need no network, and the functions that a Trainer calls."""
