"""Which papers a model's parts and its training go back to; their BibTeX entries stand in `references.bib`."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from vanillaformer.configuration import BlockConfig

from ..metrics.scores import SCORES
from .facts import CardFacts
from .markdown import details
from .techniques import techniques

ENTRY = re.compile(r"^@\w+\{([\w-]+),\n.*?^\}$", re.DOTALL | re.MULTILINE)
Papers = tuple[str, ...]

# Every value of every option (configuration/options.py): the papers it comes from, or none.
PARTS: dict[str, dict[str, Papers]] = {
    "norm": {"layer_norm": ("ba2016layer",), "rms_norm": ("zhang2019root",)},
    "norm_placement": {
        "post": ("vaswani2017attention",),
        "pre": ("xiong2020layer",),
        "sandwich": ("ding2021cogview",),
        "inside": ("olmo2025furious",),
        "rezero": ("bachlechner2021rezero",),
        "deepnorm": ("wang2022deepnet",),
        "admin": ("liu2020understanding",),
        "no_norm": ("huang2020improving",),
        "no_residual": (),
    },
    "block_layout": {
        "sequential": (),
        "parallel": ("black2022gptneox",),
        "parallel_shared_norm": ("wang2021gptj",),
    },
    "feed_forward": {"plain": (), "gated": ("shazeer2020glu",)},
    "position_embedding_type": {
        "sinusoidal": ("vaswani2017attention",),
        "learned": ("gehring2017convolutional",),
        "rotary": ("su2021roformer",),
        "alibi": ("press2022train",),
        "relative": ("raffel2020exploring",),
        "none": (),
    },
    "sinusoidal_layout": {"interleaved": (), "halves": (), "tensor2tensor": ()},
    "qk_norm": {
        "none": (),
        "head": ("henry2020query",),
        "each_head": ("henry2020query",),
        "full": ("henry2020query", "olmo2025furious"),
    },
    "initialization": {
        "normal": (),
        "gpt2": ("radford2019language",),
        "xavier": ("glorot2010understanding",),
        "t5": ("raffel2020exploring",),
        "deepnorm": ("wang2022deepnet",),
        "t_fixup": ("huang2020improving",),
        "ds_init": ("zhang2019improving",),
        "admin": ("liu2020understanding",),
        "mimetic": ("trockman2023mimetic",),
    },
}
LAYER_TYPES: dict[str, Papers] = {"full_attention": (), "sliding_attention": ("beltagy2020longformer",)}
POOLINGS: dict[str, Papers] = {"first": ("devlin2019bert",), "mean": (), "max": (), "last": ()}
# Activations of a plain feed-forward layer; those of transformers that are not here are cited by nobody.
ACTIVATIONS: dict[str, Papers] = {
    **dict.fromkeys(("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast"), ("hendrycks2016gaussian",)),
    **dict.fromkeys(("silu", "swish"), ("elfwing2018sigmoid",)),
    "relu2": ("so2021primer",),
}
PRESETS: dict[str, Papers] = {
    **dict.fromkeys(("transformer-base", "transformer-big", "transformer-tiny"), ("vaswani2017attention",)),
    "marian": ("junczysdowmunt2018marian",),
    "bart": ("lewis2020bart",),
    "t5": ("raffel2020exploring",),
    "t5-v1.1": ("raffel2020exploring", "shazeer2020glu"),
    "gpt": ("radford2018improving",),
    "gpt2": ("radford2019language",),
    "gpt-tiny": ("radford2019language",),
    "nanogpt": ("karpathy2022nanogpt",),
    "opt": ("zhang2022opt",),
    "gpt-neox": ("black2022gptneox",),
    "bloom": ("bigscience2022bloom",),
    "llama-tiny": ("touvron2023llama",),
    "gemma2": ("gemma2024gemma2",),
    "olmo2": ("olmo2025furious",),
    "bert-base": ("devlin2019bert",),
    "bert-tiny": ("devlin2019bert",),
    "roberta": ("liu2019roberta",),
    "modernbert": ("warner2024smarter",),
}
TOKENIZERS: dict[str, Papers] = {
    "byte_level_bpe": ("sennrich2016neural", "radford2019language"),
    "bpe": ("sennrich2016neural",),
    "unigram": ("kudo2018subword",),
    "wordpiece": ("schuster2012japanese",),
    "word": (),
    "character": (),
    "chinese_character": (),
}


def citations(facts: CardFacts) -> str:
    """Cite the papers that the parts and the training go back to."""
    training, data = facts.choices.get("training", {}), facts.choices.get("data", {})
    papers = [*of(PRESETS, facts.choice("model", "preset")), "vaswani2017attention"]
    if facts.is_ours:
        papers += part_papers(facts.config, classifies=facts.classifies)
    papers += [paper for technique in techniques(training, data) for paper in technique.papers]
    if facts.choice("tokenizer", "tokenizer_name_or_path") is None and facts.started_from is None:
        papers += of(TOKENIZERS, facts.choice("tokenizer", "tokenizer_algorithm"))
    for name in facts.scores:
        score = SCORES.get(name.split("_", 1)[1])
        papers += score.papers if score else ()
    text = details("BibTeX", f"```bibtex\n{bibtex([*papers, 'wolf2020transformers'])}\n```")
    return f"## Citations\n\nThe papers behind the parts and the training of this model:\n\n{text}"


def part_papers(config: BlockConfig, *, classifies: bool = False) -> list[str]:
    """Return the papers of the parts that a config chooses, the Transformer first.

    Args:
        config: The model's config.
        classifies: Whether the model is a classifier, which has no language model's output layer.
    """
    found = ["vaswani2017attention"]
    for name, papers in PARTS.items():
        found += papers[getattr(config, name)]
    for kind in (*getattr(config, "layer_types", ()), *getattr(config, "encoder_layer_types", ())):
        found += LAYER_TYPES[kind]
    if config.feed_forward == "plain":
        found += ACTIVATIONS.get(config.hidden_act, ())
    heads, keys = config.num_attention_heads, config.num_key_value_heads or 0
    used = {
        "shazeer2019fast": keys == 1 and heads > 1,
        "ainslie2023gqa": 1 < keys < heads,
        "gemma2024gemma2": config.attn_logit_softcapping or config.final_logit_softcapping,
        "press2017using": config.tie_word_embeddings and not classifies,
        "srivastava2014dropout": config.dropout or config.attention_dropout or config.activation_dropout,
        "fan2020reducing": config.layer_drop,
        "huang2025overtokenized": getattr(config, "max_ngram", 1) > 1,
    }
    return [*found, *(paper for paper, is_used in used.items() if is_used)]


def bibtex(papers: Iterable[str]) -> str:
    """Return the entries of papers, each once, in their order."""
    return "\n\n".join(references()[paper] for paper in dict.fromkeys(papers))


@cache
def references() -> Mapping[str, str]:
    """Return all BibTeX entries by key."""
    text = (files(__package__) / "references.bib").read_text(encoding="utf-8")
    return {match[1]: match[0] for match in ENTRY.finditer(text)}


def of(table: Mapping[str, Papers], value: Any) -> Papers:
    """Return the papers of one value, none for what the table does not know."""
    return table.get(str(value), ())
