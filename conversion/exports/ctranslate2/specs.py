"""Our weights in CTranslate2's specs, which its converters fill for other architectures.

A spec is CTranslate2's description of a model: an attribute per tensor or setting. Its constructors know the layouts
of some architectures; `put` adds other attributes that the engine reads. All tensors are copies in float32, because
quantization changes them in place.
"""

import math
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from vanillaformer.configuration import layer_types
from vanillaformer.modeling.stack import TokenStack

from ..exporter import array, norm_arrays, wavelength_factors

# Our names of activations, and CTranslate2's
ACTIVATIONS = {
    "relu": "RELU",
    **dict.fromkeys(("gelu", "gelu_python"), "GELU"),
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh"), "GELUTanh"),
    **dict.fromkeys(("silu", "swish"), "SWISH"),
    **{"quick_gelu": "GELUSigmoid", "tanh": "Tanh", "sigmoid": "Sigmoid"},
}


def put(spec: Any, **values: Any) -> None:
    """Set attributes that the engine reads, including those that the spec's constructor does not define."""
    vars(spec).update(values)


class SpecBuilder:
    """Makes the specs of one model's stacks; `specs` is the module `ctranslate2.specs`."""

    def __init__(self, specs: ModuleType, config: Any):
        self.specs = specs
        self.config = config
        self.activation = specs.Activation[ACTIVATIONS[config.hidden_act]]
        self.rms_norm = config.norm == "rms_norm"
        self.sandwich = config.norm_placement == "sandwich"
        self.parallel = config.block_layout != "sequential"

    def norm(self, module: Any) -> Any:
        """Return the spec of a norm; the engine takes one with a bias for LayerNorm, one without for RMSNorm."""
        spec = self.specs.common_spec.LayerNormSpec(rms_norm=self.rms_norm)
        spec.gamma, bias = norm_arrays(module, self.config)
        if not self.rms_norm:
            spec.beta = bias
        return spec

    def linear(self, *modules: nn.Linear) -> Any:
        """Return the spec of a linear map, or of several with one input as one."""
        spec = self.specs.common_spec.LinearSpec()
        spec.weight = array(torch.cat(tuple(module.weight for module in modules)))
        if any(module.bias is not None for module in modules):
            biases = (m.weight.new_zeros(m.out_features) if m.bias is None else m.bias for m in modules)
            spec.bias = array(torch.cat(tuple(biases)))
        return spec

    def fill_attention(self, spec: Any, module: Any, linear: list[Any]) -> None:
        spec.linear = [*linear, self.linear(module.o_proj)]
        spec.queries_scale = float(module.scaling)
        if module.q_norm is not None:
            put(spec, q_norm=self.norm(module.q_norm), k_norm=self.norm(module.k_norm))

    def fill_self_attention(self, spec: Any, module: Any, positions: Any, layer_idx: int) -> None:
        self.fill_attention(spec, module, [self.linear(module.q_proj, module.k_proj, module.v_proj)])
        scheme = self.config.position_embedding_type
        if scheme == "relative":
            table = positions.relative_attention_bias[positions.table_index(layer_idx)].weight
            distance = np.dtype("int32").type(self.config.relative_attention_max_distance)
            put(spec, relative_attention_bias=array(table), relative_attention_max_distance=distance)
        elif scheme in ("rotary", "none"):
            self.fill_rotation(spec, module, positions, layer_idx)

    def fill_rotation(self, spec: Any, module: Any, positions: Any, layer_idx: int) -> None:
        """Set the rotation of a layer's queries and keys, by factors on the wavelengths (the engine's "Su").

        Thus the engine computes every scaling that does not depend on the input's length. A layer without rotation
        rotates two dimensions by 0, because the engine would add sinusoids to a model without any positions.
        """
        rotation, base = None, 10000.0
        if self.config.position_embedding_type != "none" and self.config.is_rotary_layer(layer_idx):
            name = "all" if positions.shared else layer_types(module.config)[layer_idx]
            rotation = dict(positions.rotary_emb.items()).get(name)
        factors = wavelength_factors(torch.zeros(1) if rotation is None else rotation.inv_freq, base)
        limit = np.dtype("int32").type(self.config.max_position_embeddings)
        put(
            spec,
            rotary_dim=np.dtype("int32").type(2 * len(factors)),
            rotary_interleave=self.config.position_embedding_type == "rotary" and self.config.rope_interleaved,
            rotary_base=np.float32(base),
            rotary_scaling_type=np.int8(self.specs.RotaryScalingType.Su),
            rotary_scaling_long_factor=factors,
            rotary_scaling_short_factor=factors.copy(),
            original_max_position_embeddings=limit,
            max_position_embeddings=limit,
        )
        if rotation is not None:  # YaRN's factor on sines and cosines, that is on queries and keys
            spec.queries_scale = float(module.scaling * rotation.attention_scaling**2)

    def fill_feed_forward(self, spec: Any, module: Any) -> None:
        spec.linear_1 = self.linear(module.down_proj)
        if self.config.feed_forward == "gated":
            spec.linear_0, spec.linear_0_noact = self.linear(module.gate_proj), self.linear(module.up_proj)
        else:
            spec.linear_0 = self.linear(module.up_proj)

    def fill_norms(self, spec: Any, block: Any) -> None:
        """Set a block's norms as its layout and placement have them."""
        attention, feed_forward = block.self_attn_residual, block.mlp_residual
        if self.config.block_layout == "parallel_shared_norm":
            spec.shared_layer_norm = self.norm(block.norm)
        elif self.parallel:
            spec.input_layer_norm = self.norm(attention.norm)
            spec.post_attention_layer_norm = self.norm(feed_forward.norm)
        elif self.sandwich:
            spec.input_layer_norm = self.norm(attention.norm)
            spec.post_attention_layer_norm = self.norm(attention.out_norm)
            spec.pre_feedforward_layer_norm = self.norm(feed_forward.norm)
            spec.post_feedforward_layer_norm = self.norm(feed_forward.out_norm)
        else:
            spec.self_attention.layer_norm = self.norm(attention.norm)
            spec.ffn.layer_norm = self.norm(feed_forward.norm)

    def fill_cross_attention(self, spec: Any, block: Any) -> None:
        module, residual = block.cross_attn, block.cross_attn_residual
        maps = [self.linear(module.q_proj), self.linear(module.k_proj, module.v_proj)]
        self.fill_attention(spec.attention, module, maps)
        if self.sandwich:
            spec.external_pre_encoder_attention_layer_norm = self.norm(residual.norm)
            spec.external_post_encoder_attention_layer_norm = self.norm(residual.out_norm)
        else:
            spec.attention.layer_norm = self.norm(residual.norm)

    def fill_stack(self, spec: Any, stack: TokenStack) -> None:
        """Set the positions, norms and blocks of an encoder or decoder."""
        embeddings = stack.embeddings
        vars(spec).pop("position_encodings", None)  # the constructor's sinusoids
        spec.scale_embeddings = float(embeddings.scale)
        if self.config.position_embedding_type in ("learned", "sinusoidal"):
            positions: Any = embeddings.positions
            learned = self.config.position_embedding_type == "learned"
            table = self.specs.transformer_spec.PositionEncoderSpec()
            table.encodings = array(
                positions.embed_positions.weight[positions.offset :] if learned else positions.table
            )
            put(spec, position_encodings=table)
        if self.config.embedding_norm:
            put(spec, layernorm_embedding=self.norm(embeddings.norm))
        if not isinstance(stack.norm, nn.Identity):
            put(spec, layer_norm=self.norm(stack.norm))
        for layer_idx, (layer, block) in enumerate(zip(spec.layer, stack.layers)):
            self.fill_self_attention(layer.self_attention, block.self_attn, embeddings.positions, layer_idx)
            if stack.has_cross_attention:
                self.fill_cross_attention(layer, block)
            self.fill_feed_forward(layer.ffn, block.mlp)
            self.fill_norms(layer, block)

    def common(self) -> dict[str, Any]:
        """Return the arguments that the constructors of encoder and decoder specs share."""
        config = self.config
        return {
            "num_heads": config.num_attention_heads,
            "num_heads_kv": config.num_key_value_heads,
            "head_dim": config.head_dim,
            "pre_norm": config.norm_placement != "post",
            "no_final_norm": True,  # set with the other norms
            "activation": self.activation,
            "ffn_glu": config.feed_forward == "gated",
            "rms_norm": self.rms_norm,
            "pre_post_layer_norm": self.sandwich,
            "relative_attention_bias": config.position_embedding_type == "relative",
        }

    def encoder(self, stack: TokenStack) -> Any:
        """Return the spec of an encoder, with an input for token types if the model has any."""
        types = getattr(stack.embeddings.token_types, "embed_token_types", None)
        spec = self.specs.TransformerEncoderSpec(
            len(stack.layers),
            num_source_embeddings=1 if types is None else 2,
            embeddings_merge=self.specs.EmbeddingsMerge.ADD,
            **self.common(),
        )
        spec.embeddings[0].weight = array(stack.embed_tokens.weight)
        if types is not None:  # ours are added after the scale
            spec.embeddings[1].weight = array(types.weight / stack.embeddings.scale)
        self.fill_stack(spec, stack)
        return spec

    def decoder(self, stack: TokenStack, head: nn.Linear, scale: float = 1.0, cap: float | None = None) -> Any:
        """Return the spec of a decoder and its output layer; `scale` and `cap` transform the logits."""
        config = self.config
        spec = self.specs.TransformerDecoderSpec(
            len(stack.layers),
            with_encoder_attention=stack.has_cross_attention,
            alibi=config.position_embedding_type == "alibi",
            parallel_residual=self.parallel,
            shared_layer_norm=config.block_layout == "parallel_shared_norm",
            external_pre_post_encoder_layers=self.sandwich and stack.has_cross_attention,
            **self.common(),
        )
        weight = stack.embed_tokens.weight
        types = getattr(stack.embeddings.token_types, "embed_token_types", None)
        if types is not None:  # the engine knows one type: that of tokens without a given one
            weight = weight + types.weight[0] / stack.embeddings.scale
        spec.embeddings.weight = array(weight)
        spec.projection = self.linear(head)
        if scale != 1.0:
            spec.scale_outputs = scale
            if head.bias is not None:  # the engine scales the states, not the logits
                spec.projection.bias *= scale
        if cap is not None:
            spec.final_logit_softcapping = float(cap)
        self.fill_stack(spec, stack)
        return spec


def logits_transform(config: Any) -> tuple[float, float | None]:
    """Return the factor and the bound of the logits, as `modeling/heads.py` applies them."""
    scale = 1.0 if config.logit_scale is None else float(config.logit_scale)
    if getattr(config, "scale_decoder_outputs", False):
        scale /= math.sqrt(config.hidden_size)
    return scale, config.final_logit_softcapping
