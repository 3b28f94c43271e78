"""Scores, predictions and pictures of a trained model."""
