"""Lets transformers' tests know the heads of models that are not part of transformers.

The tests look a class up by its name in transformers' own tables ("is this a causal language model?"). A class that is
in none of them passes without having been tested.
"""

from collections import OrderedDict
from types import ModuleType

from .family import Family

TABLES = {
    "AutoModel": "MODEL_MAPPING_NAMES",
    "AutoModelForCausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForSeq2SeqLM": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForMaskedLM": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "AutoModelForSequenceClassification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "AutoModelForTokenClassification": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "AutoModelForQuestionAnswering": "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
    "AutoModelForImageClassification": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "AutoModelForMaskedImageModeling": "MODEL_FOR_MASKED_IMAGE_MODELING_MAPPING_NAMES",
}


def extend_name_tables(tests: ModuleType, families: list[Family]) -> None:
    """Add the families' classes to the tables that `tests` uses, which become copies of transformers' own."""
    for table in TABLES.values():
        if hasattr(tests, table):
            setattr(tests, table, OrderedDict(getattr(tests, table)))
    for family in families:
        for auto_class, model_class in family.auto_classes.items():
            names = getattr(tests, TABLES[auto_class], None)
            if names is not None:
                add_name(names, family.config().model_type, model_class.__name__)


def add_name(names: dict[str, str | tuple[str, ...]], model_type: str, class_name: str) -> None:
    """Add one class to a table, where one model type may have one name or several."""
    known = names.get(model_type, ())
    known = (known,) if isinstance(known, str) else tuple(known)
    if class_name not in known:
        known = (*known, class_name)
    names[model_type] = known[0] if len(known) == 1 else known
