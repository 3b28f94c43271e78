"""Train a classifier of tokens."""

from vanillaformer.scripts import training_program
from vanillaformer.training.tasks.token_classification import TokenClassification

train, main = training_program(TokenClassification)

if __name__ == "__main__":
    main()
