"""Model cards: what a model is for, what it was made of and trained on, how good it is, and how to load and run it."""

import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from huggingface_hub import EvalResult, ModelCardData
from jinja2 import Environment, Template

from vanillaformer.configuration import PRESETS, BlockConfig, VanillaConfig
from vanillaformer.configuration.names import ACTIVATION_ALIASES, ACTIVATIONS
from vanillaformer.configuration.options import LAYER_TYPE_CHOICES, OPTIONS, POSITION_CHOICES
from vanillaformer.data.preprocessing.statistics import shortfalls
from vanillaformer.data.tasks import TASKS
from vanillaformer.hub.card_merging import generated_card, merged_card, write_card
from vanillaformer.modeling.counts import count_flops

from ...hardware import software
from ...metrics.scores import PREFIXES, SCORES, label, scores_of_group
from ...run_folder.files import CARD
from ...run_folder.run import Run
from ...trainer.budget import in_short
from ..classes import accepted_in_words, accuracy_intervals, class_rows
from ..facts import CardFacts, input_option, language_name, loading_code
from ..plots import NUMBERED

ENTRY = re.compile(r"^@\w+\{([\w-]+),\n.*?^\}$", re.DOTALL | re.MULTILINE)
Settings = Mapping[str, Any]
Papers = tuple[str, ...]
# `layer_types` differ by layer, and a classifier's pooling is a detail
CITED_OPTIONS = [name for name in OPTIONS if name not in ("layer_types", "classifier_pooling")]
OF_CLASSIFIERS = {"classifier_pooling", "image_pooling", "wide_max_ngram", "wide_buckets"}


class Technique(NamedTuple):
    """A technique: its words in a card, formatted with the settings, and the papers it comes from."""

    words: str
    papers: Papers = ()


TABLES = yaml.safe_load((files(__package__) / "techniques.yaml").read_text(encoding="utf-8"))
SIZES: list[str] = TABLES.pop("sizes")
BASELINES: dict[str, str] = TABLES.pop("baselines")
FIELDS: dict[str, str] = TABLES.pop("fields")
TOKENIZERS: dict[str, Papers] = {name: tuple(papers) for name, papers in TABLES.pop("tokenizers").items()}
# By the settings that turn them on
OPTIMIZERS, SCHEDULES, OBJECTIVES, TECHNIQUES = (
    {name: Technique(entry["words"], tuple(entry.get("papers", ()))) for name, entry in entries.items()}
    for entries in TABLES.values()
)


def architecture(config: VanillaConfig, *, classifies: bool = False) -> dict[str, str]:
    """Return the options of a config in words, then its sizes and rates, by field.

    Fields that the model does not use are left out: a classifier has no output layer, others have no pooling.
    """
    unused = {"layer_types"} | ({"tie_word_embeddings"} if classifies else OF_CLASSIFIERS)
    if not str(getattr(config, "position_embedding_type", "")).startswith("sinusoidal"):
        unused.add("sinusoidal_layout")
    rows = {}
    for name in (*OPTIONS, *SIZES):
        value: Any = getattr(config, name, None)
        if name in OPTIONS and isinstance(value, str) and name not in unused:
            rows[f"`{name}`"] = ": ".join(filter(None, (f"`{value}`", OPTIONS[name][value].words)))
        elif name in SIZES and value and name not in unused:
            rows[f"`{name}`"] = f"{value:,}" if type(value) is int else str(value)
    return rows


def short(number: float) -> str:
    """Return a number with a metric prefix: 12.3 M."""
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {prefix}"
    return f"{number:.3g}"


def techniques(training: Settings, data: Settings) -> list[Technique]:
    """Return the techniques that arguments of training and data by name turn on, with their words filled in."""
    settings = {"mlm_probability": 0, "mask_ratio": 0, "noise": "mask", **data, **training}
    optim = str(settings.get("optim", "adamw_torch_fused"))
    known = (entry for name, entry in OPTIMIZERS.items() if optim.startswith(name))
    schedule = settings.get("lr_scheduler_type", "linear")
    schedule = str(getattr(schedule, "value", schedule))
    words, papers = SCHEDULES.get(schedule, Technique(f"learning rate schedule {schedule}"))
    if warmup := settings.get("warmup_steps"):
        words += f" after a warm-up over {f'{warmup:.0%} of the steps' if warmup < 1 else f'{warmup:,.0f} steps'}"
    used = [
        *([OBJECTIVES[settings["objective"]]] if settings.get("objective") in OBJECTIVES else []),
        next(known, Technique(f"optimizer {optim}")),
        Technique(words, papers),
        *(entry for name, entry in TECHNIQUES.items() if settings.get(name) and settings[name] != "none"),
    ]
    shown = {**settings, "freeze": ", ".join(map(str, settings.get("freeze") or ()))}
    return [technique._replace(words=technique.words.format_map(shown)) for technique in used]


def cited_papers(facts: CardFacts) -> list[str]:
    """Return the papers that introduced the parts and techniques."""
    training, data = facts.choices.get("training", {}), facts.choices.get("data", {})
    preset = PRESETS.get(str(facts.choice("model", "preset")))
    papers = [*(preset.papers if preset else ())]
    papers += part_papers(facts.config, classifies=facts.classifies) if facts.is_ours else ["vaswani2017attention"]
    papers += [paper for technique in techniques(training, data) for paper in technique.papers]
    if facts.choice("tokenizer", "tokenizer_name_or_path") is None and facts.started_from is None:
        papers += TOKENIZERS.get(facts.choice("tokenizer", "tokenizer_algorithm"), ())
    for name in facts.scores:
        papers += SCORES[name.split("_", 1)[1]].papers
    return [*papers, "wolf2020transformers"]


def part_papers(config: Any, *, classifies: bool = False) -> list[str]:
    """Return the papers of the parts that a config of ours chooses, the Transformer first if it is one."""
    chosen = [name for name in CITED_OPTIONS if hasattr(config, name)]
    papers = [paper for name in chosen for paper in OPTIONS[name][getattr(config, name)].papers]
    papers += [paper for name, paper in FIELDS.items() if getattr(config, name, 0)]
    if getattr(config, "tie_word_embeddings", False) and not classifies:
        papers.append("press2017using")
    if not isinstance(config, BlockConfig):
        return [*papers, *["schuster1997bidirectional"] * config.bidirectional_encoder]
    for kind in (*getattr(config, "layer_types", ()), *getattr(config, "encoder_layer_types", ())):
        papers += LAYER_TYPE_CHOICES[kind].papers
    if config.feed_forward == "plain":
        activation = ACTIVATIONS.get(ACTIVATION_ALIASES.get(config.hidden_act, config.hidden_act))
        papers += activation.papers if activation else ()
    heads, keys = config.num_attention_heads, config.num_key_value_heads or 0
    used = {
        "shazeer2019fast": keys == 1 and heads > 1,
        "ainslie2023gqa": 1 < keys < heads,
        "huang2025overtokenized": getattr(config, "max_ngram", 1) > 1,
        "cheng2016wide": classifies and bool(getattr(config, "wide_max_ngram", 0)),
    }
    return ["vaswani2017attention", *papers, *(paper for paper, is_used in used.items() if is_used)]


def bibtex(papers: Iterable[str]) -> str:
    return "\n\n".join(references()[paper] for paper in dict.fromkeys(papers))


@cache
def references() -> Mapping[str, str]:
    text = (files(__package__) / "references.bib").read_text(encoding="utf-8")
    return {match[1]: match[0] for match in ENTRY.finditer(text)}


TEMPLATE = "model_card.md.jinja"
# Arguments in the table of the training, if they are set; the rest is in the command and in run.json.
SHOWN = """
    learning_rate lr_scheduler_type warmup_steps weight_decay adam_beta1 adam_beta2 adam_epsilon optim max_grad_norm
    tokens_per_batch rows_per_step seed data_seed
""".split()  # noqa: SIM905 - a list would be a line for each
BUDGET_WORDS = {"max_time": "time budget", "max_tokens": "token budget", "max_flops": "FLOP budget"}
MAX_CLASS_NAMES = 12
Table = list[tuple[str, ...]]  # the heading and the rows

# https://huggingface.co/docs/hub/repositories-licenses, without those of single models
LICENSES = frozenset((files(__package__) / "licenses.txt").read_text(encoding="utf-8").split())


def update_card(run: Run, facts: CardFacts) -> None:
    """Write the card of a run into its folder; the text that a person wrote around the generated part stays."""
    path = run.folder / CARD
    try:
        old = path.read_text(encoding="utf-8") if path.exists() else None
    except UnicodeDecodeError:  # it cannot be merged: `write_card` keeps it next to the new one
        old = None
    write_card(path, merged_card(model_card(facts), old))


def model_card(facts: CardFacts) -> str:
    """Return the text of a model's card, with the marks by which `merged_card` knows what was generated."""
    text = template().render(**card_variables(facts))
    return generated_card(metadata(facts).to_yaml(), facts.name, text, facts.place)


@cache
def template() -> Template:
    return Environment().from_string((files(__package__) / TEMPLATE).read_text(encoding="utf-8"))


def metadata(facts: CardFacts) -> ModelCardData:
    """Return what the Hub reads of a card."""
    source, tag, signatures = facts.source, TASKS[facts.task].pipeline_tag, facts.details.get("signatures", {})
    name, license, license_name = (facts.license or "").strip(), None, None  # the latter of one that the Hub lacks
    if name:
        word = re.sub(r"[^a-z0-9.+-]+", "-", name.lower()).strip("-")
        license, license_name = (word, None) if word in LICENSES else ("other", word or name)
    results = []
    for key, value in facts.scores.items():
        split, name = key.split("_", 1)
        if math.isfinite(value) and SCORES[name].greater_is_better is not None:
            results.append(
                EvalResult(
                    task_type=tag,
                    dataset_type=source.identifier,
                    dataset_name=source.name,
                    dataset_split=next(name for name, prefix in PREFIXES.items() if prefix == split),
                    metric_type=name,
                    metric_name=label(name),
                    metric_value=float(f"{value:.6g}"),
                    metric_args={"signature": signatures[name]} if name in signatures else None,
                )
            )
    from_hub = facts.started_from is not None and not Path(facts.started_from).exists()
    names = {key.split("_", 1)[1] for key in facts.scores}
    return ModelCardData(
        license=license,
        license_name=license_name,
        library_name="transformers",
        pipeline_tag=tag,
        tags=["vanillaformer", facts.config.model_type],
        base_model=facts.started_from if from_hub else None,
        datasets=[source.identifier] if source.on_hub else None,
        language=source.languages or None,
        metrics=sorted(name for name in names if SCORES[name].on_hub) or None,
        model_name=facts.name,
        eval_results=results or None,
    )


def card_variables(facts: CardFacts) -> dict[str, Any]:
    """Return the variables of the card's template."""
    config, task, details = facts.config, TASKS[facts.task], facts.details
    length, source_length = 1, None  # of the longest row in training, and the longest source; an image counts as one
    if not task.reads_images:
        longest = getattr(config, "max_position_embeddings", 0)
        length = facts.choice("data", task.length_option, longest)
        source_length = facts.choice("data", "max_source_length", length) if config.is_encoder_decoder else None
    unknown = (value for name, value in facts.data.get("train", {}).items() if name.endswith("unknown tokens"))
    positions = POSITION_CHOICES[getattr(config, "position_embedding_type", "none")]
    training, calibration = facts.choices.get("training", {}), details.get("calibration")
    variables: dict[str, Any] = {}
    if facts.is_ours:
        unused = {"head"} if facts.classifies and not task.reads_images else set()  # the output layer of tokens
        parts = count_flops(config, 1, length, source_length)
        variables["flops"] = sum(number for name, number in parts.items() if name not in unused) / length  # by targets
        variables["architecture"] = architecture(config, classifies=facts.classifies)
    scored = ("validation", "test") if task.whole_texts else ()
    hidden = ("id2label", "label2id", "auto_map")  # one entry per class, or of no interest
    stored = {name: value for name, value in config.to_diff_dict().items() if name not in hidden}
    return variables | {
        "facts": facts,
        "record": details,
        "task": task,
        "input": "image" if task.reads_images else "text",
        "purpose": purpose(facts),
        "length": length,
        "source_length": source_length,
        "limit": config.max_position_embeddings if positions.has_table else None,
        "unknown_tokens": max(unknown, default=0),
        "tested": any(name.startswith("test_") for name in facts.scores),
        "code": partial(loading_code, facts),
        "generate_options": f"--model {shlex.quote(facts.place)} "
        + ("--chat" if facts.chats else input_option(facts.example, task.input_option)),
        "results": result_table(facts),
        "baselines": {name: BASELINES[name] for name in details.get("baselines", {}) if name in BASELINES},
        "calibration": calibration,
        "accepted": accepted_in_words(calibration) if calibration else "",
        "intervals": accuracy_intervals(facts.metrics, facts.rows) if facts.classifies else {},
        "class_rows": class_rows(details.get("classes", {}))[:NUMBERED],
        "cut_texts": {split: words for split in scored if (words := shortfalls(facts.data.get(split, {})))},
        "config": json.dumps(stored, indent=2, ensure_ascii=False, default=str),
        "languages": [language_name(code) for code in facts.source.languages],
        "data": data_table(facts),
        "tokenizer": facts.choice("tokenizer", "tokenizer_name_or_path") or facts.started_from,
        "techniques": techniques(training, facts.choices.get("data", {})),
        "diagnosis": details.get("diagnosis") or details.get("verdict", ()),  # its name in earlier versions
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
    if "{names}" in task.does:
        names = [str(name) for name in facts.config.id2label.values()]
        if "tags" in task.predicts:
            names = list(dict.fromkeys(name.split("-", 1)[-1] for name in names if name != "O"))
        listed = ", ".join(names[:MAX_CLASS_NAMES]) + (", ..." if len(names) > MAX_CLASS_NAMES else "")
        return task.does.format(count=len(names), names=listed)
    if facts.chats:
        backwards = facts.choice("data", "reverse_turns")
        return "finds what came before a turn of a dialogue" if backwards else "answers in a dialogue"
    return task.does


def result_table(facts: CardFacts) -> Table:
    """Return the scores by split, each followed by those of the baselines; nothing if there are none."""
    shown = {"eval"} | {key.split("_", 1)[0] for key in facts.scores}
    splits = {prefix: split for split, prefix in PREFIXES.items() if prefix in shown}
    groups = {f", {name}": scores_of_group(facts.metrics, name) for name in facts.details.get("groups", ())}
    baselines = {f" of the baseline ({name})": each for name, each in facts.details.get("baselines", {}).items()}
    rows = []
    for name in dict.fromkeys(key.split("_", 1)[1] for key in facts.scores):
        keys = [f"{split}_{name}" for split in splits]
        for model, scores in {"": facts.scores, **groups, **baselines}.items():
            if any(key in scores for key in keys):
                rows.append((label(name) + model, *(f"{scores[key]:.4g}" if key in scores else "" for key in keys)))
    return [("", *splits.values()), *rows] if rows else []


def data_table(facts: CardFacts) -> Table:
    """Return the statistics of the data by split, or only the numbers of rows if there are none."""
    cells: dict[str, dict[str, str]] = {split: {} for split in facts.data}
    for split, values in facts.data.items():
        for name, value in sorted(values.items(), key=lambda entry: "rows" not in entry[0]):  # rows first
            # Without zeros, and without what other sections say
            if "vocabulary" in name or name == "padding" or isinstance(value, list) or (not value and name != "rows"):
                continue
            share = name.endswith("unknown tokens")
            name += " in tokens" if name.endswith(("mean length", "longest")) else ""
            text = f"{value:.2%}" if share else f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
            cells[split][name] = text
    cells = cells or {split: {"rows": f"{rows:,}"} for split, rows in facts.rows.items()}
    names = dict.fromkeys(name for values in cells.values() for name in values)
    return [("", *cells), *((name, *(values.get(name, "") for values in cells.values())) for name in names)]


def training_rows(facts: CardFacts) -> dict[str, str]:
    """Return the length of the training, and the hardware and software that it ran on."""
    consumed, resumed = facts.details.get("consumed"), facts.training["resumed"]  # records of version 0.1.0 lack it
    rows = {"steps": f"{facts.details['steps']:,}" + (f" ({facts.epochs:.3g} epochs)" if facts.epochs else "")}
    read = "patches" if TASKS[facts.task].reads_images else "tokens"
    if consumed:
        rows[f"{read} seen"] = short(consumed["tokens"])
        rows["FLOPs"] = f"{short(consumed['flops'])}, matrix products of the training without padding"
    for name, words in BUDGET_WORDS.items():
        if budget := facts.choice("training", name):
            rows[words] = in_short(budget) if name == "max_time" else short(budget)
    if seconds := facts.metrics.get("train_runtime"):
        rows["time"] = f"{in_short(seconds)}, evaluation included"
        if resumed:
            rows["time"] += f" (since {resumed}, from which it resumed)"
        elif consumed:
            rows["time"] += f"; {short(consumed['tokens'] / seconds)} {read} per second"
    return {**rows, **facts.training["hardware"], "software": software()}
