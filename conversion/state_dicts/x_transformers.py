"""How x-transformers names and shapes its tensors: a `TransformerWrapper`, a `Decoder` or an `Encoder`."""

import re
from dataclasses import dataclass

import torch

from vanillaformer.configuration import BlockConfig
from vanillaformer.modeling import VanillaDecoderForCausalLM, VanillaDecoderModel, VanillaEncoderModel

from ..mapping.fields import Values
from ..mapping.tensors import SAME, Rows, Same, Table, Tensors
from ..mapping.weights import expand_table
from .torch_and_gpt import EMBEDDINGS, NO_TOKENS, Reading, layers_in, shape_of


@dataclass(frozen=True)
class Scaled(Same):
    """A tensor that is multiplied by a factor when it is used."""

    factor: float

    def to_ours(self, tensor: torch.Tensor, config: BlockConfig) -> tuple[torch.Tensor, ...]:
        return (tensor * self.factor,)


class LessOne(Same):
    """The weight of a norm that multiplies by it, where ours may multiply by 1 + weight."""

    def to_ours(self, tensor: torch.Tensor, config: BlockConfig) -> tuple[torch.Tensor, ...]:
        return (tensor - float(config.norm_unit_offset),)


@dataclass(frozen=True)
class Regrouped(Same):
    """Query heads that share keys: there each G-th one has the same, here neighbours have.

    Args:
        axis: The axis of the heads.
    """

    axis: int

    def to_ours(self, tensor: torch.Tensor, config: BlockConfig) -> tuple[torch.Tensor, ...]:
        heads = tensor.unflatten(self.axis, (-1, config.num_key_value_heads, config.head_dim))  # (H / G, G, K)
        return (heads.transpose(self.axis, self.axis + 1).flatten(self.axis, self.axis + 2),)


# Placements by the norms that a layer has: 0 before it, 1 after it, 2 after the sum
X_PLACEMENTS = {(0,): ("pre", ["norm"]), (0, 1): ("sandwich", ["norm", "out_norm"]), (2,): ("post", ["norm"])}


def read_x_norms(state: Tensors, layers: str) -> tuple[str, dict[str, str]]:
    """Return the placement, and our name of each norm of a layer by its name there.

    Raises:
        ValueError: None of our placements has these norms, or they are of another kind.
    """
    there = {number: f"{layers}0.0.{number}." for number in range(3)}
    present = tuple(number for number, name in there.items() if any(key.startswith(name) for key in state))
    if present not in X_PLACEMENTS:
        raise ValueError(f"norms must be named {', '.join(there.values())} as one of {list(X_PLACEMENTS)}")
    placement, ours = X_PLACEMENTS[present]
    weight = "g" if f"{there[present[0]]}g" in state else "gamma"
    if shape_of(state, f"{there[present[0]]}{weight}").numel() == 1:
        raise ValueError(f"{there[present[0]]}{weight} is one number: ours has no such norm")
    return placement, {f"{number}.{weight}": f"{name}.weight" for number, name in zip(present, ours)}


def x_layer(state: Tensors, layers: str, layer: int, norms: dict[str, str], kinds: tuple[Same, Same]) -> Table:
    """Return the tensors of one of our blocks, which are two layers there."""
    ours, attention, feed = f"layers.{layer}.", f"{layers}{2 * layer}.", f"{layers}{2 * layer + 1}."
    table: Table = {f"{ours}self_attn.{name}_proj": f"{attention}1.to_{name}" for name in "kv"}
    table[f"{ours}self_attn.q_proj"] = (f"{attention}1.to_q", kinds[0])
    table[f"{ours}self_attn.o_proj"] = (f"{attention}1.to_out", kinds[1])
    for x_name, name in norms.items():
        table[f"{ours}self_attn_residual.{name}"] = f"{attention}0.{x_name}"
        table[f"{ours}mlp_residual.{name}"] = f"{feed}0.{x_name}"
    up: Table = {f"{ours}mlp.up_proj": f"{feed}1.ff.0.0"}
    if f"{feed}1.ff.0.proj.weight" in state:
        up = {(f"{ours}mlp.up_proj", f"{ours}mlp.gate_proj"): (f"{feed}1.ff.0.proj", Rows(2))}
    return table | up | {f"{ours}mlp.down_proj": f"{feed}1.ff.2"}


def read_rotary(state: Tensors, name: str, head_dim: int) -> Values:
    """Return rotary positions by their frequencies.

    Raises:
        ValueError: These are not θ^(-2i/K).
    """
    frequencies = state[name].double()
    width = 2 * len(frequencies)
    theta = frequencies[1].item() ** (-width / 2) if width > 2 else 10000.0
    expected = theta ** (-torch.arange(0, width, 2, dtype=torch.double) / width)
    if not torch.allclose(frequencies, expected, rtol=1e-4):
        raise ValueError(f"{name} does not hold powers of one base: ours has no such scaling of frequencies")
    # a little more than the quotient, so that rounding down gives the same number
    part = min(1.0, (width + 1e-6) / head_dim)
    rope = {"rope_type": "default", "rope_theta": float(f"{theta:.6g}"), "partial_rotary_factor": part}
    return {"position_embedding_type": "rotary", "rope_interleaved": True, "rope_parameters": rope}


def x_sizes(state: Tensors, layers: str, heads: int) -> Values:
    """Return the sizes of the first two layers."""
    first, feed = f"{layers}0.1.", f"{layers}1.1.ff."
    rows, width = shape_of(state, f"{first}to_q.weight")
    head_dim = rows // heads
    return {
        "hidden_size": width,
        "num_hidden_layers": layers_in(state, layers) // 2,
        "head_dim": head_dim,
        "num_key_value_heads": shape_of(state, f"{first}to_k.weight")[0] // head_dim,
        "intermediate_size": shape_of(state, f"{feed}2.weight")[1],
        "feed_forward": "gated" if f"{feed}0.proj.weight" in state else "plain",
        "attention_bias": False,
        "norm_bias": False,
        "mlp_bias": any(name.endswith(".bias") and ".1.ff." in name for name in state),
    }


def read_x_transformers(state: Tensors, causal: bool | None, options: Values) -> Reading:
    """Read a `TransformerWrapper` around a `Decoder` or `Encoder`, or only one of these."""
    stack = "attn_layers." if any(name.startswith("attn_layers.") for name in state) else ""
    layers = f"{stack}layers."
    inferred = x_sizes(state, layers, options["num_attention_heads"])
    inferred["norm_placement"], norms = read_x_norms(state, layers)
    rms = next(iter(norms)).endswith(".g")
    inferred |= {"norm": "rms_norm" if rms else "layer_norm", "final_norm": inferred["norm_placement"] != "post"}
    grouped = inferred["num_key_value_heads"] < options["num_attention_heads"]
    kinds = (Regrouped(0), Regrouped(1)) if grouped else (SAME, SAME)
    table: Table = {"norm.weight": f"{stack}final_norm.{'g' if rms else 'gamma'}"}
    for layer in range(inferred["num_hidden_layers"]):
        table |= x_layer(state, layers, layer, norms, kinds)
    if "token_emb.emb.weight" in state:
        inferred["vocab_size"] = len(state["token_emb.emb.weight"])
        table["embed_tokens"] = "token_emb.emb"
    assumed = NO_TOKENS | {"position_embedding_type": "none", "hidden_act": "gelu", "norm_unit_offset": True}
    assumed["norm_eps"] = 1e-24 if rms else 1e-5
    frequencies = f"{stack}rotary_pos_emb.inv_freq"
    if frequencies in state:
        assumed |= read_rotary(state, frequencies, inferred["head_dim"])
    if "pos_emb.emb.weight" in state:
        inferred |= {"position_embedding_type": "learned", "max_position_embeddings": len(state["pos_emb.emb.weight"])}
        scale = Scaled(inferred["hidden_size"] ** -0.5)
        table["embeddings.positions.embed_positions"] = ("pos_emb.emb", scale)
    if "post_emb_norm.gamma" in state and not rms:
        table["embeddings.norm.weight"] = ("post_emb_norm.gamma", LessOne())
    inferred |= {"embedding_norm": "embeddings.norm.weight" in table, "type_vocab_size": 0}
    return x_reading(state, causal is not False, table, inferred, assumed, frequencies)


def x_reading(
    state: Tensors, causal: bool, table: Table, inferred: Values, assumed: Values, frequencies: str
) -> Reading:
    """Return the reading of a stack: with tokens and causal it is a language model."""
    head = "token_emb.emb.weight" in state and causal
    model_class = VanillaDecoderForCausalLM if head else VanillaDecoderModel if causal else VanillaEncoderModel
    if head:
        inferred = inferred | {"tie_word_embeddings": "to_logits.weight" not in state}
        if inferred["tie_word_embeddings"]:
            assumed = assumed | {"logit_scale": inferred["hidden_size"] ** -0.5}
    links = expand_table(table, ours="model." if head else "")
    if head and not inferred["tie_word_embeddings"]:
        links += expand_table({"lm_head.weight": "to_logits.weight"})
    zeros = {
        link.native: state[link.native.replace(".bias", ".weight")].new_zeros(len(state[link.native[:-4] + "weight"]))
        for link in links
        if inferred["mlp_bias"]
        and ".ff." in link.native
        and link.native.endswith(".bias")
        and link.native not in state
    }
    initialized = EMBEDDINGS if "token_emb.emb.weight" not in state else "(?!)"
    return Reading(model_class, links, inferred, assumed, re.escape(frequencies), initialized, zeros)
