"""Train a model of images."""

from vanillaformer.scripts import training_program
from vanillaformer.training.tasks.images import Images

train, main = training_program(Images)

if __name__ == "__main__":
    main()
