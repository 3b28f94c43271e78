"""Two-layer toys of every option, with weights sharp enough that nothing hides behind a default.

Which options there are, and which of them meet in one model, `axes.py` reads from the configs.
"""

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import transformers
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from transformers import PreTrainedModel, Seq2SeqTrainer, Trainer, TrainingArguments, masking_utils
from transformers.integrations.flex_attention import WrappedFlexAttention

import vanillaformer
from vanillaformer import VanillaDecoderForCausalLM, VanillaEncoderForMaskedLM, VanillaRecurrentEncoderDecoderConfig
from vanillaformer.configuration import VanillaConfig, options
from vanillaformer.modeling.parts.norms import UNIT_OFFSET_NORMS
from vanillaformer.modeling.parts.residual import RESIDUALS, NormedResidual

from . import axes
from .axes import CONFIGS, FIRST_WORD, OF_KIND, PAD, SOURCE_VOCABULARY, TARGET_VOCABULARY, config_of, cover, packed

KINDS: dict[str, tuple[type[VanillaConfig], type[PreTrainedModel]]] = {
    "encoder_decoder": (CONFIGS["encoder_decoder"], vanillaformer.VanillaEncoderDecoderForConditionalGeneration),
    "decoder": (CONFIGS["decoder"], VanillaDecoderForCausalLM),
    "encoder": (CONFIGS["encoder"], VanillaEncoderForMaskedLM),
}
# Tested in files of their own, and in what holds for every model
ALL_KINDS = KINDS | {
    "image_encoder": (axes.ALL_CONFIGS["image_encoder"], vanillaformer.VanillaImageEncoderForImageClassification),
    "recurrent_encoder_decoder": (VanillaRecurrentEncoderDecoderConfig,
                                  vanillaformer.VanillaRecurrentEncoderDecoderForConditionalGeneration),
}  # fmt: skip
TEXT_CLASSIFIERS = {
    "decoder": vanillaformer.VanillaDecoderForSequenceClassification,
    "encoder": vanillaformer.VanillaEncoderForSequenceClassification,
}
# Image models by what their layers are made of; windows of 3 by 3 do not divide 5 by 7 patches
IMAGE_SHAPES: dict[str, dict[str, Any]] = {
    "vit": {},
    "swin": axes.PATCHES_ONLY | {
        "image_size": [20, 28], "depths": [2, 1], "num_hidden_layers": 3, "window_size": 3, "patch_norm": True,
        "position_embedding_type": "window_relative",
    },
    "dinov2": {
        "layer_scale_init_value": 0.5, "image_pooling": "first_and_mean", "num_register_tokens": 2,
        "feed_forward": "gated", "hidden_act": "silu",
    },
}  # fmt: skip
RECURRENT = OF_KIND["encoder_decoder"] | {"hidden_size": 24, "num_hidden_layers": 2, "input_feeding": True}


def position_choices() -> list[dict[str, str]]:
    """Every position scheme, the sinusoidal one in each of its layouts."""
    choices = []
    for scheme in get_args(options.PositionEmbedding):
        layouts = get_args(options.SinusoidalLayout) if scheme == "sinusoidal" else [None]
        for layout in layouts:
            choices.append({"position_embedding_type": scheme} | ({"sinusoidal_layout": layout} if layout else {}))
    return choices


def name_of(overrides: dict[str, Any]) -> str:
    """A readable test id: option names alone where they speak for themselves, a number for a whole config."""
    if len(overrides) > 6:
        return f"config-{zlib.crc32(json.dumps(overrides).encode()):08x}"
    parts = []
    for key, value in overrides.items():
        if isinstance(value, dict):
            value = value.get("rope_type", "by-type")
        parts.append(value if isinstance(value, str) else f"{key}={value}")
    return "-".join(parts)


def over(choices: dict[str, list[dict[str, Any]]]) -> pytest.MarkDecorator:
    """Parametrise a test over `kind` and `overrides`."""
    cases = [pytest.param(kind, c, id=f"{kind}-{name_of(c)}") for kind, some in choices.items() for c in some]
    return pytest.mark.parametrize(("kind", "overrides"), cases)


def toys(*kinds: str, times: int | None = None) -> pytest.MarkDecorator:
    """Parametrise a test over configs that cover every pair of values, or every value `times` times."""
    return over({kind: cover(kind, times) for kind in kinds or KINDS})


def every_value(*kinds: str) -> pytest.MarkDecorator:
    """Parametrise a slower test over few configs, in which every value of every axis stands once."""
    return over({kind: packed(kind) for kind in kinds or KINDS})


def few_choices() -> list[dict[str, Any]]:
    """Each position scheme and each placement, in step."""
    positions, placements = position_choices(), get_args(options.NormPlacement)
    norms, feed_forwards = get_args(options.Norm), get_args(options.FeedForward)
    return [
        {"norm": norms[number % len(norms)], "norm_placement": placements[number % len(placements)],
         "feed_forward": feed_forwards[number // 2 % len(feed_forwards)], **positions[number % len(positions)]}
        for number in range(max(len(positions), len(placements)))
    ]  # fmt: skip


def few_toys(*kinds: str) -> pytest.MarkDecorator:
    """Parametrise a slow test over `few_choices`."""
    return over(dict.fromkeys(kinds or KINDS, few_choices()))


def toy_config(kind: str, **overrides: Any) -> VanillaConfig:
    if kind == "recurrent_encoder_decoder":
        return VanillaRecurrentEncoderDecoderConfig(**(RECURRENT | overrides))
    return config_of(kind, overrides)


def toy(kind: str, model_class: type[PreTrainedModel] | None = None, **overrides: Any) -> PreTrainedModel:
    """A fresh toy in eval mode, with sharp weights."""
    return sharpen((model_class or ALL_KINDS[kind][1])(toy_config(kind, **overrides))).eval()


@cache
def _shared_toy(kind: str, overrides: str) -> PreTrainedModel:
    return toy(kind, **json.loads(overrides)).requires_grad_(False).double()


def shared_toy(kind: str, overrides: dict[str, Any]) -> PreTrainedModel:
    """The same toy for every test that asks for it: to be read, not changed.

    In float64, for sharp weights multiply the rounding, which differs from processor to processor.
    """
    return _shared_toy(kind, json.dumps(overrides))


@contextmanager
def attending(model: PreTrainedModel, implementation: str) -> Iterator[None]:
    """Let a shared toy attend in another way for a while."""
    before = model.config._attn_implementation
    model.set_attn_implementation(implementation)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def ways_to_attend(model: PreTrainedModel, *implementations: str) -> list[str]:
    """Those of the attention implementations that can compute what the config says."""
    return [name for name in implementations if model.config.attention_obstacle(name) is None]


def plain_flex_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run flex attention as plain torch operations: its compilation for a processor takes half a minute a shape.

    Not compiled at all, for plain operations too are traced first, for half a second, each time.
    """

    def uncompiled_mask(*args, _compile=None, **kwargs):
        return create_block_mask(*args, **kwargs)

    untraced = "torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
    monkeypatch.setattr(untraced, True, raising=False)
    monkeypatch.setattr(masking_utils, "create_block_mask", uncompiled_mask)
    monkeypatch.setattr(WrappedFlexAttention, "__init__", lambda self, training: None)
    monkeypatch.setattr(WrappedFlexAttention, "__call__", lambda self: flex_attention)


@torch.no_grad()
def sharpen(model: nn.Module, seed: int = 1, focus: float = 2.0) -> nn.Module:
    """Draw every parameter: attention selects, and no bias, norm weight or table is left at a default."""
    generator = torch.Generator().manual_seed(seed)
    config = getattr(model, "config", None)
    placement = getattr(config, "norm_placement", None)
    # Gentler maps and embeddings keep a stream in range that no norm does, to whose length every sublayer adds
    bare = placement in RESIDUALS and not issubclass(RESIDUALS[placement], NormedResidual)
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            noise = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            if isinstance(module, nn.Linear | nn.Conv2d) and name == "weight":
                gain = focus if path.endswith(("q_proj", "k_proj")) else 1.0
                gain *= 0.5 if bare and "layers." in path else 1.0
                parameter.copy_(gain * noise / parameter[0].numel() ** 0.5)
            elif isinstance(module, nn.Embedding):
                scaled = bare and config.scale_embedding and path.endswith("embed_tokens")
                parameter.copy_(noise / config.hidden_size**0.5 if scaled else noise)
            else:  # biases and what is added to 1 around 0, norm weights and factors on the stream around 1
                around_0 = name == "bias" or isinstance(module, (nn.RNNBase, *UNIT_OFFSET_NORMS.values()))
                parameter.copy_(0.3 * noise + float(not around_0))
    return model


def tokens(batch: int, length: int, vocabulary: int = SOURCE_VOCABULARY, seed: int = 2) -> torch.Tensor:
    """Words without special tokens, (B, T)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(FIRST_WORD, vocabulary, (batch, length), generator=generator)


def padding(batch: int, length: int, side: str = "right") -> torch.Tensor:
    """Mask (B, T) of rows that are one token shorter each."""
    mask = (torch.arange(length) < length - torch.arange(batch)[:, None]).long()
    return mask if side == "right" else mask.flip(1)


def ragged(
    lengths: Sequence[int], vocabulary: int = SOURCE_VOCABULARY, seed: int = 2, left: bool = False
) -> dict[str, torch.Tensor]:
    """Rows of these lengths and their mask, (B, T), with padding on the right, or on the left."""
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    rows = {"input_ids": tokens(*mask.shape, vocabulary, seed).masked_fill(~mask, PAD), "attention_mask": mask.long()}
    return {name: value.flip(1) for name, value in rows.items()} if left else rows


def pixels(batch: int = 3, height: int = 8, width: int = 12, channels: int = 2, seed: int = 2) -> torch.Tensor:
    """Images (B, C, height, width)."""
    return torch.randn(batch, channels, height, width, generator=torch.Generator().manual_seed(seed))


def positions_of(mask: torch.Tensor) -> torch.Tensor:
    """Positions (B, T) that count tokens and not padding, as `generate` makes them."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


def inputs_of(
    kind: str, batch: int = 3, length: int = 7, side: str = "right", config: Any = None
) -> dict[str, torch.Tensor]:
    """A padded batch for a toy of this kind, or images of the size that a config says."""
    if kind == "image_encoder":
        size = {} if config is None else {"channels": config.num_channels}
        sides = (8, 12) if config is None else [config.patch_size * patches for patches in config.grid]
        return {"pixel_values": pixels(batch, *sides, **size)}
    mask = padding(batch, length, side)
    inputs = {"input_ids": tokens(batch, length).masked_fill(mask == 0, PAD), "attention_mask": mask}
    if side == "left":
        inputs["position_ids"] = positions_of(mask)
    if kind.endswith("encoder_decoder"):
        inputs["decoder_input_ids"] = tokens(batch, length - 2, TARGET_VOCABULARY, seed=3)
    return inputs


def labels_of(kind: str, batch: int = 3, length: int = 7, seed: int = 4) -> torch.Tensor:
    """Labels that fit `inputs_of`, some of them without loss; the classes of images."""
    if kind == "image_encoder":
        return torch.tensor([1, 0, 2, 4])[:batch]
    pair = kind.endswith("encoder_decoder")
    labels = tokens(batch, length - 2 * pair, TARGET_VOCABULARY if pair else SOURCE_VOCABULARY, seed)
    labels[:, -1] = labels[0, 1] = -100
    return labels


def assert_refused(parts: Iterable[str], make: Callable[..., Any], *arguments: Any, **fields: Any) -> None:
    """A config cannot be made so: the error has all these parts."""
    with pytest.raises((ValueError, StrictDataclassError)) as info:
        make(*arguments, **fields)
    for part in parts:
        assert part in str(info.value), f"{part!r} is missing from: {info.value}"


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative RMS error: norm of the difference over norm of the reference."""
    assert actual.shape == expected.shape, f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    assert expected.norm() > 0, "the reference is zero: nothing to compare with"
    return ((actual.double() - expected.double()).norm() / expected.double().norm()).item()


def assert_close(actual: torch.Tensor, expected: torch.Tensor, what: str, tolerance: float | None = None) -> None:
    """Compare by the relative error: a few layers round by less than 1e-5 in float32, by less than 1e-9 in float64."""
    tolerance = tolerance or (1e-9 if actual.dtype == expected.dtype == torch.float64 else 1e-5)
    error = relative_error(actual, expected)
    assert error <= tolerance, f"{what}: relative error {error:.2e} > {tolerance:.0e}"


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    """Take the gradients out of a model."""
    found = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    model.zero_grad()
    return found


def assert_same_gradients(
    found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], own: float, largest: float
) -> None:
    """Compare each by its own norm and the largest norm: a bias on all keys has none but rounding."""
    assert found.keys() == expected.keys()
    scale = max(value.norm() for value in expected.values())
    assert scale > 0
    for name, value in expected.items():
        assert (found[name] - value).norm() <= own * value.norm() + largest * scale, name


def step_of_trainer(
    model: PreTrainedModel, inputs: dict[str, torch.Tensor], size: int, folder: Path, smoothing: float = 0.0
) -> torch.Tensor:
    """What a step of gradient descent over all rows, in batches of `size`, changes of the parameters."""
    trainer_class, arguments = Trainer, TrainingArguments
    if model.config.is_encoder_decoder:
        trainer_class, arguments = Seq2SeqTrainer, transformers.Seq2SeqTrainingArguments
    rows = [{name: value[row] for name, value in inputs.items()} for row in range(len(inputs["input_ids"]))]
    before = torch.cat([weight.detach().flatten().clone() for weight in model.parameters()])
    trainer_class(model.train(), arguments(
        str(folder), per_device_train_batch_size=size, gradient_accumulation_steps=len(rows) // size, max_steps=1,
        optim="sgd", learning_rate=1.0, lr_scheduler_type="constant", max_grad_norm=0.0, report_to="none",
        use_cpu=True, save_strategy="no", disable_tqdm=True, logging_strategy="no", remove_unused_columns=False,
        label_smoothing_factor=smoothing, train_sampling_strategy="sequential",
    ), train_dataset=rows).train()  # fmt: skip
    return torch.cat([weight.detach().flatten() for weight in model.parameters()]) - before


def with_autocast(model: Any) -> Any:
    """Return a model as accelerate prepares it for `bf16=True`, whatever was prepared before in this process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    try:
        return Accelerator(mixed_precision="bf16", cpu=True).prepare(model)
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
