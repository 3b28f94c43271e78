"""The canonical form of a config: two configs with the same form compute the same function."""

import copy
import dataclasses
import math
from typing import Any

from transformers import PreTrainedConfig

from vanillaformer.configuration import BlockConfig, VanillaImageEncoderConfig, layer_types
from vanillaformer.configuration.fields import PROJECTIONS
from vanillaformer.configuration.image_encoder import image_sides
from vanillaformer.configuration.names import ACTIVATION_ALIASES
from vanillaformer.modeling.parts.residual import RESIDUALS

# Fields that change how a model is trained, started or called, but not what it computes from its weights
NEUTRAL_FIELDS = {
    "dropout", "attention_dropout", "activation_dropout", "classifier_dropout", "layer_drop", "drop_path_rate",
    "initialization", "initializer_range", "use_cache", "is_encoder_decoder", "decoder_vocab_size", "architectures",
    "dtype", "transformers_version", "output_hidden_states", "return_dict", "chunk_size_feed_forward", "id2label",
    "label2id", "problem_type", "parametrization", "base_width",
}  # fmt: skip

# The same for native configs, with fields for numerical precision and names of labels
NATIVE_NEUTRAL_FIELDS = {
    "activation_dropout", "attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "classifier_dropout",
    "dropout", "dropout_rate", "embd_pdrop", "embedding_dropout", "hidden_dropout", "hidden_dropout_prob",
    "mlp_dropout", "qa_dropout", "resid_pdrop", "residual_dropout", "seq_classif_dropout", "summary_first_dropout",
    "decoder_layerdrop", "encoder_layerdrop", "layerdrop",
    "init_std", "initializer_cutoff_factor", "initializer_factor", "initializer_range",
    "summary_activation", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    "deterministic_flash_attn", "pretraining_tp", "reorder_and_upcast_attn", "slow_but_exact",
    "sparse_pred_ignore_index", "sparse_prediction",
    "cls_token_id", "sep_token_id", "forced_eos_token_id", "use_cache",
    "max_window_layers", "use_sliding_window",  # `layer_types` has it layer by layer
}  # fmt: skip

LM_HEADS = ("lm", "pretraining")
SAME_PATCHES = {"linear": "convolution"}

# Fields that only some heads read
OF_HEADS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("tie_word_embeddings", "lm_head_bias", "logit_scale", "final_logit_softcapping"), LM_HEADS),
    **dict.fromkeys(("scale_decoder_outputs", "output_distribution", "head_act"), LM_HEADS),
    "head_bias": ("lm", "sequence", "pretraining"),
    **dict.fromkeys(("classifier_pooling", "classifier_act", "classifier_norm"), ("sequence", "pretraining")),
    **dict.fromkeys(("wide_max_ngram", "wide_buckets"), ("sequence",)),
    **dict.fromkeys(("image_pooling", "pooler_norm", "pooler_act", "use_mask_token"), ("base", "image")),
}


def canonical_form(config: BlockConfig, head: str) -> dict[str, Any]:
    """Return the fields that determine what a model with this config and head computes, in one spelling.

    A field is left out if the head, or the values of other fields, keep the model from reading it.
    """
    names = [field.name for field in dataclasses.fields(config) if field.name not in NEUTRAL_FIELDS]
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
    if form.get("wide_max_ngram") == 0:
        del form["wide_buckets"]
    if form.get("logit_scale", 1.0) is None:
        form["logit_scale"] = 1.0
    if "head_act" in form and config.head_act is None:
        form["head_act"] = config.hidden_act
    if isinstance(config, VanillaImageEncoderConfig):
        form["image_size"] = image_sides(config.image_size)
        form["patch_embedding"] = SAME_PATCHES.get(config.patch_embedding, config.patch_embedding)
        form["depths"] = [stage.depth for stage in config.stages]
        form["stage_heads"] = [stage.config.num_attention_heads for stage in config.stages]
    for name in ("hidden_act", "head_act", "classifier_act", "pooler_act"):
        if name in form:
            form[name] = ACTIVATION_ALIASES.get(form[name], form[name])
    return form | _layers(config)


def _layers(config: Any) -> dict[str, Any]:
    """Return the fields that may differ between layers or between the two sides."""
    types = {"layer_types": layer_types(config)}
    form: dict[str, Any] = {}
    if config.is_encoder_decoder:
        form["decoder_vocab_size"] = config.target_vocab_size
        types["encoder_layer_types"] = layer_types(config.encoder_side)
    used = {layer_type for pattern in types.values() for layer_type in pattern}
    form["sliding_window"] = config.sliding_window if "sliding_attention" in used else None
    form |= {name: pattern[0] if len(set(pattern)) == 1 else pattern for name, pattern in types.items()}
    if config.position_embedding_type == "rotary":
        rotary = [config.is_rotary_layer(layer) for layer in range(len(types["layer_types"]))]
        form["rotary_layers"] = None if all(rotary) else rotary
        ropes = {layer_type: copy.deepcopy(config.rope_of(layer_type)) for layer_type in sorted(used)}
        for parameters in filter(None, ropes.values()):
            rotated = int(config.head_dim * parameters.get("partial_rotary_factor", 1.0))
            parameters["partial_rotary_factor"] = rotated / config.head_dim
        one, *others = ropes.values()
        form["rope_parameters"] = one if all(other == one for other in others) else ropes
    return form


def equal(one: Any, other: Any) -> bool:
    """Return whether two values of a field are the same except for rounding."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, int | float) and isinstance(other, int | float) and not isinstance(one, bool):
        return math.isclose(one, other, rel_tol=1e-9)
    return one == other


def differences(expected: dict[str, Any], actual: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the fields that differ between two canonical forms, with both values."""
    pairs = {name: (value, actual[name]) for name, value in expected.items() if name in actual}
    return {name: pair for name, pair in pairs.items() if not equal(*pair)}


def canonical_native_value(config: PreTrainedConfig, name: str) -> Any:
    """Return the value of a native field in one spelling."""
    value: Any = getattr(config, name, None)
    if name == "n_inner" and value is None:
        return 4 * config.n_embd
    if name == "attention_types":
        return config.attention_layers
    if name == "local_attention":
        return value // 2  # to either side
    if name in ("image_size", "patch_size"):
        return image_sides(value)
    if name == "rope_parameters" and "rope_type" in value:
        return {"partial_rotary_factor": 1.0} | value
    return ACTIVATION_ALIASES.get(value, value) if isinstance(value, str) else value
