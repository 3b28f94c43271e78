"""Train a language model."""

from vanillaformer.scripts import training_program
from vanillaformer.training.tasks.language_model import LanguageModel

train, main = training_program(LanguageModel)

if __name__ == "__main__":
    main()
