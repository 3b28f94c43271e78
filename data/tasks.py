"""The tasks that models are trained for; models, scores, cards and inference read these entries."""

from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Literal

import transformers
import yaml

from vanillaformer.tokenization.options import MODEL_KINDS

Denoising = Literal["span", "infill", "denoise", "prefix", "ul2"]  # the tasks that pre-train an encoder-decoder
Objective = Literal["causal", "masked", "mlm+nsp", Denoising]  # the tasks of language models
ImageObjective = Literal["image_classification", "masked_image"]  # the tasks of image encoders
TaskName = Literal[
    "translation", Objective, "classification", "multi_label_classification", "regression", "token_classification",
    ImageObjective,
]  # fmt: skip
Prediction = Literal[
    "texts", "tokens", "next_tokens", "sentence_pairs", "classes", "labels", "values", "tags", "pixels"
]
"""Kinds of predictions, which decide the scores."""

MASK = "[MASK]"
MASK_TOKEN = "<mask>"  # of an encoder-decoder
IOBES = {"L-": "E-", "U-": "S-"}
"""Prefixes of BILOU tags, and their names in IOBES, which seqeval reads."""
KINDS: dict[str, str] = {**MODEL_KINDS, "vanilla_image_encoder": "image_encoder"}
"""The kinds of model by `model_type`; those of texts have tokenizers."""

NOT_STATED = "not stated"


@dataclass
class Source:
    """Description of data, for cards and messages."""

    name: str
    identifier: str = "local"  # the name as one word, or the id on the Hub
    description: str = ""
    license: str = NOT_STATED
    languages: list[str] = field(default_factory=list)  # their codes, if known
    on_hub: bool = False
    limits: str = ""  # what a model trained on nothing else cannot do
    load: Any = None  # the function that creates it, if it is embedded


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task."""

    program: str  # the program that trains for it, a subcommand of `vanillaformer`
    auto_class: Any  # the class that loads its models
    architectures: tuple[str, ...]  # endings of the names of its model classes, ours and others
    model_kinds: tuple[str, ...]  # the kinds of model that can be trained for it
    preset: str  # the default preset of a new model
    generates: bool = False  # whether its models generate text
    predicts: tuple[Prediction, ...]  # what its models predict, which decides their scores
    columns: tuple[str, ...]  # the columns of its data
    # The option of `generate` for its inputs; empty if `generate` does not use its models
    input_option: str = "text"
    # The option with the length of a row in tokens, if it has one; of a pair, that of the target
    length_option: str = ""
    pipeline_tag: str  # its name on the Hub
    does: str  # what a model does, for its card: "This model ..."
    limits: str  # what models of this task cannot be relied on for
    example: str  # an input, for data of any kind
    embedded_example: str = ""  # an input for models of the embedded data; empty where a row of it is one
    use: str  # Python code that uses `tokenizer` and `model`, formatted with `example` and `decoder`
    # The call of transformers' pipeline `pipe`, formatted with `example`; empty where there is no pipeline
    pipe: str = ""

    @property
    def whole_texts(self) -> bool:
        """Return whether a row is a text, or a pair of texts, and not a block of running text."""
        return self.length_option != "block_size"

    @property
    def reads_images(self) -> bool:
        return "image" in self.columns


def seqeval_tag(tag: str) -> str:
    """Return a tag of a token as seqeval reads it."""
    return IOBES.get(tag[:2], tag[:2]) + tag[2:]


def read_tasks() -> dict[TaskName, Task]:
    """Return the tasks of `tasks.yaml`."""
    text = (files(__package__) / "tasks.yaml").read_text(encoding="utf-8")
    tasks: dict[TaskName, Task] = {}
    for name, entry in yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)).items():
        if not name.startswith("."):  # shared fields
            fields: dict[str, Any] = {
                key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
            }
            fields["auto_class"] = getattr(transformers, fields["auto_class"])
            tasks[name] = Task(**fields)
    return tasks


TASKS = read_tasks()
