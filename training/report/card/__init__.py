"""Model cards of training runs."""
