"""CTranslate2: all three model types on a fast C++ engine, with 8-bit weights if asked for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerBase

import vanillaformer.modeling as modeling
from vanillaformer.configuration import layer_types
from vanillaformer.tokenization.options import MODEL_KINDS

from ..engine import Engine, start_token
from ..exporter import Exporter
from .engine import HEAD, CTranslate2Engine
from .specs import ACTIVATIONS, SpecBuilder, array, logit_shape

GENERATES = (modeling.VanillaEncoderDecoderForConditionalGeneration, modeling.VanillaDecoderForCausalLM)
CLASSIFIES = (
    modeling.VanillaDecoderForSequenceClassification,
    modeling.VanillaEncoderForMaskedLM,
    modeling.VanillaEncoderForPreTraining,
    modeling.VanillaEncoderForSequenceClassification,
    modeling.VanillaEncoderForTokenClassification,
)
LENGTH_DEPENDENT = ("dynamic", "longrope")  # scalings of rotary positions
STEPS = 63  # of int8 on each side of 0: two products with an input of up to 255 then fit in 16 bits
SMALLEST = STEPS / np.finfo(np.float32).max  # magnitude whose scale is a float32

Rule = tuple[str, Callable[[Any, str], bool], str]

# Values that the engine has; what is added to `configuration/options.py` is refused until somebody adds it here
KNOWN = {
    "norm": ("layer_norm", "rms_norm"),
    "norm_placement": ("post", "pre", "sandwich"),
    "feed_forward": ("plain", "gated"),
    "position_embedding_type": ("sinusoidal", "learned", "rotary", "alibi", "relative", "none"),
    "hidden_act": tuple(ACTIVATIONS),
}


def only(field: str, values: tuple[str, ...]) -> Rule:
    """Return the rule that a field has one of some values."""
    return field, lambda config, kind: getattr(config, field) not in values, f"it has {', '.join(map(repr, values))}"


# A field, when it stands in the way of a config of some kind, and what the engine has instead
RULES: list[Rule] = [
    *(only(option, values) for option, values in KNOWN.items()),
    (
        "block_layout",
        lambda config, kind: config.block_layout != "sequential" and kind != "decoder",
        "it has parallel sublayers in decoders without an encoder alone",
    ),
    (
        "block_layout",
        lambda config, kind: config.block_layout != "sequential" and config.norm_placement == "sandwich",
        "it has parallel sublayers with norm_placement='pre' alone",
    ),
    ("skip_first_norm", lambda config, kind: config.skip_first_norm, "it has a norm in every sublayer"),
    (
        "norm_bias",
        lambda config, kind: config.norm == "rms_norm" and config.norm_bias,
        "it has no bias in an RMSNorm",
    ),
    (
        "position_embedding_type",
        lambda config, kind: config.position_embedding_type == "alibi" and kind != "decoder",
        "it has ALiBi in decoders without an encoder alone",
    ),
    (
        "qk_norm",
        lambda config, kind: config.qk_norm not in (("none",) if kind == "encoder_decoder" else ("none", "head")),
        "it has one norm for each 'head', and in self-attention alone",
    ),
    (
        "attn_logit_softcapping",
        lambda config, kind: config.attn_logit_softcapping is not None,
        "it has no bound of attention scores",
    ),
    (
        "sliding_window",
        lambda config, kind: any(
            "sliding_attention" in layer_types(side) for side in (config, getattr(config, "encoder_side", config))
        ),
        "every token sees all others, or all before it",
    ),
    (
        "rope_parameters",
        lambda config, kind: any(entry.get("rope_type") in LENGTH_DEPENDENT for entry in rope_entries(config)),
        "its scalings do not depend on the input's length",
    ),
    (
        "rope_parameters",
        lambda config, kind: any(
            entry.get("rope_type") == "yarn" and entry.get("partial_rotary_factor", 1.0) != 1.0
            for entry in rope_entries(config)
        ),
        "it has YaRN's factor on whole heads alone",
    ),
    ("max_ngram", lambda config, kind: getattr(config, "max_ngram", 1) > 1, "its embeddings are of single tokens"),
    (
        "decoder_start_token_id",
        lambda config, kind: kind == "encoder_decoder" and config.decoder_start_token_id is None,
        "it needs a token to start from",
    ),
]


def rope_entries(config: Any) -> list[dict[str, Any]]:
    """Return the rotary parameters of each type of layer that has some."""
    types = {*layer_types(config), *layer_types(getattr(config, "encoder_side", config))}
    entries = [config.rope_of(layer_type) for layer_type in types]
    return [entry for entry in entries if entry]


class CTranslate2Exporter(Exporter):
    """Fills CTranslate2's specs: a Translator, a Generator or an Encoder.

    Its own tools read the folder too. What stands behind the stack of a classifier or a masked language model is kept
    beside it, in float32, and computed by our own class.
    """

    name = "ctranslate2"
    runtime = "ctranslate2"
    extra = "ctranslate2"
    packages = ("ctranslate2",)
    quantizations = (
        "float32", "int8", "int8_float32", "int8_float16", "int8_bfloat16", "float16", "bfloat16",
    )  # fmt: skip

    def obstacles(self, model_class: type, config: Any) -> list[str]:
        if model_class not in (*GENERATES, *CLASSIFIES):
            names = ", ".join(allowed.__name__ for allowed in (*GENERATES, *CLASSIFIES))
            return [f"it is none of {names}"]
        kind = MODEL_KINDS[config.model_type]
        return [
            f"{field}={getattr(config, field)!r}, but of CTranslate2 we know: {instead}"
            for field, stands_in_the_way, instead in RULES
            if stands_in_the_way(config, kind)
        ]

    def write(
        self,
        model: Any,
        folder: Path,
        quantization: str,
        tokenizer: PreTrainedTokenizerBase | None = None,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
    ) -> None:
        (ctranslate2,) = self.require()
        spec = build_spec(ctranslate2.specs, model, tokenizer, target_tokenizer)
        spec.config.layer_norm_epsilon = float(model.config.norm_eps)
        spec.validate()
        quantize(ctranslate2.specs.model_spec, spec, quantization)
        spec.save(str(folder))
        if isinstance(model, CLASSIFIES):
            head = {name: value for name, value in model.state_dict().items() if not name.startswith("model.")}
            save_file({name: torch.from_numpy(array(value)) for name, value in head.items()}, folder / HEAD)

    def load(self, folder: Path, device: str = "cpu") -> Engine:
        (ctranslate2,) = self.require()
        return CTranslate2Engine(ctranslate2, Path(folder), device)


# -------------------------------------------------------------------------------------------------- weights
def quantize(model_spec: Any, spec: Any, quantization: str) -> None:
    """Store a spec's weights as asked for: each row of a matrix in `STEPS` steps, or all in a shorter float.

    The engine's own rounding has 127 steps on each side, which its kernels for CPUs without VNNI cannot multiply: they
    add two products in 16 bits, and what exceeds them is lost.
    """
    rounds, rest = quantization.startswith("int8"), quantization.removeprefix("int8").lstrip("_")
    if not rounds:
        spec.optimize(quantization=quantization)
        return
    spec.optimize()

    def store(layer: Any, name: str, value: Any) -> None:
        if not isinstance(value, model_spec.Variable) or value.is_scalar():
            return
        key = name.rsplit("/", 1)[-1]
        if hasattr(layer, f"{key}_scale"):
            weight = value.to("float32").numpy()
            largest = np.abs(weight).max(axis=1, keepdims=True)
            scale = STEPS / np.where(largest > 0, largest, STEPS).clip(min=SMALLEST)
            setattr(layer, key, model_spec.NumpyVariable(np.rint(weight * scale).astype(np.int8)))
            setattr(layer, f"{key}_scale", model_spec.NumpyVariable(scale[:, 0].astype(np.float32)))
        elif rest and value.dtype == "float32":
            setattr(layer, key, value.to(rest))

    model_spec.visit_spec(spec, store)


# ---------------------------------------------------------------------------------------------------- specs
def build_spec(
    specs: Any,
    model: Any,
    tokenizer: PreTrainedTokenizerBase | None,
    target_tokenizer: PreTrainedTokenizerBase | None,
) -> Any:
    """Return the filled spec of a whole model, with its vocabularies."""
    config, builder = model.config, SpecBuilder(specs, model.config)
    if MODEL_KINDS[config.model_type] == "encoder_decoder":
        stacks = (
            builder.encoder(model.model.encoder),
            builder.decoder(model.model.decoder, model.lm_head, *logit_shape(config)),
        )
        spec = specs.TransformerSpec(*stacks)
        spec.register_source_vocabulary(vocabulary(tokenizer, config.vocab_size))
        target = vocabulary(target_tokenizer, config.target_vocab_size)
        spec.register_target_vocabulary(target)
        spec.config.decoder_start_token = target[start_token(config, model.generation_config)]
    else:
        target = vocabulary(tokenizer, config.vocab_size)
        if MODEL_KINDS[config.model_type] == "encoder":
            spec = specs.TransformerEncoderModelSpec(builder.encoder(model.model))
        elif isinstance(model, CLASSIFIES):
            spec = specs.TransformerDecoderModelSpec(builder.decoder(model.model, identity(config.hidden_size)))
        else:
            spec = specs.TransformerDecoderModelSpec(builder.decoder(model.model, model.lm_head, *logit_shape(config)))
        spec.register_vocabulary(target)
    name_special_tokens(spec.config, config, target, target_tokenizer)
    return spec


def identity(width: int) -> torch.nn.Linear:
    """Return an output layer whose logits are the states: the engine gives out nothing else of a decoder."""
    layer = torch.nn.Linear(width, width, bias=False)
    layer.weight.data = torch.eye(width)
    return layer


def vocabulary(tokenizer: PreTrainedTokenizerBase | None, size: int) -> list[str]:
    """Return a different name for each row of an embedding table: the tokenizer's tokens, else the numbers."""
    if tokenizer is None:
        return [str(token_id) for token_id in range(size)]
    names = {token_id: token for token, token_id in tokenizer.get_vocab().items()}
    return [names.get(token_id, f"<unused_{token_id}>") for token_id in range(size)]


def name_special_tokens(
    spec_config: Any, config: Any, names: list[str], tokenizer: PreTrainedTokenizerBase | None
) -> None:
    """Name the special tokens; a name that is not in the vocabulary would become one more token."""
    start, end = getattr(config, "bos_token_id", None), getattr(config, "eos_token_id", None)
    end = end[0] if isinstance(end, list) else end
    filler = next((token for token in (config.pad_token_id, end) if token is not None), 0)
    unknown = getattr(tokenizer, "unk_token_id", None)
    unknown = None if unknown is None or unknown >= len(names) else unknown
    chosen = {"unk_token": unknown, "bos_token": start, "eos_token": end}
    for name, token in chosen.items():
        setattr(spec_config, name, names[filler if token is None else token])
