"""Correspondence of a config and its tensors with those of a native architecture, in both directions."""
