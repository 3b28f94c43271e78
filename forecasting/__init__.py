"""The loss of a larger model, predicted from smaller ones."""
