"""Activation functions of transformers that have a name of their own, a paper or several names."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Activation:
    """Description of an activation function of transformers."""

    gated: str | None = None  # name of the gated feed-forward layer that has it
    papers: tuple[str, ...] = ()  # papers that introduced it, as keys of `training/report/card/references.bib`


# All others of transformers can be chosen too; they have no special name and no citation
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
"""Other names that transformers has for the same function, equal but for rounding; that on the right is fused."""
