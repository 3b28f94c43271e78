"""How a config and its tensors correspond to those of a native architecture, in both directions."""
