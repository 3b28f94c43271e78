"""Train a token classifier."""

from vanillaformer.scripts import training_program

train, main = training_program("train-token-classifier")

if __name__ == "__main__":
    main()
