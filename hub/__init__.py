"""Saved models, in folders and on the Hub: opening, checking and pushing them."""
