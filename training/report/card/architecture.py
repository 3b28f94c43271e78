"""The architecture of a model in the words of `configuration/options.py`."""

from typing import Any

from vanillaformer.configuration import BlockConfig, VanillaConfig, layer_types
from vanillaformer.configuration.activations import activation_choice
from vanillaformer.configuration.options import OPTIONS, POSITION_CHOICES
from vanillaformer.modeling.counts import count_flops

DROPOUTS = {
    "dropout": "",
    "attention_dropout": " on attention",
    "activation_dropout": " on activations",
    "layer_drop": " of whole layers",
    "drop_path_rate": " of sublayers per row (stochastic depth)",
}


def architecture(config: VanillaConfig, *, classifies: bool = False) -> dict[str, str]:
    """Return the parts and what was chosen for each; a classifier has a pooling in place of an output layer."""
    rows = _block_rows(config, classifies) if isinstance(config, BlockConfig) else _recurrent_rows(config)
    return {name: text for name, text in rows.items() if text}


def flops_per_token(
    config: VanillaConfig, length: int, source_length: int | None = None, *, head: bool = True
) -> float:
    """Return the operations of a forward pass by tokens read (in an encoder-decoder: by target tokens).

    Args:
        config: The model's config.
        length: Tokens of the row.
        source_length: Tokens of the source, in an encoder-decoder.
        head: Whether the output layer of a language model counts.
    """
    parts = count_flops(config, 1, length, source_length)
    return sum(number for name, number in parts.items() if head or name != "head") / length


def short(number: float) -> str:
    """Return a number with the prefix that fits: 12.3 M."""
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {prefix}"
    return f"{number:.3g}"


def _words(config: Any, option: str, default: str = "") -> str:
    """Return the words of the value that a config chooses; none for a default that every reader expects."""
    value = getattr(config, option, default)
    return "" if value == default else OPTIONS[option][value].words


def _block_rows(config: Any, classifies: bool) -> dict[str, str]:
    layers = f"{config.num_hidden_layers} of width {config.hidden_size}"
    if config.is_encoder_decoder:
        sides = {"encoder": config.encoder_side, "decoder": config.decoder_side}
        layers = ", ".join(f"{s.num_hidden_layers} of width {s.hidden_size} ({name})" for name, s in sides.items())
    wide = getattr(config, "wide_max_ngram", 0)
    pooling = f"`{config.classifier_pooling}`" if hasattr(config, "classifier_pooling") else ""
    beside = f"of up to {wide} tokens hashed into {config.wide_buckets:,} rows of logits" if wide else ""
    rows = {
        "layers": layers,
        "norm": f"{_words(config, 'norm')}, `{config.norm_placement}`: {_words(config, 'norm_placement')}",
        "block": _words(config, "block_layout", "sequential"),
        "attention": _attention(config),
        "positions": _positions(config),
        "feed-forward": _feed_forward(config),
        "embeddings": _embeddings(config, classifies) if hasattr(config, "vocab_size") else _patches(config),
        "output": _words(config, "output_distribution", "softmax"),
        "decoding": _words(config, "decoding", "autoregressive"),
        "dropout": ", ".join(
            f"{getattr(config, name):g}{on}" for name, on in DROPOUTS.items() if getattr(config, name)
        )
        or "none",
        "initialization": f"`{config.initialization}`",
    }
    if classifies:
        rows |= {"n-grams": beside, "pooling": _words(config, "image_pooling") or pooling}
    return rows


def _recurrent_rows(config: Any) -> dict[str, str]:
    both = ", in both directions" if config.bidirectional_encoder else ""
    return {
        "layers": f"{config.encoder_layers} of width {config.encoder_hidden_size} (encoder{both}), "
        f"{config.num_hidden_layers} of width {config.hidden_size} (decoder)",
        "cells": _words(config, "cell"),
        "attention": _words(config, "cross_attention")
        + (", its result fed into the next step" if config.input_feeding else ""),
        "embeddings": ", ".join([*_vocabularies(config), *["tied to the output layer"] * config.tie_word_embeddings]),
        "dropout": f"{config.dropout:g}" if config.dropout else "none",
        "initialization": f"`{config.recurrent_initialization}`",
    }


def _attention(config: Any) -> str:
    heads, keys = config.num_attention_heads, config.num_key_value_heads or 0
    words = [f"{heads} heads of width {config.head_dim}"]
    if keys != heads:
        words.append(f"{keys} key/value head{'s' if keys > 1 else ''}")
    if config.qk_norm != "none":
        words.append(f"norm of queries and keys {_words(config, 'qk_norm')}")
    if config.sliding_window is not None:
        windowed = layer_types(config).count("sliding_attention")
        words.append(f"window of {config.sliding_window} tokens in {windowed} of {config.num_hidden_layers} layers")
    if config.attn_logit_softcapping is not None:
        words.append(f"scores bounded by {config.attn_logit_softcapping}")
    return ", ".join(words)


def _positions(config: Any) -> str:
    scheme = POSITION_CHOICES[config.position_embedding_type]
    words = scheme.words
    rope: Any = getattr(config, "rope_parameters", None) or {}
    if "rope_theta" in rope:
        kind = rope.get("rope_type", "default")
        words += f" (base {rope['rope_theta']:g}{'' if kind == 'default' else f', scaled: {kind}'})"
    if hasattr(config, "grid"):
        return f"{words}; {' by '.join(map(str, config.grid))} patches"
    kind = "at most" if scheme.has_table else "made for"
    return f"{words}; {kind} {config.max_position_embeddings:,} tokens"


def _feed_forward(config: Any) -> str:
    act, width = config.hidden_act, str(config.intermediate_size)
    if config.feed_forward == "gated":
        act = activation_choice(act).gated or f"gated {act}"
    if config.is_encoder_decoder and config.encoder_side.intermediate_size != config.intermediate_size:
        width = f"{config.encoder_side.intermediate_size} (encoder) and {width} (decoder)"
    return f"{act}, inner width {width}"


def _vocabularies(config: Any) -> list[str]:
    if not config.is_encoder_decoder:
        return [f"{config.vocab_size:,} tokens"]
    if config.share_encoder_decoder_embeddings:
        return [f"{config.vocab_size:,} tokens", "shared by encoder and decoder"]
    return [f"{config.vocab_size:,} source and {config.target_vocab_size:,} target tokens"]


def _embeddings(config: Any, classifies: bool) -> str:
    words = _vocabularies(config)
    if config.max_ngram > 1:
        kinds = "pairs" if config.max_ngram == 2 else f"sequences of up to {config.max_ngram} tokens"
        words.append(f"{kinds} hashed into {config.ngram_buckets:,} vectors{' each' * (config.max_ngram > 2)}")
    added = {
        "tied to the output layer": config.tie_word_embeddings and not classifies,
        "scaled by √width": config.scale_embedding,
        "normalized": config.embedding_norm,
    }
    return ", ".join([*words, *(text for text, is_true in added.items() if is_true)])


def _patches(config: Any) -> str:
    words = [f"patches of {config.patch_size} by {config.patch_size} pixels", _words(config, "patch_embedding")]
    if config.num_prefix_tokens:
        words.append(f"{config.num_prefix_tokens} more token{'s' * (config.num_prefix_tokens > 1)} in front of them")
    return ", ".join(words)
