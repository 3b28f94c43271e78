"""CTranslate2: all three model types on a fast C++ engine, optionally with 8-bit weights."""

from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerBase

from vanillaformer.hub.engines import ENGINES
from vanillaformer.tokenization.options import MODEL_KINDS

from ...tokens import start_token
from ..exporter import (
    CLASSIFIERS,
    PLAIN_BLOCKS,
    SCALES_ONCE,
    TRANSLATES,
    Exporter,
    ExportJob,
    Rule,
    array,
    only,
    ropes_of,
)
from .engine import HEAD, CTranslate2Engine
from .specs import ACTIVATIONS, SpecBuilder, logits_transform

STEPS = 63  # of int8 on each side of 0: two products with an input of up to 255 then fit in 16 bits
SMALLEST = STEPS / np.finfo(np.float32).max  # smallest magnitude whose scale is a float32


def is_decoder(config: Any) -> bool:
    return MODEL_KINDS[config.model_type] == "decoder"


# Values that the engine has; new values in `configuration/options.py` are refused until they are added here
KNOWN = {
    "norm": ("layer_norm", "rms_norm"),
    "norm_placement": ("post", "pre", "sandwich"),
    "feed_forward": ("plain", "gated"),
    "position_embedding_type": ("sinusoidal", "learned", "rotary", "alibi", "relative", "none"),
    "hidden_act": tuple(ACTIVATIONS),
}
RULES = (
    *(only(option, values, "CTranslate2 has") for option, values in KNOWN.items()),
    *PLAIN_BLOCKS,
    *TRANSLATES,
    SCALES_ONCE,
    Rule("block_layout", "CTranslate2 has parallel sublayers only in decoders without an encoder",
         lambda c: c.block_layout != "sequential" and not is_decoder(c)),
    Rule("block_layout", "CTranslate2 has parallel sublayers only with norm_placement='pre'",
         lambda c: c.block_layout != "sequential" and c.norm_placement == "sandwich"),
    Rule("norm_bias", "CTranslate2 has no bias in an RMSNorm", lambda c: c.norm == "rms_norm" and c.norm_bias),
    Rule("position_embedding_type", "CTranslate2 has ALiBi only in decoders without an encoder",
         lambda c: c.position_embedding_type == "alibi" and not is_decoder(c)),
    Rule("qk_norm", "CTranslate2 has one norm for each 'head', and only in self-attention",
         lambda c: c.qk_norm not in (("none",) if c.is_encoder_decoder else ("none", "head"))),
    Rule("rope_parameters", "CTranslate2 has YaRN's factor only on whole heads",
         lambda c: any(r.get("rope_type") == "yarn" and r.get("partial_rotary_factor", 1) != 1 for r in ropes_of(c))),
    Rule("max_ngram", "CTranslate2 has embeddings of single tokens", lambda c: c.max_ngram > 1),
)  # fmt: skip


class CTranslate2Exporter(Exporter):
    """Fills CTranslate2's specs: a Translator, a Generator or an Encoder.

    CTranslate2's tools read the folder too. The head of a classifier or a masked language model is saved next to it,
    in float32, and computed by our class.
    """

    info = ENGINES["ctranslate2"]
    engine_class = CTranslate2Engine
    rules = RULES
    quantizations = ("float32", "int8", "int8_float32", "int8_float16", "int8_bfloat16", "float16", "bfloat16")

    def write(self, job: ExportJob) -> None:
        (ctranslate2,) = self.info.writer.load()
        model = job.model
        spec = build_spec(ctranslate2.specs, model, job.tokenizer, job.target_tokenizer)
        spec.config.layer_norm_epsilon = float(model.config.norm_eps)
        spec.validate()
        quantize(ctranslate2.specs.model_spec, spec, job.quantization)
        spec.save(str(job.folder))
        if type(model) in CLASSIFIERS:
            head = {name: value for name, value in model.state_dict().items() if not name.startswith("model.")}
            save_file({name: torch.from_numpy(array(value)) for name, value in head.items()}, job.folder / HEAD)


EXPORTER = CTranslate2Exporter()


def quantize(model_spec: Any, spec: Any, quantization: str) -> None:
    """Store a spec's weights in the quantization: each row of a matrix in `STEPS` steps, or all in a shorter float.

    The engine's own rounding has 127 steps on each side, which its kernels for CPUs without VNNI cannot multiply: they
    add two products in 16 bits, which overflow.
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


def build_spec(
    specs: Any, model: Any, tokenizer: PreTrainedTokenizerBase | None, target_tokenizer: PreTrainedTokenizerBase | None
) -> Any:
    """Return the filled spec of a whole model, with its vocabularies."""
    config, builder = model.config, SpecBuilder(specs, model.config)
    kind = MODEL_KINDS[config.model_type]
    if kind == "encoder_decoder":
        decoder = builder.decoder(model.model.decoder, model.lm_head, *logits_transform(config))
        spec = specs.TransformerSpec(builder.encoder(model.model.encoder), decoder)
        spec.register_source_vocabulary(vocabulary(tokenizer, config.vocab_size))
        target = vocabulary(target_tokenizer, config.target_vocab_size)
        spec.register_target_vocabulary(target)
        spec.config.decoder_start_token = target[start_token(config, model.generation_config)]
    else:
        target = vocabulary(tokenizer, config.vocab_size)
        if kind == "encoder":
            spec = specs.TransformerEncoderModelSpec(builder.encoder(model.model))
        elif type(model) in CLASSIFIERS:  # the engine returns only a decoder's logits: here its states
            identity = torch.nn.Linear(config.hidden_size, config.hidden_size, bias=False)
            identity.weight.data = torch.eye(config.hidden_size)
            spec = specs.TransformerDecoderModelSpec(builder.decoder(model.model, identity))
        else:
            decoder = builder.decoder(model.model, model.lm_head, *logits_transform(config))
            spec = specs.TransformerDecoderModelSpec(decoder)
        spec.register_vocabulary(target)
    name_special_tokens(spec.config, config, target, target_tokenizer)
    return spec


def vocabulary(tokenizer: PreTrainedTokenizerBase | None, size: int) -> list[str]:
    """Return a unique name for each row of an embedding table: the tokenizer's tokens, or else numbers."""
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
