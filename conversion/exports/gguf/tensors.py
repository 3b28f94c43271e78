"""Our weights in GGUF's form: the two shapes of decoder that llama.cpp has under the names `llama` and `gpt2`.

Without a setting in llama.cpp, these are multiplied into the weights: scales of embeddings, queries and logits, and
the 1 that some norms add to their weight.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...mapping.fields import first_rope
from ..exporter import PLAIN_BLOCKS, SCALES_ONCE, Rule, array, only, violations, wavelength_factors

Tensors = dict[str, np.ndarray]
Fields = dict[str, Any]

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
    """Return the rotary parameters of all layers: those with a window, which may have others, are refused."""
    return first_rope(config) or {}


def architecture_of(config: Any) -> tuple[str, list[str]]:
    """Return the nearest shape of a decoder, `llama` or `gpt2`, and its obstacles."""
    found = {name: violations(rules, config) for name, rules in RULES.items()}
    nearest = min(found, key=lambda name: len(found[name]))
    return nearest, violations(COMMON_RULES, config) + found[nearest]


def fields_of(config: Any, architecture: str) -> Fields:
    """Return the fields on the model, by key."""
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


class DecoderTensors:
    """The tensors that both shapes have; `build` returns a model's weights under GGUF's names."""

    norm_bias = False

    def __init__(self, model: Any):
        self.model = model
        self.config = model.config
        self.tensors: Tensors = {}

    def build(self) -> Tensors:
        stack, config = self.model.model, self.config
        words = array(stack.embed_tokens.weight)
        self.tensors["token_embd.weight"] = words * np.float32(stack.embeddings.scale)
        logits = array(self.model.lm_head.weight) * np.float32(config.logit_scale or 1.0)
        if not np.array_equal(logits, self.tensors["token_embd.weight"]):  # without it the engine takes the table
            self.tensors["output.weight"] = logits
        self.norm("output_norm", stack.norm)
        for number, block in enumerate(stack.layers):
            self.norm(f"blk.{number}.attn_norm", block.self_attn_residual.norm)
            self.norm(f"blk.{number}.ffn_norm", block.mlp_residual.norm)
            self.attention(f"blk.{number}.attn", block.self_attn)
            self.feed_forward(f"blk.{number}.ffn", block.mlp)
        self.positions(stack.embeddings.positions)
        return self.tensors

    def norm(self, name: str, module: Any) -> None:
        width = self.config.hidden_size
        weight = np.ones(width, np.float32) if module.weight is None else array(module.weight)
        self.tensors[f"{name}.weight"] = weight + np.float32(1) if self.config.norm_unit_offset else weight
        if self.norm_bias:
            bias = getattr(module, "bias", None)
            self.tensors[f"{name}.bias"] = np.zeros(width, np.float32) if bias is None else array(bias)

    def linear(self, name: str, module: Any, change: Callable[[np.ndarray], np.ndarray] = lambda rows: rows) -> None:
        """Add a linear map, whose rows, those of the bias too, are changed alike."""
        self.tensors[f"{name}.weight"] = change(array(module.weight))
        if module.bias is not None:
            self.tensors[f"{name}.bias"] = change(array(module.bias))

    def query_scale(self, module: Any) -> np.float32:
        """Return the factor on queries, in addition to the engine's 1/√K."""
        return np.float32(module.scaling * math.sqrt(self.config.head_dim))

    def attention(self, name: str, module: Any) -> None:
        raise NotImplementedError

    def feed_forward(self, name: str, module: Any) -> None:
        raise NotImplementedError

    def positions(self, module: Any) -> None:
        raise NotImplementedError


class LlamaTensors(DecoderTensors):
    """The tensors of a Llama: neighboring dimensions of queries and keys are rotated together."""

    def attention(self, name: str, module: Any) -> None:
        rotation = self.rotation()
        scale = self.query_scale(module) * np.float32(rotation.attention_scaling**2)  # of YaRN, on queries and keys
        self.linear(f"{name}_q", module.q_proj, lambda rows: self.permuted(rows) * scale)
        self.linear(f"{name}_k", module.k_proj, self.permuted)
        self.linear(f"{name}_v", module.v_proj)
        self.linear(f"{name}_output", module.o_proj)

    def permuted(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows of each head in the order i, i + K/2, i + 1, i + 1 + K/2, ..."""
        if self.config.rope_interleaved:
            return rows
        width = self.config.head_dim
        halves = rows.reshape(-1, 2, width // 2, *rows.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)

    def feed_forward(self, name: str, module: Any) -> None:
        for part in ("gate", "up", "down"):
            self.linear(f"{name}_{part}", getattr(module, f"{part}_proj"))

    def rotation(self) -> Any:
        (rotation,) = self.model.model.embeddings.positions.rotary_emb.values()
        return rotation

    def positions(self, module: Any) -> None:
        """Add the divisors of the frequencies, if they are scaled."""
        factors = wavelength_factors(self.rotation().inv_freq, float(rope_of(self.config)["rope_theta"]))
        if not np.allclose(factors, 1, rtol=1e-6):
            self.tensors["rope_freqs.weight"] = factors


class Gpt2Tensors(DecoderTensors):
    """The tensors of a GPT-2: a bias everywhere, one map for queries, keys and values, and a table of positions."""

    norm_bias = True

    def linear(self, name: str, module: Any, change: Callable[[np.ndarray], np.ndarray] = lambda rows: rows) -> None:
        super().linear(name, module, change)
        self.tensors.setdefault(f"{name}.bias", np.zeros(module.out_features, np.float32))

    def attention(self, name: str, module: Any) -> None:
        scale = self.query_scale(module)
        self.linear(f"{name}_q", module.q_proj, lambda rows: rows * scale)
        self.linear(f"{name}_k", module.k_proj)
        self.linear(f"{name}_v", module.v_proj)
        for part in ("weight", "bias"):
            maps = [self.tensors.pop(f"{name}_{letter}.{part}") for letter in "qkv"]
            self.tensors[f"{name}_qkv.{part}"] = np.concatenate(maps)
        self.linear(f"{name}_output", module.o_proj)

    def feed_forward(self, name: str, module: Any) -> None:
        self.linear(f"{name}_up", module.up_proj)
        self.linear(f"{name}_down", module.down_proj)

    def positions(self, module: Any) -> None:
        scheme, length = self.config.position_embedding_type, self.config.max_position_embeddings
        if scheme == "learned":
            table = array(module.embed_positions.weight)[self.config.position_offset :]
        elif scheme == "sinusoidal":
            table = array(module.table)
        else:
            table = np.zeros((length, self.config.hidden_size), np.float32)
        self.tensors["position_embd.weight"] = np.ascontiguousarray(table[:length])


TENSORS: dict[str, type[DecoderTensors]] = {"llama": LlamaTensors, "gpt2": Gpt2Tensors}
