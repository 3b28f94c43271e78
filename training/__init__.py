"""What the training scripts share: arguments, data, preprocessing, metrics."""
