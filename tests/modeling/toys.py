"""Two-layer toys of every combination of options, with weights sharp enough that nothing hides behind a default.

The option names come from the Literals of `configuration/options.py`: a new name is tested the day it appears.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, get_args

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from vanillaformer import (
    BlockConfig,
    VanillaDecoderConfig,
    VanillaDecoderForCausalLM,
    VanillaEncoderConfig,
    VanillaEncoderDecoderConfig,
    VanillaEncoderDecoderForConditionalGeneration,
    VanillaEncoderForMaskedLM,
)
from vanillaformer.configuration import options

KINDS: dict[str, tuple[type[BlockConfig], type[PreTrainedModel]]] = {
    "encoder_decoder": (VanillaEncoderDecoderConfig, VanillaEncoderDecoderForConditionalGeneration),
    "decoder": (VanillaDecoderConfig, VanillaDecoderForCausalLM),
    "encoder": (VanillaEncoderConfig, VanillaEncoderForMaskedLM),
}
SOURCE_VOCABULARY, TARGET_VOCABULARY = 37, 29
PAD, FIRST_WORD = 0, 4

# Heads that share keys, a head width that is not hidden_size / heads, two vocabularies: a mix-up changes a shape.
SMALL = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 40,
    "max_position_embeddings": 24,
    "attention_bias": True,
    "mlp_bias": True,
    "scale_embedding": False,
    "dropout": 0.0,
}
OF_KIND: dict[str, dict[str, Any]] = {
    "encoder_decoder": {
        "vocab_size": SOURCE_VOCABULARY,
        "decoder_vocab_size": TARGET_VOCABULARY,
        "share_encoder_decoder_embeddings": False,
    },
    "decoder": {"vocab_size": SOURCE_VOCABULARY, "pad_token_id": PAD, "bos_token_id": 2, "eos_token_id": 3},
    "encoder": {"vocab_size": SOURCE_VOCABULARY, "pad_token_id": PAD},
}

ACTIVATIONS = ("relu", "gelu_new", "silu")


def position_choices() -> list[dict[str, str]]:
    """Every position scheme, the sinusoidal one in each of its layouts."""
    choices = []
    for scheme in get_args(options.PositionEmbedding):
        layouts = get_args(options.SinusoidalLayout) if scheme == "sinusoidal" else [None]
        for layout in layouts:
            choices.append({"position_embedding_type": scheme} | ({"sinusoidal_layout": layout} if layout else {}))
    return choices


def combinations(activations: tuple[str, ...] = ACTIVATIONS) -> list[dict[str, str]]:
    """Every combination of the block's options."""
    axes = itertools.product(
        get_args(options.Norm),
        get_args(options.NormPlacement),
        get_args(options.FeedForward),
        position_choices(),
        activations,
    )
    return [
        {"norm": norm, "norm_placement": placement, "feed_forward": feed_forward, "hidden_act": act} | positions
        for norm, placement, feed_forward, positions, act in axes
    ]


# Switches outside the grid, each turned from the toy's value while all else stays.
SWITCHES: dict[str, list[dict[str, Any]]] = {
    "every kind": [
        {"scale_embedding": True},
        {"embedding_norm": True},
        {"embedding_norm": False},
        {"attention_bias": False},
        {"attention_bias": False, "mlp_bias": False},
        {"mlp_bias": False},
        {"tie_word_embeddings": False},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1},
        {"norm_eps": 0.3},
    ],
    "encoder_decoder": [
        {"encoder_layers": 1},
        {"decoder_vocab_size": SOURCE_VOCABULARY, "share_encoder_decoder_embeddings": True},
        {
            "decoder_vocab_size": SOURCE_VOCABULARY,
            "share_encoder_decoder_embeddings": True,
            "tie_word_embeddings": False,
        },
    ],
    "decoder": [{"type_vocab_size": 2}],
    "encoder": [{"type_vocab_size": 0}, {"type_vocab_size": 3}],
}


def name_of(overrides: dict[str, Any]) -> str:
    """A readable test id: option names alone where they speak for themselves."""
    return "-".join(value if isinstance(value, str) else f"{key}={value}" for key, value in overrides.items())


def toys(*kinds: str, activations: tuple[str, ...] = ACTIVATIONS) -> pytest.MarkDecorator:
    """Parametrise a test over `kind` and `overrides`: every combination and every switch."""
    cases = []
    for kind in kinds or KINDS:
        choices = combinations(activations) + SWITCHES["every kind"] + SWITCHES[kind]
        cases += [pytest.param(kind, choice, id=f"{kind}-{name_of(choice)}") for choice in choices]
    return pytest.mark.parametrize(("kind", "overrides"), cases)


def few_toys(*kinds: str) -> pytest.MarkDecorator:
    """Parametrise a slower test over `kind` and `overrides`: each position scheme, placements in turn."""
    placements = itertools.cycle(get_args(options.NormPlacement))
    norms, feed_forwards = itertools.cycle(get_args(options.Norm)), itertools.cycle(get_args(options.FeedForward))
    choices = [
        {"norm": next(norms), "norm_placement": next(placements), "feed_forward": next(feed_forwards)} | positions
        for positions in position_choices()
    ]
    cases = [pytest.param(k, c, id=f"{k}-{name_of(c)}") for k in kinds or KINDS for c in choices]
    return pytest.mark.parametrize(("kind", "overrides"), cases)


def toy_config(kind: str, **overrides: Any) -> BlockConfig:
    return KINDS[kind][0](**(SMALL | OF_KIND[kind] | overrides))


def toy(kind: str, model_class: type[PreTrainedModel] | None = None, **overrides: Any) -> PreTrainedModel:
    """A fresh toy in eval mode, with sharp weights."""
    return sharpen((model_class or KINDS[kind][1])(toy_config(kind, **overrides))).eval()


@cache
def _shared_toy(kind: str, overrides: tuple[tuple[str, Any], ...]) -> PreTrainedModel:
    return toy(kind, **dict(overrides)).requires_grad_(False)


def shared_toy(kind: str, overrides: dict[str, Any]) -> PreTrainedModel:
    """The same toy for every test that asks for it: to be read, not changed."""
    return _shared_toy(kind, tuple(overrides.items()))


@contextmanager
def attending(model: PreTrainedModel, implementation: str) -> Iterator[None]:
    """Let a shared toy attend in another way for a while."""
    before = model.config._attn_implementation
    model.set_attn_implementation(implementation)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@torch.no_grad()
def sharpen(model: nn.Module, seed: int = 1, focus: float = 2.0) -> nn.Module:
    """Draw every parameter: attention selects, and no bias, norm weight or table is left at a default."""
    generator = torch.Generator().manual_seed(seed)
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            noise = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            if isinstance(module, nn.Linear) and name == "weight":
                gain = focus if path.endswith(("q_proj", "k_proj")) else 1.0
                parameter.copy_(gain * noise / parameter.shape[1] ** 0.5)
            elif isinstance(module, nn.Embedding):
                parameter.copy_(noise)
            else:  # biases around 0, norm weights around 1
                parameter.copy_(0.3 * noise + float(name == "weight"))
    return model


def tokens(batch: int, length: int, vocabulary: int = SOURCE_VOCABULARY, seed: int = 2) -> torch.Tensor:
    """Words without special tokens, (B, T)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(FIRST_WORD, vocabulary, (batch, length), generator=generator)


def padding(batch: int, length: int, side: str = "right") -> torch.Tensor:
    """Mask (B, T) of rows that are one token shorter each."""
    mask = torch.ones(batch, length, dtype=torch.long)
    for row in range(batch):
        mask[row, : length - row] = 1
        mask[row, length - row :] = 0
    return mask if side == "right" else mask.flip(1)


def positions_of(mask: torch.Tensor) -> torch.Tensor:
    """Positions (B, T) that count tokens and not padding, as `generate` makes them."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


def inputs_of(kind: str, batch: int = 3, length: int = 7, side: str = "right") -> dict[str, torch.Tensor]:
    """A padded batch for a toy of this kind."""
    mask = padding(batch, length, side)
    ids = tokens(batch, length).masked_fill(mask == 0, PAD)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if side == "left":
        inputs["position_ids"] = positions_of(mask)
    if kind == "encoder_decoder":
        inputs["decoder_input_ids"] = tokens(batch, length - 2, TARGET_VOCABULARY, seed=3)
    return inputs


def labels_of(kind: str, batch: int = 3, length: int = 7, seed: int = 4) -> torch.Tensor:
    """Labels that fit `inputs_of`, some of them without loss."""
    if kind == "encoder_decoder":
        length, vocabulary = length - 2, TARGET_VOCABULARY
    else:
        vocabulary = SOURCE_VOCABULARY
    labels = tokens(batch, length, vocabulary, seed)
    labels[:, -1] = -100
    labels[0, 1] = -100
    return labels


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative RMS error: norm of the difference over norm of the reference."""
    assert actual.shape == expected.shape, f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    assert expected.norm() > 0, "the reference is zero: nothing to compare with"
    return ((actual.double() - expected.double()).norm() / expected.double().norm()).item()


def assert_close(actual: torch.Tensor, expected: torch.Tensor, what: str, tolerance: float = 1e-5) -> None:
    error = relative_error(actual, expected)
    assert error <= tolerance, f"{what}: relative error {error:.2e} > {tolerance:.0e}"
