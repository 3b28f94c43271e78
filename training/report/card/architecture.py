"""The architecture of a model in the words of `configuration/options.py`."""

from typing import Any

from vanillaformer.configuration import BlockConfig, VanillaConfig, layer_types
from vanillaformer.configuration.activations import activation_choice
from vanillaformer.configuration.options import (
    CELL_CHOICES,
    CROSS_ATTENTION_CHOICES,
    DECODING_CHOICES,
    IMAGE_POOLING_CHOICES,
    LAYOUT_CHOICES,
    NORM_CHOICES,
    OUTPUT_CHOICES,
    PATCH_CHOICES,
    PLACEMENT_CHOICES,
    POSITION_CHOICES,
    QUERY_KEY_NORM_CHOICES,
)
from vanillaformer.modeling.counts import count_flops


def architecture(config: VanillaConfig, *, classifies: bool = False) -> dict[str, str]:
    """Return the parts and what was chosen for each.

    Args:
        config: The model's config.
        classifies: Whether the model is a classifier, which has a pooling and no language model's output layer.
    """
    rows = _block_rows(config, classifies) if isinstance(config, BlockConfig) else _recurrent_rows(config)
    return {name: text for name, text in rows.items() if text}


def _block_rows(config: BlockConfig, classifies: bool) -> dict[str, str]:
    return {
        "layers": _layers(config),
        "norm": f"{NORM_CHOICES[config.norm].words}, `{config.norm_placement}`: "
        f"{PLACEMENT_CHOICES[config.norm_placement].words}",
        "block": "" if config.block_layout == "sequential" else LAYOUT_CHOICES[config.block_layout].words,
        "attention": _attention(config),
        "positions": _positions(config),
        "feed-forward": _feed_forward(config),
        "embeddings": _embeddings(config, classifies) if hasattr(config, "vocab_size") else _patches(config),
        "output": _output(config),
        "decoding": "" if config.decoding == "autoregressive" else DECODING_CHOICES[config.decoding].words,
        "dropout": _dropout(config),
        "initialization": f"`{config.initialization}`",
        "wide part": _wide_part(config) if classifies else "",
        "pooling": _pooling(config) if classifies else "",
    }


def _recurrent_rows(config: Any) -> dict[str, str]:
    sides = (
        f"{config.encoder_layers} of width {config.encoder_hidden_size} (encoder"
        f"{', in both directions' if config.bidirectional_encoder else ''})",
        f"{config.num_hidden_layers} of width {config.hidden_size} (decoder)",
    )
    words = [f"{config.vocab_size:,} tokens", "shared by encoder and decoder"]
    if not config.share_encoder_decoder_embeddings:
        words = [f"{config.vocab_size:,} source and {config.target_vocab_size:,} target tokens"]
    return {
        "layers": ", ".join(sides),
        "cells": CELL_CHOICES[config.cell].words,
        "attention": CROSS_ATTENTION_CHOICES[config.cross_attention].words
        + (", its result fed into the next step" if config.input_feeding else ""),
        "embeddings": ", ".join([*words, *["tied to the output layer"] * config.tie_word_embeddings]),
        "dropout": f"{config.dropout:g}" if config.dropout else "none",
        "initialization": f"`{config.recurrent_initialization}`",
    }


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


def _layers(config: BlockConfig) -> str:
    if not config.is_encoder_decoder:
        return f"{config.num_hidden_layers} of width {config.hidden_size}"
    encoder, decoder = config.encoder_side, config.decoder_side
    stacks = (("encoder", encoder), ("decoder", decoder))
    return ", ".join(f"{side.num_hidden_layers} of width {side.hidden_size} ({name})" for name, side in stacks)


def _attention(config: BlockConfig) -> str:
    heads, keys = config.num_attention_heads, config.num_key_value_heads or 0
    words = [f"{heads} heads of width {config.head_dim}"]
    if keys != heads:
        words.append(f"{keys} key/value head{'s' if keys > 1 else ''}")
    if config.qk_norm != "none":
        words.append(f"norm of queries and keys {QUERY_KEY_NORM_CHOICES[config.qk_norm].words}")
    if config.sliding_window is not None:
        windowed = layer_types(config).count("sliding_attention")
        words.append(f"window of {config.sliding_window} tokens in {windowed} of {config.num_hidden_layers} layers")
    if config.attn_logit_softcapping is not None:
        words.append(f"scores bounded by {config.attn_logit_softcapping}")
    return ", ".join(words)


def _positions(config: BlockConfig) -> str:
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


def _feed_forward(config: BlockConfig) -> str:
    act = config.hidden_act
    if config.feed_forward == "gated":
        act = activation_choice(act).gated or f"gated {act}"
    widths = str(config.intermediate_size)
    if config.is_encoder_decoder and config.encoder_side.intermediate_size != config.intermediate_size:
        widths = f"{config.encoder_side.intermediate_size} (encoder) and {widths} (decoder)"
    return f"{act}, inner width {widths}"


def _embeddings(config: Any, classifies: bool) -> str:
    words = [f"{config.vocab_size:,} tokens"]
    if config.is_encoder_decoder and not config.share_encoder_decoder_embeddings:
        words = [f"{config.vocab_size:,} source and {config.target_vocab_size:,} target tokens"]
    elif config.is_encoder_decoder:
        words.append("shared by encoder and decoder")
    if config.max_ngram > 1:
        kinds = "pairs" if config.max_ngram == 2 else f"sequences of up to {config.max_ngram} tokens"
        words.append(f"{kinds} hashed into {config.ngram_buckets:,} vectors{' each' * (config.max_ngram > 2)}")
    if config.tie_word_embeddings and not classifies:
        words.append("tied to the output layer")
    if config.scale_embedding:
        words.append("scaled by √width")
    if config.embedding_norm:
        words.append("normalized")
    return ", ".join(words)


def _output(config: Any) -> str:
    """Return the distribution over tokens; nothing for a plain softmax."""
    chosen = getattr(config, "output_distribution", "softmax")
    return "" if chosen == "softmax" else OUTPUT_CHOICES[chosen].words


def _wide_part(config: Any) -> str:
    """Return what is beside the stack; nothing for most models."""
    longest = getattr(config, "wide_max_ngram", 0)
    return f"n-grams of up to {longest} tokens hashed into {config.wide_buckets:,} rows of logits" if longest else ""


def _pooling(config: Any) -> str:
    if hasattr(config, "image_pooling"):
        return IMAGE_POOLING_CHOICES[config.image_pooling].words
    return f"`{config.classifier_pooling}`" if hasattr(config, "classifier_pooling") else ""


def _patches(config: Any) -> str:
    words = [
        f"patches of {config.patch_size} by {config.patch_size} pixels",
        PATCH_CHOICES[config.patch_embedding].words,
    ]
    if config.num_prefix_tokens:
        words.append(f"{config.num_prefix_tokens} more token{'s' * (config.num_prefix_tokens > 1)} in front of them")
    return ", ".join(words)


def _dropout(config: BlockConfig) -> str:
    rates = {
        "": config.dropout,
        " on attention": config.attention_dropout,
        " on activations": config.activation_dropout,
        " of whole layers": config.layer_drop,
        " of sublayers per row (stochastic depth)": config.drop_path_rate,
    }
    return ", ".join(f"{rate:g}{where}" for where, rate in rates.items() if rate) or "none"
