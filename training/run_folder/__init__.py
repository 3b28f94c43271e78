"""The folder of a training run: its files, record, checkpoints and lock."""
