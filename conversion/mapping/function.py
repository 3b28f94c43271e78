"""What a config computes, in one form for all ways to say it: two configs with the same form are the same function."""

import dataclasses
import math
from typing import Any

from vanillaformer.configuration import BlockConfig, VanillaEncoderDecoderConfig, layer_types
from vanillaformer.configuration.fields import PROJECTIONS
from vanillaformer.configuration.options import ACTIVATION_ALIASES
from vanillaformer.modeling.parts.residual import RESIDUALS

# Fields that change how a model is trained, started or called, but not what it computes from its weights
NOT_FUNCTION = {
    "dropout", "attention_dropout", "activation_dropout", "classifier_dropout", "layer_drop",
    "initialization", "initializer_range", "use_cache", "is_encoder_decoder", "decoder_vocab_size", "architectures",
    "dtype", "transformers_version", "output_hidden_states", "return_dict", "chunk_size_feed_forward", "id2label",
    "label2id", "problem_type",
}  # fmt: skip

LM_HEADS = ("lm", "pretraining")
CLASSIFIERS = ("sequence", "pretraining")

# Fields that only some heads read
OF_HEADS = {
    "tie_word_embeddings": LM_HEADS,
    "lm_head_bias": LM_HEADS,
    "logit_scale": LM_HEADS,
    "final_logit_softcapping": LM_HEADS,
    "scale_decoder_outputs": LM_HEADS,
    "head_act": LM_HEADS,
    "head_bias": ("lm", "sequence", "pretraining"),
    "classifier_pooling": CLASSIFIERS,
    "classifier_act": CLASSIFIERS,
    "classifier_norm": CLASSIFIERS,
}


def function_of(config: BlockConfig, head: str) -> dict[str, Any]:
    """Return what a model with this config and head computes, by the names of the fields that say it.

    A field is left out where the head or what was chosen for another field does not read it.
    """
    names = [field.name for field in dataclasses.fields(config) if field.name not in NOT_FUNCTION]
    form = {
        name: getattr(config, name) for name in names if head in OF_HEADS.get(name, (head,)) and config.reads(name)
    }
    form["attention_bias"] = [name for name in PROJECTIONS if config.has_attention_bias(name)]
    if config.attention_scale is None:
        form["attention_scale"] = config.head_dim**-0.5
    if config.final_norm is None:
        form["final_norm"] = RESIDUALS[config.norm_placement].needs_final_norm
    if form.get("max_ngram") == 1:
        del form["ngram_buckets"]
    if form.get("logit_scale", 1.0) is None:
        form["logit_scale"] = 1.0
    if "head_act" in form and config.head_act is None:
        form["head_act"] = config.hidden_act
    for name in ("hidden_act", "head_act", "classifier_act"):
        if name in form:
            form[name] = ACTIVATION_ALIASES.get(form[name], form[name])
    return form | _layers(config)


def _layers(config: BlockConfig) -> dict[str, Any]:
    """Return what may differ between layers or between the two sides."""
    types = {"layer_types": layer_types(config)}
    form: dict[str, Any] = {}
    if isinstance(config, VanillaEncoderDecoderConfig):
        form["decoder_vocab_size"] = config.target_vocab_size
        types["encoder_layer_types"] = layer_types(config.encoder_side)
    used = {layer_type for pattern in types.values() for layer_type in pattern}
    form["sliding_window"] = config.sliding_window if "sliding_attention" in used else None
    form |= {name: pattern[0] if len(set(pattern)) == 1 else pattern for name, pattern in types.items()}
    if config.position_embedding_type == "rotary":
        turned = [config.is_rotary_layer(layer) for layer in range(len(types["layer_types"]))]
        form["rotary_layers"] = None if all(turned) else turned
        ropes = {layer_type: _rope(config, layer_type) for layer_type in sorted(used)}
        one, *others = ropes.values()
        form["rope_parameters"] = one if all(other == one for other in others) else ropes
    return form


def _rope(config: BlockConfig, layer_type: str) -> dict[str, Any] | None:
    parameters = config.rope_of(layer_type)
    if parameters is None:
        return None
    part = parameters.get("partial_rotary_factor", 1.0)
    return {**parameters, "partial_rotary_factor": int(config.head_dim * part) / config.head_dim}


def equal(one: Any, other: Any) -> bool:
    """Whether two values of a field are the same but for rounding."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, int | float) and isinstance(other, int | float) and not isinstance(one, bool):
        return math.isclose(one, other, rel_tol=1e-9)
    return one == other


def differences(expected: dict[str, Any], actual: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the fields of two forms that differ, with both values."""
    pairs = {name: (value, actual[name]) for name, value in expected.items() if name in actual}
    return {name: pair for name, pair in pairs.items() if not equal(*pair)}
