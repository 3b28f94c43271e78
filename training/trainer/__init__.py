"""The trainers and their parts: batches, loss terms, optimizers, budgets, callbacks, checkpoints."""
