"""Train a translator."""

from vanillaformer.scripts import training_program

train, main = training_program("train-translation")

if __name__ == "__main__":
    main()
