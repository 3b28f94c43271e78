"""What smaller models say of a larger one: its best learning rate, and its loss."""
