"""The parts of a block: one file per axis, with the classes to choose from in a dictionary at its end."""
