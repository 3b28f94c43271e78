"""Our weights in GGUF's form: the two shapes of decoder that llama.cpp has under the names `llama` and `gpt2`.

Scales of embeddings, queries and logits, and the 1 that some norms add to their weight, are multiplied into the
weights or added to them, because llama.cpp has no settings for them.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...mapping.fields import first_rope
from ..exporter import PLAIN_BLOCKS, SCALES_ONCE, Rule, array, norm_arrays, only, violations, wavelength_factors

Tensors = dict[str, np.ndarray]
Fields = dict[str, Any]
Change = Callable[[np.ndarray], np.ndarray]

TANH_GELU = ("gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh")
TABLES = ("learned", "sinusoidal", "none")  # positions that a table can hold


COMMON_RULES = (
    only("norm_placement", ("pre",), "llama and gpt2 have"),
    Rule("final_norm", "llama and gpt2 have a norm at the end", lambda c: c.final_norm is False),
    Rule("embedding_norm", "llama and gpt2 have no norm of the embeddings"),
    only("block_layout", ("sequential",), "llama and gpt2 have"),
    Rule("qk_norm", "llama and gpt2 have no norm of queries and keys", lambda c: c.qk_norm != "none"),
    *PLAIN_BLOCKS,
    Rule("final_logit_softcapping", "llama and gpt2 have no bound of logits"),
    Rule("lm_head_bias", "llama and gpt2 have no bias of the logits"),
    Rule("type_vocab_size", "llama and gpt2 have no token types", lambda c: c.type_vocab_size > 0),
)
RULES = {
    "llama": (
        only("norm", ("rms_norm",), "llama has"),
        Rule("norm_bias", "llama has no bias in a norm"),
        only("feed_forward", ("gated",), "llama has"),
        Rule("hidden_act", "llama has 'silu'", lambda c: c.hidden_act not in ("silu", "swish")),
        only("position_embedding_type", ("rotary",), "llama has"),
        Rule("rotary_layers", "llama has rotation in every layer"),
        Rule("rope_parameters", "llama turns whole heads", lambda c: rope_of(c).get("partial_rotary_factor", 1) != 1),
        SCALES_ONCE,
    ),
    "gpt2": (
        only("norm", ("layer_norm",), "gpt2 has"),
        only("feed_forward", ("plain",), "gpt2 has"),
        Rule("hidden_act", "gpt2 has 'gelu_new'", lambda c: c.hidden_act not in TANH_GELU),
        only("position_embedding_type", TABLES, "gpt2 has"),
        Rule(
            "head_dim", "gpt2 has hidden_size / heads", lambda c: c.head_dim * c.num_attention_heads != c.hidden_size
        ),
    ),
}


def rope_of(config: Any) -> dict[str, Any]:
    """Return the rotary parameters of all layers; layers with a window, which may have others, are refused."""
    return first_rope(config) or {}


def architecture_of(config: Any) -> tuple[str, list[str]]:
    """Return the nearest shape of a decoder, `llama` or `gpt2`, and its obstacles."""
    found = {name: violations(rules, config) for name, rules in RULES.items()}
    nearest = min(found, key=lambda name: len(found[name]))
    return nearest, violations(COMMON_RULES, config) + found[nearest]


def fields_of(config: Any, architecture: str) -> Fields:
    """Return the fields for the model, by key."""
    fields = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "vocab_size": config.vocab_size,
    }
    if architecture == "llama":
        fields |= {
            "attention.layer_norm_rms_epsilon": float(config.norm_eps),
            "attention.key_length": config.head_dim,
            "attention.value_length": config.head_dim,
            "rope.dimension_count": config.head_dim,
            "rope.freq_base": float(rope_of(config)["rope_theta"]),
        }
    else:
        fields["attention.layer_norm_epsilon"] = float(config.norm_eps)
    return {f"{architecture}.{name}": value for name, value in fields.items()}


def tensors_of(model: Any, architecture: str) -> Tensors:
    """Return a model's weights under GGUF's names."""
    stack, config, is_llama = model.model, model.config, architecture == "llama"
    words = array(stack.embed_tokens.weight) * np.float32(stack.embeddings.scale)
    tensors = {"token_embd.weight": words}
    logits = array(model.lm_head.weight) * np.float32(config.logit_scale or 1.0)
    if not np.array_equal(logits, words):  # without it the engine uses the embeddings
        tensors["output.weight"] = logits
    tensors |= norm("output_norm", stack.norm, config, biased=not is_llama)
    positions = stack.embeddings.positions
    for number, block in enumerate(stack.layers):
        name, mlp = f"blk.{number}", block.mlp
        tensors |= norm(f"{name}.attn_norm", block.self_attn_residual.norm, config, biased=not is_llama)
        tensors |= norm(f"{name}.ffn_norm", block.mlp_residual.norm, config, biased=not is_llama)
        if is_llama:
            tensors |= llama_attention(f"{name}.attn", block.self_attn, positions)
            tensors |= linear(f"{name}.ffn_gate", mlp.gate_proj)
        else:
            tensors |= gpt2_attention(f"{name}.attn", block.self_attn)
        tensors |= linear(f"{name}.ffn_up", mlp.up_proj, biased=not is_llama)
        tensors |= linear(f"{name}.ffn_down", mlp.down_proj, biased=not is_llama)
    if not is_llama:
        return tensors | position_table(positions, config)
    (rotation,) = positions.rotary_emb.values()
    factors = wavelength_factors(rotation.inv_freq, float(rope_of(config)["rope_theta"]))
    return tensors if np.allclose(factors, 1, rtol=1e-6) else tensors | {"rope_freqs.weight": factors}


def norm(name: str, module: Any, config: Any, *, biased: bool) -> Tensors:
    weight, bias = norm_arrays(module, config)
    return {f"{name}.weight": weight} | ({f"{name}.bias": bias} if biased else {})


def linear(name: str, module: Any, change: Change = lambda rows: rows, *, biased: bool = False) -> Tensors:
    """Return a linear map with changed rows of weight and bias; with `biased` a missing bias is zeros."""
    tensors = {f"{name}.weight": change(array(module.weight))}
    if module.bias is not None:
        tensors[f"{name}.bias"] = change(array(module.bias))
    elif biased:
        tensors[f"{name}.bias"] = np.zeros(module.out_features, np.float32)
    return tensors


def query_scale(module: Any) -> np.float32:
    """Return the factor on queries, in addition to the engine's 1/√K."""
    return np.float32(module.scaling * math.sqrt(module.head_dim))


def llama_attention(name: str, module: Any, positions: Any) -> Tensors:
    """Return Llama's four linear maps; neighboring dimensions of queries and keys are rotated together."""
    (rotation,) = positions.rotary_emb.values()
    scale = query_scale(module) * np.float32(rotation.attention_scaling**2)  # of YaRN, on queries and keys

    def permuted(rows: np.ndarray) -> np.ndarray:
        """Return the rows of each head in the order i, i + K/2, i + 1, i + 1 + K/2, ..."""
        if module.config.rope_interleaved:
            return rows
        halves = rows.reshape(-1, 2, module.head_dim // 2, *rows.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)

    queries = linear(f"{name}_q", module.q_proj, lambda rows: permuted(rows) * scale)
    others = linear(f"{name}_v", module.v_proj) | linear(f"{name}_output", module.o_proj)
    return queries | linear(f"{name}_k", module.k_proj, permuted) | others


def gpt2_attention(name: str, module: Any) -> Tensors:
    """Return GPT-2's two linear maps, the first for queries, keys and values together, with biases."""
    scale = query_scale(module)
    maps = [linear("", module.q_proj, lambda rows: rows * scale, biased=True)]
    maps += [linear("", projection, biased=True) for projection in (module.k_proj, module.v_proj)]
    fused = {f"{name}_qkv{part}": np.concatenate([each[part] for each in maps]) for part in maps[0]}
    return fused | linear(f"{name}_output", module.o_proj, biased=True)


def position_table(positions: Any, config: Any) -> Tensors:
    scheme, length = config.position_embedding_type, config.max_position_embeddings
    if scheme == "learned":
        table = array(positions.embed_positions.weight)[config.position_offset :]
    elif scheme == "sinusoidal":
        table = array(positions.table)
    else:
        table = np.zeros((length, config.hidden_size), np.float32)
    return {"position_embd.weight": np.ascontiguousarray(table[:length])}
