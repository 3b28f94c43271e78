"""The tasks of training, one file each: arguments, defaults, rows, batches, models and scores of one program."""

from .base import TrainingTask
from .classification import Classification
from .images import Images
from .language_model import LanguageModel
from .translation import Translation

PROGRAMS: dict[str, type[TrainingTask]] = {
    task.program: task for task in (Translation, LanguageModel, Classification, Images)
}
"""The tasks by the program that trains for them."""

__all__ = ["PROGRAMS", "Classification", "Images", "LanguageModel", "TrainingTask", "Translation"]
