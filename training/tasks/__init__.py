"""The tasks of training, one file each: arguments, defaults, rows, batches, models and scores of one program."""

from importlib import import_module

from .base import TrainingTask

PROGRAMS = {
    "train-translation": ("translation", "Translation"),
    "train-language-model": ("language_model", "LanguageModel"),
    "train-classifier": ("classification", "Classification"),
    "train-token-classifier": ("token_classification", "TokenClassification"),
    "train-image-classifier": ("images", "Images"),
}
"""File and class of the task by the program that trains for it; a program imports only its own."""


def task_of(program: str) -> type[TrainingTask]:
    module, name = PROGRAMS[program]
    return getattr(import_module(f".{module}", __name__), name)
