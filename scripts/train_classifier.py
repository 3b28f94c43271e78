"""Train a text classifier."""

from vanillaformer.scripts import training_program

train, main = training_program("train-classifier")

if __name__ == "__main__":
    main()
