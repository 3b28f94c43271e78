"""Which papers a model's parts and its training go back to; their BibTeX entries stand in `references.bib`."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from vanillaformer.configuration import PRESETS, BlockConfig
from vanillaformer.configuration.activations import activation_choice
from vanillaformer.configuration.options import LAYER_TYPE_CHOICES, OPTIONS

from ...metrics.scores import SCORES
from .facts import CardFacts
from .techniques import techniques

ENTRY = re.compile(r"^@\w+\{([\w-]+),\n.*?^\}$", re.DOTALL | re.MULTILINE)
Papers = tuple[str, ...]

# `layer_types` differ by layer, and a classifier's pooling is a detail
CITED_OPTIONS = [name for name in OPTIONS if name not in ("layer_types", "classifier_pooling")]
TOKENIZERS: dict[str, Papers] = {
    "byte_level_bpe": ("sennrich2016neural", "radford2019language"),
    "bpe": ("sennrich2016neural",),
    "unigram": ("kudo2018subword",),
    "wordpiece": ("schuster2012japanese",),
    "word": (),
    "character": (),
    "chinese_character": (),
}


def cited_papers(facts: CardFacts) -> list[str]:
    """Return the papers that the parts and the training go back to."""
    training, data = facts.choices.get("training", {}), facts.choices.get("data", {})
    preset = PRESETS.get(str(facts.choice("model", "preset")))
    papers = [*(preset.papers if preset else ())]
    is_ours = facts.is_ours
    papers += part_papers(facts.config, classifies=facts.classifies) if is_ours else ["vaswani2017attention"]
    papers += [paper for technique in techniques(training, data) for paper in technique.papers]
    if facts.choice("tokenizer", "tokenizer_name_or_path") is None and facts.started_from is None:
        papers += TOKENIZERS.get(facts.choice("tokenizer", "tokenizer_algorithm"), ())
    for name in facts.scores:
        papers += SCORES[name.split("_", 1)[1]].papers
    return [*papers, "wolf2020transformers"]


def part_papers(config: Any, *, classifies: bool = False) -> list[str]:
    """Return the papers of the parts that a config of ours chooses, the Transformer first if it is one.

    Args:
        config: The model's config.
        classifies: Whether the model is a classifier, which has no language model's output layer.
    """
    chosen = [name for name in CITED_OPTIONS if hasattr(config, name)]
    found = [paper for name in chosen for paper in OPTIONS[name][getattr(config, name)].papers]
    used = {"press2017using": getattr(config, "tie_word_embeddings", False) and not classifies}
    if not isinstance(config, BlockConfig):
        used |= {"schuster1997bidirectional": config.bidirectional_encoder, "srivastava2014dropout": config.dropout}
        return [*found, *(paper for paper, is_used in used.items() if is_used)]
    for kind in (*getattr(config, "layer_types", ()), *getattr(config, "encoder_layer_types", ())):
        found += LAYER_TYPE_CHOICES[kind].papers
    if config.feed_forward == "plain":
        found += activation_choice(config.hidden_act).papers
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
    return ["vaswani2017attention", *found, *(paper for paper, is_used in used.items() if is_used)]


def bibtex(papers: Iterable[str]) -> str:
    """Return the entries of papers, each once, in their order."""
    return "\n\n".join(references()[paper] for paper in dict.fromkeys(papers))


@cache
def references() -> Mapping[str, str]:
    """Return all BibTeX entries by key."""
    text = (files(__package__) / "references.bib").read_text(encoding="utf-8")
    return {match[1]: match[0] for match in ENTRY.finditer(text)}
