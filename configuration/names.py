"""Names that are not fields: those of other libraries, of transformers and its activations, and misspelled ones."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files

from transformers import GenerationConfig

# Names of fields in other libraries and Hugging Face configs: accepting them would silently keep the default.
FOREIGN_NAMES = frozenset((files(__package__) / "foreign_names.txt").read_text(encoding="utf-8").split())

# Keywords for rotary positions; transformers converts the others into the first.
ROPE_PARTS = ("rope_theta", "partial_rotary_factor")
ROPE_NAMES = ("rope_parameters", "rope_scaling", *ROPE_PARTS)
LAYER_TYPES = ("layer_types", "encoder_layer_types")

# Accepted as keywords, but attributes only of configs in which they have an effect.
CONDITIONAL_NAMES = (*ROPE_NAMES, "layer_types")

# Keywords of transformers that are not fields
TRANSFORMERS_NAMES = (
    "attn_implementation", "experts_implementation", "name_or_path", "num_labels", "output_attentions", "torch_dtype",
)  # fmt: skip

# Settings that transformers would silently drop from a config
GENERATION_NAMES = frozenset(GenerationConfig._get_default_generation_params()) - {"use_cache"}

# Fields of some model types that transformers or its Trainer may set on any config
STANDARD_NAMES = frozenset(
    {"use_cache", "vocab_size", "tie_word_embeddings", "pad_token_id", "bos_token_id", "eos_token_id"}
    | {"decoder_start_token_id"}
)


def unknown_reason(key: str, known: Iterable[str]) -> str | None:
    """Return why a keyword is refused, with the field that was probably meant; `None` if it is a user's own name."""
    if key.startswith("_"):  # private to transformers
        return None
    if key in GENERATION_NAMES:
        return "it is a setting of generation_config"
    if nearest := difflib.get_close_matches(key, known, n=1, cutoff=0.85):
        return f"did you mean {nearest[0]!r}?"
    if key in FOREIGN_NAMES:
        return (
            "fields have the names of Hugging Face's Llama and BART, such as hidden_size, num_hidden_layers, "
            "num_attention_heads, intermediate_size"
        )
    return None


@dataclass(frozen=True)
class Activation:
    """Description of an activation function of transformers."""

    gated: str | None = None  # name of the gated feed-forward layer that has it
    papers: tuple[str, ...] = ()  # papers that introduced it, as keys of `training/report/card/references.bib`


# All other functions of transformers can be chosen too; they have no special name and no citation
ACTIVATIONS: dict[str, Activation] = {
    "relu": Activation("ReGLU"),
    "gelu": Activation("GEGLU", ("hendrycks2016gaussian",)),
    "gelu_pytorch_tanh": Activation("GEGLU", ("hendrycks2016gaussian",)),
    "silu": Activation("SwiGLU", ("elfwing2018sigmoid",)),
    "relu2": Activation(papers=("so2021primer",)),
    "linear": Activation("bilinear"),
}
ACTIVATION_ALIASES = {
    "swish": "silu",
    "gelu_new": "gelu_pytorch_tanh",
    "gelu_fast": "gelu_pytorch_tanh",
    "gelu_python": "gelu",
    "gelu_python_tanh": "gelu_pytorch_tanh",
}
"""Other names in transformers for the same function, equal except for rounding; the one on the right is fused."""
