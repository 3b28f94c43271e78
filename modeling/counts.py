"""How many parameters a config has and what a forward pass costs, by formula: no model is made.

Shape letters: B batch, T length, S source length, D model width.
"""

from collections.abc import Callable
from typing import NamedTuple

from transformers.activations import ACT2FN

from vanillaformer.configuration import BlockConfig, layer_types

from .parts.residual import RESIDUALS

Counts = dict[str, int]


class NormsOf(NamedTuple):
    """What a residual connection owns: norms, vectors of the model's width, and numbers."""

    norms: int = 0
    vectors: int = 0
    numbers: int = 0


OWNED: dict[str, NormsOf] = {
    "post": NormsOf(norms=1),
    "pre": NormsOf(norms=1),
    "sandwich": NormsOf(norms=2),
    "inside": NormsOf(norms=1),
    "rezero": NormsOf(numbers=1),
    "deepnorm": NormsOf(norms=1),
    "admin": NormsOf(norms=1, vectors=1),
    "no_norm": NormsOf(),
    "no_residual": NormsOf(norms=1),
}


class Sizes(NamedTuple):
    """How much a forward pass reads: B rows of T tokens, and in an encoder-decoder S source tokens."""

    batch: int = 1
    length: int = 1
    source_length: int = 0


def count_parameters(config: BlockConfig) -> Counts:
    """Return the number of parameters by part, of the model with its language-model head.

    The sum over the parts is the model's `num_parameters()`; tied tables are counted once, as embeddings.
    """
    return sum_up(count(config, Sizes(), stack_parameters, head_parameters))


def count_flops(config: BlockConfig, batch: int = 1, length: int = 1, source_length: int | None = None) -> Counts:
    """Return the floating-point operations of one forward pass by part, of the model with its language-model head.

    A multiplication and an addition count as two; matrix products alone are counted, and of attention all T · S scores
    whatever the mask, as `torch.utils.flop_counter` does. A training step costs three times as much.

    Args:
        config: The model's config.
        batch: Rows B.
        length: Tokens T in a row (of the target, in an encoder-decoder).
        source_length: Tokens S of the source. Default T.
    """
    sizes = Sizes(batch, length, length if source_length is None else source_length)
    return sum_up(count(config, sizes, stack_flops, head_flops))


def sum_up(parts: list[Counts]) -> Counts:
    """Return the sum of counts, part by part."""
    total: Counts = {}
    for part in parts:
        for name, number in part.items():
            total[name] = total.get(name, 0) + number
    return total


def count(
    config: BlockConfig, sizes: Sizes, stack: Callable[..., Counts], head: Callable[..., Counts]
) -> list[Counts]:
    """Return the counts of each stack and of the head."""
    if not config.is_encoder_decoder:
        return [stack(config, sizes, cross=False), head(config, sizes)]
    source = Sizes(sizes.batch, sizes.source_length)
    encoder, decoder = config.encoder_side, config.decoder_side
    stacks = [stack(encoder, source, cross=False), stack(decoder, sizes, cross=True)]
    return [*stacks, head(config, sizes)]


# ------------------------------------------------------------------------------------------------------ parameters
def norm_parameters(config: BlockConfig, width: int) -> int:
    """Return weight and bias of one norm."""
    return width * (config.norm_weight + bool(config.norm_bias))


def attention_parameters(config: BlockConfig, source_width: int) -> int:
    """Return the projections and the norms on queries and keys of one attention."""
    d, query = config.hidden_size, config.num_attention_heads * config.head_dim
    key = config.num_key_value_heads * config.head_dim
    shapes = {"q_proj": (d, query), "k_proj": (source_width, key), "v_proj": (source_width, key), "o_proj": (query, d)}
    maps = sum(read * made + made * config.has_attention_bias(name) for name, (read, made) in shapes.items())
    if config.qk_norm == "each_head":
        return maps + query + key  # weights alone
    widths = {"none": (), "head": (config.head_dim,) * 2, "full": (query, key)}[config.qk_norm]
    return maps + sum(norm_parameters(config, width) for width in widths)


def feed_forward_parameters(config: BlockConfig) -> int:
    """Return the maps of one feed-forward layer, and the parameters that its activation may have."""
    d, inner, ups = config.hidden_size, config.intermediate_size, 2 if config.feed_forward == "gated" else 1
    act = sum(parameter.numel() for parameter in ACT2FN[config.hidden_act].parameters())
    return (ups + 1) * d * inner + config.mlp_bias * (ups * inner + d) + act


def residual_parameters(config: BlockConfig, sublayers: int) -> int:
    """Return the norms, vectors and numbers of a block's residual connections."""
    norm = norm_parameters(config, config.hidden_size)
    if config.block_layout == "parallel_shared_norm":
        return norm
    owned = OWNED[config.norm_placement]
    return sublayers * (owned.norms * norm + owned.vectors * config.hidden_size + owned.numbers)


def stack_parameters(config: BlockConfig, sizes: Sizes, cross: bool) -> Counts:
    """Return the parameters of one stack; a decoder that shares its table with the encoder has none."""
    layers, d = config.num_hidden_layers, config.hidden_size
    shared = cross and config.share_encoder_decoder_embeddings
    attentions = attention_parameters(config, d) + (attention_parameters(config, config.encoder_width) if cross else 0)
    final = RESIDUALS[config.norm_placement].needs_final_norm if config.final_norm is None else config.final_norm
    norms = layers * residual_parameters(config, 3 if cross else 2) - config.skip_first_norm * norm_parameters(
        config, d
    )
    return {
        "embeddings": (0 if shared else config.vocab_size * d) + added_vectors(config) * d,
        "positions": position_parameters(config),
        "attention": layers * attentions,
        "feed-forward": layers * feed_forward_parameters(config),
        "norms": norms + (final + config.embedding_norm) * norm_parameters(config, d),
    }


def added_vectors(config: BlockConfig) -> int:
    """Return how many vectors of token types and n-grams there are."""
    ngrams = (config.max_ngram - 1) * config.ngram_buckets if hasattr(config, "max_ngram") else 0
    return getattr(config, "type_vocab_size", 0) + ngrams


def position_parameters(config: BlockConfig) -> int:
    """Return the rows of a learned table, or T5's tables of biases."""
    if config.position_embedding_type == "learned":
        return (config.max_position_embeddings + config.position_offset) * config.hidden_size
    if config.position_embedding_type == "relative":
        tables = config.num_hidden_layers if config.relative_attention_per_layer else 1
        return tables * config.relative_attention_num_buckets * config.num_attention_heads
    return 0


def head_parameters(config: BlockConfig, sizes: Sizes) -> Counts:
    """Return the output layer, and the layer that an encoder has in front of it."""
    d, vocabulary = config.hidden_size, getattr(config, "target_vocab_size", config.vocab_size)
    output = (not config.tie_word_embeddings) * d * vocabulary + config.lm_head_bias * vocabulary
    if has_transform(config):
        output += d * d + config.head_bias * d + norm_parameters(config, d)
        output += sum(parameter.numel() for parameter in ACT2FN[config.head_act or config.hidden_act].parameters())
    return {"head": output}


def has_transform(config: BlockConfig) -> bool:
    """Whether the language model of this config is a masked one, with a layer before its output layer."""
    return hasattr(config, "head_bias")


# ------------------------------------------------------------------------------------------------------------ FLOPs
def stack_flops(config: BlockConfig, sizes: Sizes, cross: bool) -> Counts:
    """Return the operations of one stack."""
    tokens, layers = sizes.batch * sizes.length, len(layer_types(config))
    d, query = config.hidden_size, config.num_attention_heads * config.head_dim
    key = config.num_key_value_heads * config.head_dim
    projections = tokens * 2 * d * (2 * query + 2 * key)
    scores = sizes.batch * 4 * query * sizes.length * sizes.length
    if cross:
        source = sizes.batch * sizes.source_length
        projections += tokens * 2 * d * 2 * query + source * 2 * config.encoder_width * 2 * key
        scores += sizes.batch * 4 * query * sizes.length * sizes.source_length
    maps = 3 if config.feed_forward == "gated" else 2
    return {
        "attention projections": layers * projections,
        "attention scores": layers * scores,
        "feed-forward": layers * tokens * 2 * maps * d * config.intermediate_size,
    }


def head_flops(config: BlockConfig, sizes: Sizes) -> Counts:
    """Return the operations of the output layer."""
    d, vocabulary = config.hidden_size, getattr(config, "target_vocab_size", config.vocab_size)
    return {"head": sizes.batch * sizes.length * 2 * d * (vocabulary + has_transform(config) * d)}
