"""Train a classifier of texts."""

from functools import partial

from vanillaformer.console.program import program
from vanillaformer.training.run import train as train_task
from vanillaformer.training.tasks.classification import Classification

train = partial(train_task, Classification)
main = program(train)

if __name__ == "__main__":
    main()
