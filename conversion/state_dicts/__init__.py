"""State dicts of models outside transformers."""
