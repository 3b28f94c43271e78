"""Train a classifier of tokens."""

from functools import partial

from vanillaformer.console.program import program
from vanillaformer.training.run import train as train_task
from vanillaformer.training.tasks.token_classification import TokenClassification

train = partial(train_task, TokenClassification)
main = program(train)

if __name__ == "__main__":
    main()
