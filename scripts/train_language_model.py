"""Train a language model."""

from functools import partial

from vanillaformer.console.program import program
from vanillaformer.training.run import train as train_task
from vanillaformer.training.tasks.language_model import LanguageModel

train = partial(train_task, LanguageModel)
main = program(train)

if __name__ == "__main__":
    main()
