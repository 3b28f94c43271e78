"""Train a translator."""

from functools import partial

from vanillaformer.console.program import program
from vanillaformer.training.run import train as train_task
from vanillaformer.training.tasks.translation import Translation

train = partial(train_task, Translation)
main = program(train)

if __name__ == "__main__":
    main()
