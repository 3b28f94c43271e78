"""What the programs share that use a trained model."""
