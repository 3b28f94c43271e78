"""What the sections of a model card say, prepared for the template `model_card.md.jinja`."""

import json
import shlex
from functools import partial
from typing import Any

from vanillaformer.configuration.options import POSITION_CHOICES
from vanillaformer.data.preprocessing.statistics import shortfalls
from vanillaformer.data.tasks import TASKS

from ...metrics.scores import label
from ..baselines import BASELINES
from ..calibration import accepted_in_words
from ..class_report import accuracy_intervals, class_rows
from ..confusion import NUMBERED, part_in_words
from .architecture import architecture, flops_per_token, short
from .citations import bibtex, cited_papers
from .facts import CardFacts, software
from .sources import language_name
from .techniques import techniques
from .usage import loading_code

# What stands in the table of the training, if it is set; the rest is in the command and in run.json.
SHOWN = (
    *("learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "adam_beta1", "adam_beta2"),
    *("adam_epsilon", "optim", "max_grad_norm", "tokens_per_batch", "rows_per_step", "seed", "data_seed"),
)
BUDGET_WORDS = {"max_time": "time budget", "max_tokens": "token budget", "max_flops": "FLOP budget"}
MAX_CLASS_NAMES = 12
CONFUSION = "confusion_matrix.png"
Table = list[tuple[str, ...]]
"""The heading and the rows."""


def card_variables(facts: CardFacts) -> dict[str, Any]:
    """Return what the template of the card is filled with."""
    config, choices, task = facts.config, facts.choices, TASKS[facts.task]
    length, source_length = trained_lengths(facts)
    training, data = choices.get("training", {}), choices.get("data", {})
    classes = part_in_words(len(config.id2label)) if facts.classifies and CONFUSION in facts.pictures else ""
    unknown = (value for name, value in facts.data.get("train", {}).items() if name.endswith("unknown tokens"))
    positions = POSITION_CHOICES[getattr(config, "position_embedding_type", "none")]
    parts: dict[str, Any] = {}
    if facts.is_ours:
        with_head = task.reads_images or not facts.classifies
        parts["flops"] = flops_per_token(config, length, source_length, head=with_head)
        parts["architecture"] = architecture(config, classifies=facts.classifies)
    return {
        "facts": facts,
        "task": task,
        "inputs": "images" if task.reads_images else "texts",
        "purpose": purpose(facts),
        "length": length,
        "source_length": source_length,
        "limit": config.max_position_embeddings if positions.has_table else None,
        "unknown_tokens": max(unknown, default=0),
        "tested": any(name.startswith("test_") for name in facts.scores),
        "code": partial(
            loading_code,
            facts.task,
            facts.place,
            facts.example,
            separate_target=facts.separate_target,
            ours=facts.is_ours,
            chat=facts.chats,
        ),
        "generate_options": shlex.join(
            ["--model", facts.place, *(["--chat"] if facts.chats else [f"--{task.input_option}", facts.example])]
        ),
        "results": result_table(facts),
        "baselines": {name: BASELINES[name].does for name in facts.baselines if name in BASELINES},
        "accepted": accepted_in_words(facts.calibration) if facts.calibration else "",
        "intervals": accuracy_intervals(facts.metrics, facts.rows) if facts.classifies else {},
        "class_rows": class_rows(facts.classes)[:NUMBERED],
        "cut_texts": cut_texts(facts),
        "classes_shown": classes,
        **parts,
        "config": stored_config(config),
        "languages": [language_name(code) for code in facts.source.languages],
        "data": data_table(facts),
        "tokenizer": facts.choice("tokenizer", "tokenizer_name_or_path") or facts.started_from,
        "vocabularies": vocabularies(facts),
        "techniques": techniques(training, data),
        "training": training_rows(facts),
        "settings": [(f"`{name}`", training[name]) for name in SHOWN if training.get(name) is not None],
        "bibtex": bibtex(cited_papers(facts)),
        "short": short,
        "count": "{:,}".format,
        "label": label,
    }


def purpose(facts: CardFacts) -> str:
    """Say what the model does: "This model ..."."""
    task, languages = TASKS[facts.task], [language_name(code) for code in facts.source.languages]
    if "texts" in task.predicts and len(languages) > 1:
        return f"translates from {languages[0]} to {languages[-1]}"
    if facts.classifies:
        names = [str(name) for name in facts.config.id2label.values()]
        listed = ", ".join(names[:MAX_CLASS_NAMES]) + (", ..." if len(names) > MAX_CLASS_NAMES else "")
        return task.does.format(count=len(names), names=listed)
    if facts.chats:
        backwards = facts.choice("data", "reverse_turns")
        return "finds what came before a turn of a dialogue" if backwards else "answers in a dialogue"
    return task.does


def trained_lengths(facts: CardFacts) -> tuple[int, int | None]:
    """Return the longest row of the training, and the longest source of an encoder-decoder; an image is one thing."""
    if TASKS[facts.task].reads_images:
        return 1, None
    option, limit = TASKS[facts.task].length_option, getattr(facts.config, "max_position_embeddings", 0)
    length = facts.choice("data", option, limit)
    return length, facts.choice("data", "max_source_length", length) if facts.config.is_encoder_decoder else None


def result_table(facts: CardFacts) -> Table:
    """Return the scores by split, each followed by those of the baselines; nothing if there are none."""
    names = dict.fromkeys(key.split("_", 1)[1] for key in facts.scores)
    splits = {"eval": "validation", "test": "test"}
    if not any(key.startswith("test_") for key in facts.scores):
        del splits["test"]
    models = {"": facts.scores, **{f" of the baseline ({name})": found for name, found in facts.baselines.items()}}
    rows = []
    for name in names:
        keys = [f"{split}_{name}" for split in splits]
        for model, found in models.items():
            if any(key in found for key in keys):
                cells = (f"{found[key]:.4g}" if key in found else "" for key in keys)
                rows.append((label(name) + model, *cells))
    return [("", *splits.values()), *rows] if rows else []


def cut_texts(facts: CardFacts) -> dict[str, list[str]]:
    """Say by split how many of the texts that are scored were cut."""
    if not TASKS[facts.task].whole_texts:
        return {}
    found = {split: shortfalls(facts.data.get(split, {})) for split in ("validation", "test")}
    return {split: words for split, words in found.items() if words}


def stored_config(config: Any) -> str:
    """Return the config as JSON, without what is as long as there are classes, or of no interest."""
    stored = {
        name: value
        for name, value in config.to_diff_dict().items()
        if name not in ("id2label", "label2id", "auto_map")
    }
    return json.dumps(stored, indent=2, ensure_ascii=False, default=str)


def data_table(facts: CardFacts) -> Table:
    """Return the statistics of the data by split, or where there are none the rows."""
    cells = {split: format_statistics(values) for split, values in facts.data.items()}
    cells = cells or {split: {"rows": f"{rows:,}"} for split, rows in facts.rows.items()}
    names = dict.fromkeys(name for values in cells.values() for name in values)
    return [("", *cells), *((name, *(values.get(name, "") for values in cells.values())) for name in names)]


def format_statistics(values: Any) -> dict[str, str]:
    """Return the statistics of a split that fit a table; zeros and what stands elsewhere are left out."""
    cells = {}
    for name, value in sorted(values.items(), key=lambda entry: "rows" not in entry[0]):  # rows first
        if "vocabulary" in name or name == "padding" or isinstance(value, list) or (not value and name != "rows"):
            continue
        share = name.endswith("unknown tokens")
        name += " in tokens" if name.endswith(("mean length", "longest")) else ""
        cells[name] = f"{value:.2%}" if share else f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
    return cells


def vocabularies(facts: CardFacts) -> list[tuple[str, int, int]]:
    """Return side, size and number of used tokens of each vocabulary."""
    known = facts.data.get("train", {})
    return [
        (side, size, known.get(f"{side}vocabulary used", size))
        for side in ("", "source ", "target ")
        if (size := known.get(f"{side}vocabulary"))
    ]


def training_rows(facts: CardFacts) -> dict[str, str]:
    """Return how long the training was, and on what it ran."""
    rows = {"steps": f"{facts.steps:,}" + (f" ({facts.epochs:.3g} epochs)" if facts.epochs else "")}
    read = "patches" if TASKS[facts.task].reads_images else "tokens"
    if facts.tokens_seen:
        rows[f"{read} seen"] = ("" if facts.consumed else "about ") + short(facts.tokens_seen)
    if facts.consumed:
        rows["FLOPs"] = f"{short(facts.consumed['flops'])}, matrix products of the training without padding"
    if teachers := facts.consumed.get("teachers"):
        ensemble = f"models it learned from: {short(teachers['tokens'])} tokens, {short(teachers['flops'])} FLOPs"
        rows["of these"] = ensemble
    for name, words in BUDGET_WORDS.items():
        if budget := facts.choice("training", name):
            rows[words] = format_duration(budget) if name == "max_time" else short(budget)
    seconds = facts.metrics.get("train_runtime")
    if seconds:
        rows["time"] = f"{format_duration(seconds)}, evaluation included"
        if facts.resumed:
            rows["time"] += f" (since {facts.resumed}, from which it resumed)"
        elif facts.tokens_seen:
            rows["time"] += f"; {short(facts.tokens_seen / seconds)} {read} per second"
    return {**rows, **facts.hardware, "software": software()}


def format_duration(seconds: float) -> str:
    """Return a duration in hours, minutes or seconds."""
    minutes, hours = seconds / 60, seconds / 3600
    return f"{hours:.1f} h" if hours >= 2 else f"{minutes:.1f} min" if minutes >= 2 else f"{seconds:.3g} s"
