"""Train a translator."""

from vanillaformer.scripts import training_program
from vanillaformer.training.tasks.translation import Translation

train, main = training_program(Translation)

if __name__ == "__main__":
    main()
