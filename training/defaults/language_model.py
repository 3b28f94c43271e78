"""Defaults of a causal language model that follow its text and the time to train."""

from .choices import Default, Machine

BYTES_PER_CORE_SECOND = 15_000
"""Bytes of text that a processor core trains the smallest model on, in a second."""
# Hidden size, layers: the core-seconds and bytes of text from which on it is the better one. Ten minutes of two cores
# are 1,200. The compute-optimal number of parameters grows with the root of the compute (Hoffmann et al. 2022), and
# more of them than a text can determine learn it by heart.
MODELS = ((192, 4, 0, 0), (256, 4, 4_000, 500_000), (384, 6, 16_000, 3_000_000), (512, 8, 64_000, 30_000_000))
# Passes over the text in the time, from which on this dropout is the better one
DROPOUT = ((0.0, 0), (0.1, 3), (0.2, 8))
BLOCK = 256
HEAD = 64


FIXED = (
    Default("per_device_train_batch_size", 8, "many small steps"),
    Default("optim", "muon", "fewer steps than AdamW to the same loss"),
    Default("learning_rate", 4e-3, "for Muon"),
    Default("weight_decay", 0.1, "for Muon"),
)


def vocabulary_size(size: int) -> int:
    """Return the vocabulary size for a text of `size` bytes: 2,000 tokens for 1 MB."""
    return max(500, min(8_000, 100 * round(20 * (size / 1e6) ** 0.7)))


def language_model_defaults(size: int, machine: Machine, *, block: int = BLOCK, overlap: bool = True) -> list[Default]:
    """Return the defaults of a new causal language model; docs/training.md has them as a table.

    Args:
        size: UTF-8 bytes of the training text.
        machine: What there is to compute with.
        block: Tokens in a block.
        overlap: Whether blocks are cut from one long text, so that they may overlap.
    """
    compute = machine.core_seconds
    width, layers = [model[:2] for model in MODELS if compute >= model[2] and size >= model[3]][-1]
    cost = (width / MODELS[0][0]) ** 2 * layers / MODELS[0][1]
    passes = compute * BYTES_PER_CORE_SECOND / cost / max(1, size)
    dropout = [value for value, least in DROPOUT if passes >= least][-1]
    amount, often = f"{size / 1e6:.1f} MB of text", f"about {passes:.2g} passes over the text in the time"
    found = [
        Default("tokenizer_vocab_size", vocabulary_size(size), amount),
        Default("overrides", overrides(width, layers, dropout, block), f"{amount}, {machine.words}; {often}"),
        Default("block_size", block, "a context of some hundred characters"),
        *FIXED,
    ]
    if overlap and passes >= 2:
        found.append(Default("block_stride", max(1, block // 4), f"each token is seen in four contexts: {often}"))
    if machine.bfloat16:
        found.append(Default("bf16", True, "the device multiplies bfloat16 faster than float32"))
    return found


def overrides(width: int, layers: int, dropout: float, block: int) -> list[str]:
    """Return the fields of the model as `--set` takes them: a decoder as Llama's, with tied embeddings."""
    fields = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // HEAD,
        "intermediate_size": 64 * round(width * 8 / 3 / 64),
        "feed_forward": "gated",
        "hidden_act": "silu",
        "norm": "rms_norm",
        "position_embedding_type": "rotary",
        "max_position_embeddings": block,
        "attention_bias": "false",
        "mlp_bias": "false",
        "dropout": dropout,
    }
    return [f"{name}={value}" for name, value in fields.items()]
