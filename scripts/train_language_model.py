"""Train a language model."""

from vanillaformer.scripts import training_program

train, main = training_program("train-language-model")

if __name__ == "__main__":
    main()
