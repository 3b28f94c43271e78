"""Blocks: the order of their sublayers, and what they share."""

from typing import get_args

import pytest
import torch
from torch import nn

from vanillaformer.configuration import options
from vanillaformer.configuration.options import PLACEMENT_CHOICES
from vanillaformer.modeling.block import BLOCKS, CROSS_BLOCKS
from vanillaformer.modeling.parts.residual import Residual

from .toys import KINDS, toy

PARALLEL = [
    (layout, placement)
    for placement, choice in PLACEMENT_CHOICES.items()
    for layout in choice.layouts
    if layout != "sequential"
]


def block_of(kind: str, **overrides) -> nn.Module:
    model = toy(kind, position_embedding_type="none", **overrides).base_model
    return (model.decoder if kind == "encoder_decoder" else model).layers[0]


def run(kind: str, block: nn.Module, x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    return block(x, None, source) if kind == "encoder_decoder" else block(x)


def sublayers(kind: str, block: nn.Module, source: torch.Tensor) -> list[tuple[Residual, nn.Module]]:
    """Residual connections and sublayers as functions of the stream."""
    listed = [(block.self_attn_residual, lambda x: block.self_attn(x)[0])]
    if kind == "encoder_decoder":
        listed.append((block.cross_attn_residual, lambda x: block.cross_attn(x, key_value_states=source)[0]))
    return [*listed, (block.mlp_residual, block.mlp)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("placement", get_args(options.NormPlacement))
def test_sequential_sublayers_read_what_the_one_before_has_made(kind, placement):
    block = block_of(kind, norm_placement=placement)
    x, source = torch.randn(2, 5, 24), torch.randn(2, 6, 24)
    expected = x
    for residual, sublayer in sublayers(kind, block, source):
        expected = residual.after(expected, sublayer(residual.before(expected)))
    assert torch.equal(run(kind, block, x, source), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("layout", "placement"), PARALLEL)
def test_parallel_sublayers_all_read_the_blocks_input_and_are_summed(kind, layout, placement):
    block = block_of(kind, block_layout=layout, norm_placement=placement)
    x, source = torch.randn(2, 5, 24), torch.randn(2, 6, 24)
    shared = layout == "parallel_shared_norm"
    expected = x.clone()
    for residual, sublayer in sublayers(kind, block, source):
        out = sublayer(block.norm(x) if shared else residual.before(x))
        alone = residual.after(torch.zeros_like(x), out)  # what this sublayer adds to the stream
        expected = expected + alone
    assert torch.allclose(run(kind, block, x, source), expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("layout", "norms"), [("sequential", 0), ("parallel", 0), ("parallel_shared_norm", 1)])
def test_a_shared_norm_is_the_only_one(kind, layout, norms):
    block = block_of(kind, block_layout=layout, norm_placement="pre")
    assert sum(isinstance(module, nn.LayerNorm) for module in block.modules()) == (norms or block.sublayers)


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_norm_can_be_left_out_and_no_other(kind):
    model = toy(kind, norm_placement="pre", skip_first_norm=True).base_model
    for stack in (model.encoder, model.decoder) if kind == "encoder_decoder" else (model,):
        for number, block in enumerate(stack.layers):
            assert hasattr(block.self_attn_residual, "norm") is (number > 0)
            assert hasattr(block.mlp_residual, "norm")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", BLOCKS)
def test_transformers_is_told_not_to_split_any_block_of_the_model(kind, layout):
    model = toy(kind, block_layout=layout, norm_placement="pre")
    blocks = {type(layer).__name__ for module in model.modules() for layer in getattr(module, "layers", ())}
    assert blocks <= {BLOCKS[layout].__name__, CROSS_BLOCKS[layout].__name__}
    assert set(model._no_split_modules) == blocks
