"""From texts to rows of token ids, and from rows to batches."""
