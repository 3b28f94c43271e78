"""Forecasts for a larger model from smaller ones: its best learning rate, and its loss."""
