"""Train a model of images."""

from functools import partial

from vanillaformer.console.program import program
from vanillaformer.training.run import train as train_task
from vanillaformer.training.tasks.images import Images

train = partial(train_task, Images)
main = program(train)

if __name__ == "__main__":
    main()
