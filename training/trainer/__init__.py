"""Trainers, and what is plugged into them: losses, optimizers, averages, guards, pushing."""
