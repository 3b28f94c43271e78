"""The facts about a run that its model card states: its record and settings, the source of its data, an example.

An example is an input to try a model with, for the card, which is public, or for the terminal.
"""

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from babel import Locale, UnknownLocaleError
from datasets import Dataset
from huggingface_hub import metadata_load, try_to_load_from_cache

from vanillaformer.configuration import VanillaConfig
from vanillaformer.data.arguments import DataArguments
from vanillaformer.data.tasks import MASK, NOT_STATED, TASKS, Source, TaskName
from vanillaformer.hub.file_names import OFF, PICTURES, SWITCH
from vanillaformer.tokenization.passages import PAIR, as_pair

from ..hardware import hardware
from ..metrics.scores import PREFIXES, SCORES
from ..run_folder.files import SAMPLES
from ..run_folder.run import BY_DATA, Run
from ..trainer.trainer import RunTrainer

GREETING = "Hello, how are you?"  # for models of dialogues
WIDTH = 100  # maximum number of characters of an example, of running text fewer
SHOWN = 3  # maximum number of samples shown
LOOKED_THROUGH = 100  # rows that an example is chosen from


@dataclass
class CardFacts:
    """The facts about a run."""

    task: TaskName
    config: Any
    name: str
    place: str  # where the model is: a folder or a Hub id
    command: str
    example: str
    source: Source
    details: Mapping[str, Any]  # those of the record (`run.json`), with `training_facts` as `training`
    choices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # settings by group of arguments
    metrics: Mapping[str, float] = field(default_factory=dict)  # named as the Trainer names them (`eval_bleu`)
    pictures: tuple[str, ...] = ()  # names of those next to the card
    samples: tuple[str, ...] = ()
    license: str | None = None
    has_code: bool = True  # whether the model's code is stored with it

    def choice(self, group: str, name: str, default: Any = None) -> Any:
        """Return a setting, or `default` if it is unknown or None."""
        value = self.choices.get(group, {}).get(name)
        return default if value is None else value

    @property
    def training(self) -> Mapping[str, Any]:
        return self.details["training"]

    @property
    def data(self) -> Mapping[str, Mapping[str, Any]]:
        return self.details.get("data", {})

    @property
    def rows(self) -> Mapping[str, int]:
        return self.details.get("rows", {})

    @property
    def classifies(self) -> bool:
        """Return whether the model has classes, labels, tags or a number, not a language model's output layer."""
        return not {"classes", "labels", "values", "tags"}.isdisjoint(TASKS[self.task].predicts)

    @property
    def chats(self) -> bool:
        """Return whether the model answers in dialogues."""
        return self.choice("data", "turns_column") is not None

    @property
    def is_ours(self) -> bool:
        """Return whether the model is one of this package, not a native one that training began with."""
        return isinstance(self.config, VanillaConfig)

    @property
    def model_class(self) -> str:
        """The class that the model is saved as; in training a native model is one of ours."""
        trained = self.training["model_class"]
        return trained if self.is_ours else next(iter(self.config.architectures or [trained]))

    @property
    def started_from(self) -> str | None:
        return self.choice("model", "model_name_or_path")

    @property
    def scores(self) -> dict[str, float]:
        """The metrics that say how good the model is."""
        known = {f"{prefix}_{name}" for prefix in PREFIXES.values() for name in SCORES}
        return {key: value for key, value in self.metrics.items() if key in known}

    @property
    def train_tokens(self) -> int | None:
        """Tokens of the training data, source and target together; None of a stream, which has no end."""
        stats = self.data.get("train", {})
        means = [value for name, value in stats.items() if name.endswith("mean length")]
        return round(stats["rows"] * sum(means)) if means and "rows" in stats else None

    @property
    def epochs(self) -> float | None:
        """Passes over the data, if it has an end."""
        return None if "sampled rows" in self.data.get("train", {}) else self.training["epochs"]


def run_facts(
    run: Run, task: TaskName, training_args: Any, data_args: DataArguments, *, config: Any, example: str
) -> CardFacts:
    """Return the facts about a finished run and its model."""
    repo = run.details["card"]["repository"]
    choices = {name: dict(run.settings.get(name, {})) for name in ("model", "data", "tokenizer", "training")}
    choices["training"] = training_args.to_dict() | choices["training"]
    chosen = {option: value for option, value, _ in run.details.get("defaults", ())}
    rows = None if training_args.tokens_per_batch else training_args.step_rows
    others = {"training": {**training_args.to_dict(), "rows_per_step": rows}, "data": vars(data_args)}
    for group, values in choices.items():  # a rule for the data may leave an option at its default
        known = {**others.get(group, {}), **chosen}
        values |= {name: known[name] for name, value in values.items() if value == BY_DATA and name in known}
    choices["training"]["temperature"] = run.details.get("calibration", {}).get("temperature")
    if choices["model"].get("model_name_or_path") is None and choices["model"].get("preset") is None:
        choices["model"]["preset"] = TASKS[task].preset
    return CardFacts(
        task=task,
        config=config,
        name=repo.rpartition("/")[2] if repo else run.folder.resolve().name,
        place=repo or str(run.folder),
        command=run.command,
        example=example,
        source=data_source(data_args, task),
        details=run.details,
        choices=choices,
        metrics=run.metrics,
        pictures=tuple(name for name in PICTURES if (run.folder / name).exists()),
        samples=() if data_args.turns_column else tuple(each["prediction"] for each in read_samples(run.folder)),
        license=training_args.license,
        has_code=isinstance(config, VanillaConfig) and os.environ.get(SWITCH, "").lower() not in OFF,
    )


def training_facts(run: Run, trainer: RunTrainer) -> dict[str, Any]:
    """Return the facts that are known only after training, for the record and the card."""
    model: Any = trainer.model
    added = ("lora_", "original_module")  # low-rank adapters are merged into the model that is saved
    parameters = (value for name, value in model.named_parameters() if not any(word in name for word in added))
    return {
        "model_class": type(getattr(model, "get_base_model", lambda: model)()).__name__.removeprefix("FSDP"),
        "parameters": sum(parameter.numel() for parameter in parameters),
        "epochs": trainer.state.epoch,
        "resumed": run.checkpoint.name if run.checkpoint else None,
        "hardware": hardware(trainer.args.world_size, trainer.args.device),
        "separate_target": trainer.target_tokenizer is not None,
    }


def data_source(data_args: DataArguments, task: TaskName) -> Source:
    """Return what is known about the data; what the user says takes precedence."""
    if data_args.train_file is not None:
        names = [Path(name).name for name in data_args.train_file]
        source = Source(", ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} more files")
    elif data_args.dataset != "embedded":
        source = _hub_source(data_args.dataset, " ".join(filter(None, (data_args.dataset, data_args.dataset_config))))
    else:
        from vanillaformer.data.embedded import CORPORA  # which other data does not need

        source = CORPORA[task](data_args)
    source.license = data_args.data_license or source.license
    source.description = data_args.data_description or source.description
    return source


def _hub_source(identifier: str, name: str) -> Source:
    """Return what the card of a data set on the Hub says, if it has been downloaded with the data."""
    card = try_to_load_from_cache(identifier, "README.md", repo_type="dataset") if "/" in identifier else None
    try:
        metadata: dict[str, Any] = (metadata_load(Path(card)) or {}) if isinstance(card, str) else {}
    except (ValueError, yaml.YAMLError):  # a damaged card
        metadata = {}
    license, languages = (
        [str(entry) for entry in (value if isinstance(value, list) else [value]) if entry]
        for value in (metadata.get("license"), metadata.get("language"))
    )
    return Source(name, identifier, license=", ".join(license) or NOT_STATED, languages=languages, on_hub=True)


def language_name(code: str) -> str:
    """Return the English name of a language, or its code if it is unknown."""
    try:
        return Locale.parse(code.replace("-", "_")).english_name or code
    except (ValueError, UnknownLocaleError):
        return code


def example_row(rows: Dataset, column: str) -> str:
    """Return a typical short text of the data: of the texts in the first rows that are one short line, the median.

    If there are none, it is the first text that is not blank.
    """
    texts = [text.strip() for text in rows[:LOOKED_THROUGH][column] if text.strip()]
    short = sorted((text for text in texts if len(text) <= WIDTH and len(text.splitlines()) == 1), key=len)
    return short[len(short) // 2] if short else next(iter(texts), "")


def card_example(data_args: DataArguments, task: TaskName, row: str = "") -> str:
    """Return the example input in a model's card: never a row of the user's data, unless `--card_example` gives one.

    A row is used if the data is embedded. Raises ValueError if `--card_example` cannot be an input of such a model.
    """
    if data_args.card_example is not None:
        if not data_args.card_example.strip():
            raise ValueError("--card_example is empty")
        if MASK in TASKS[task].example and MASK not in data_args.card_example:
            raise ValueError(f"--card_example {data_args.card_example!r} needs a {MASK}, which the model fills in")
        return data_args.card_example
    if data_args.is_embedded and not TASKS[task].reads_images:
        return TASKS[task].embedded_example or row
    if data_args.text_pair_column is not None:
        return f"{TASKS[task].example}{PAIR}The second text of the pair."
    return TASKS[task].example if data_args.turns_column is None else GREETING


def terminal_example(data_args: DataArguments, task: TaskName, row: str = "") -> str | None:
    """Return the input in the command that a run prints at its end: the beginning of a row; None for a chat model."""
    if data_args.turns_column is not None:
        return None
    description = TASKS[task]
    if description.reads_images:
        return row or description.example
    if description.embedded_example and data_args.is_embedded:
        return description.embedded_example
    width = WIDTH if description.whole_texts else 40
    beginning = PAIR.join(first_words(side, width) for side in row.split(PAIR))
    if MASK in description.example:
        before, _, last = beginning.rpartition(" ")
        return f"{before} {MASK}" if before and last else description.example
    return beginning or description.example


def first_words(text: str, width: int) -> str:
    """Return the first words of a text in one line of at most `width` characters; a longer word is cut."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width + 1].rpartition(" ")[0] or line[:width]


def input_option(text: str, option: str = "text") -> str:
    """Return the option of `generate` with an input, as a shell reads it."""
    words = zip((option, f"{option}_pair"), text.split(PAIR))
    return " ".join(f"--{name}{'=' if side.startswith('-') else ' '}{shlex.quote(side)}" for name, side in words)


def read_samples(folder: Path) -> list[dict[str, str]]:
    """Return the samples of a run to show, with `prompt` and `prediction`: none blank, without control characters."""
    path = folder / SAMPLES
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    records = list(map(json.loads, lines))
    for record in records:
        shown = (each if each.isprintable() or each in "\n\t" else "\ufffd" for each in record["prediction"])
        record["prediction"] = "".join(shown).strip()
    return [record for record in records if record["prediction"]][:SHOWN]


def loading_code(facts: CardFacts, *, package: bool) -> str:
    """Return a program that loads a model and uses it once, with this package or with the code saved beside it."""
    from vanillaformer.console.drawing import templates  # with matplotlib, which training does not need

    prefix = (getattr(facts.config, "prefix", None) or "") if facts.task == "translation" else ""  # as `generate` adds
    task, example = TASKS[facts.task], as_pair(prefix + facts.example)
    template = templates("vanillaformer.training.report.card").get_template("loading.py.jinja")
    decoder = "target_tokenizer" if facts.training["separate_target"] else "tokenizer"
    pair = example if isinstance(example, str) else dict(zip(("text", "text_pair"), example))
    return template.render(
        facts=facts,
        task=task,
        package=package,
        trust="" if package or not facts.is_ours else ", trust_remote_code=True",
        use=task.use.format(example=example, decoder=decoder),
        call=task.pipe.format(example=pair),
        example=example,
    )
