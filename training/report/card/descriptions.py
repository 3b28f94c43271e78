"""A model's architecture and training in words, each technique described once, and their papers (`references.bib`)."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import yaml

from vanillaformer.configuration import PRESETS, BlockConfig, VanillaConfig
from vanillaformer.configuration.activations import ACTIVATION_ALIASES, ACTIVATIONS
from vanillaformer.configuration.options import LAYER_TYPE_CHOICES, OPTIONS

from ...metrics.scores import SCORES
from .facts import CardFacts

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
TOKENIZERS: dict[str, Papers] = {name: tuple(papers) for name, papers in TABLES.pop("tokenizers").items()}
# By the settings that turn them on
OPTIMIZERS, SCHEDULES, OBJECTIVES, TECHNIQUES = (
    {name: Technique(entry["words"], tuple(entry.get("papers", ()))) for name, entry in entries.items()}
    for entries in TABLES.values()
)


def architecture(config: VanillaConfig, *, classifies: bool = False) -> dict[str, str]:
    """Return the options of a config in words, then its sizes and rates, by field.

    Those that the model has no use for are left out: a classifier has no output layer, others have no pooling.
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
    """Return a number with the prefix that fits: 12.3 M."""
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
    """Return the papers that the parts and the training go back to."""
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
    used = {"press2017using": getattr(config, "tie_word_embeddings", False) and not classifies}
    if not isinstance(config, BlockConfig):
        used |= {"schuster1997bidirectional": config.bidirectional_encoder, "srivastava2014dropout": config.dropout}
        return [*papers, *(paper for paper, is_used in used.items() if is_used)]
    for kind in (*getattr(config, "layer_types", ()), *getattr(config, "encoder_layer_types", ())):
        papers += LAYER_TYPE_CHOICES[kind].papers
    if config.feed_forward == "plain":
        activation = ACTIVATIONS.get(ACTIVATION_ALIASES.get(config.hidden_act, config.hidden_act))
        papers += activation.papers if activation else ()
    heads, keys = config.num_attention_heads, config.num_key_value_heads or 0
    used = {
        "shazeer2019fast": keys == 1 and heads > 1,
        "ainslie2023gqa": 1 < keys < heads,
        "gemma2024gemma2": config.attn_logit_softcapping or config.final_logit_softcapping,
        **used,
        "srivastava2014dropout": config.dropout or config.attention_dropout or config.activation_dropout,
        "fan2020reducing": config.layer_drop,
        "huang2016deep": config.drop_path_rate,
        "touvron2021going": config.layer_scale_init_value,
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
