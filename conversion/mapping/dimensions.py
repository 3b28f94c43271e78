"""The model's dimensions in another order: the same function with another sinusoidal table.

The layouts of a sinusoidal table have the same columns in different orders. A model whose dimensions are reordered in
all weights that read or write the residual stream computes the same.
"""

import torch

# The columns of a table, given with the sines first and then the cosines, in the order of a layout; `tensor2tensor`
# has other wavelengths
COLUMNS = {"halves": lambda columns: columns, "interleaved": lambda columns: columns.view(2, -1).T.flatten()}

# The axes of a weight along the model's width, by the name of its module, or of a parameter without a module; a bias
# has only the first of its weight's axes
WIDTH_AXES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("embed_tokens", "embed_token_types", "embed_ngrams"), (1,)),
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "up_proj", "gate_proj"), (1,)),
    **dict.fromkeys(("lm_head", "classifier", "score", "seq_relationship", "qa_outputs", "gate"), (1,)),
    **dict.fromkeys(("o_proj", "down_proj", "norm", "out_norm", "omega", "layer_scale"), (0,)),
    **dict.fromkeys(("q_norm", "k_norm", "mix_values", "alpha", "ngram_logits"), ()),
    **dict.fromkeys(("dense", "query"), (0, 1)),
}
SIDE_BY_SIDE = {"gate": 2}
"""Number of vectors of the model's width that a module reads side by side, if more than one."""


def order(layout: str, new_layout: str, width: int) -> torch.Tensor:
    """Return, for each dimension in the new layout, its number in the old one (D)."""
    columns = torch.arange(width)
    return COLUMNS[layout](columns).argsort()[COLUMNS[new_layout](columns)]


def module_of(name: str) -> str:
    """Return the name of the module of a weight or bias; other parameters have their own."""
    return name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]


def reordered(name: str, tensor: torch.Tensor, layout: str, new_layout: str) -> torch.Tensor:
    """Return one of our tensors for a model with another layout; stacks of different widths have separate orders."""
    module = module_of(name)
    if module not in WIDTH_AXES:
        raise ValueError(
            f"{name} cannot be reordered from sinusoidal_layout={layout!r} to {new_layout!r}: the axes of {module!r} "
            f"are unknown, only those of {', '.join(WIDTH_AXES)} are known"
        )
    for axis in WIDTH_AXES[module]:
        if axis < tensor.ndim:
            parts = tensor.chunk(SIDE_BY_SIDE.get(module, 1), dim=axis)
            indices = order(layout, new_layout, parts[0].shape[axis]).to(tensor.device)
            tensor = torch.cat([part.index_select(axis, indices) for part in parts], dim=axis)
    return tensor
