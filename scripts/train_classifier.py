"""Train a classifier of texts."""

from vanillaformer.scripts import training_program
from vanillaformer.training.tasks.classification import Classification

train, main = training_program(Classification)

if __name__ == "__main__":
    main()
