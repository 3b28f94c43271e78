"""The command-line programs: thin mains on top of `vanillaformer.training`."""
