"""Train an image model."""

from vanillaformer.scripts import training_program

train, main = training_program("train-image-classifier")

if __name__ == "__main__":
    main()
