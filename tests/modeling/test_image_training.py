"""Image models as training needs them: one compiled graph, and gradient checkpointing that changes no gradient."""

from typing import Any

import pytest
import torch
from torch import nn

from .toys import assert_close, pixels, toy

KIND = "image_encoder"
SHAPES: dict[str, dict[str, Any]] = {
    "vit": {},
    "swin": {
        "image_size": [20, 28],  # windows of 3 by 3 do not divide its 5 by 7 patches
        "depths": [2, 1],
        "num_hidden_layers": 3,
        "window_size": 3,
        "position_embedding_type": "window_relative",
        "use_cls_token": False,
        "image_pooling": "mean",
        "patch_norm": True,
    },
    "dinov2": {
        "layer_scale_init_value": 0.5,
        "image_pooling": "first_and_mean",
        "num_register_tokens": 2,
        "feed_forward": "gated",
        "hidden_act": "silu",
    },
}
every_shape = pytest.mark.parametrize("shape", SHAPES)
LABELS = torch.tensor([1, 0, 2])


def model_and_images(shape: str) -> tuple[nn.Module, torch.Tensor]:
    model = toy(KIND, num_labels=3, **SHAPES[shape]).double()
    height, width = (side * model.config.patch_size for side in model.config.grid)
    return model, pixels(3, height, width).double()


def values(model: nn.Module, run: Any, images: torch.Tensor) -> dict[str, torch.Tensor]:
    """Logits and gradients by `run`, a form of `model`."""
    model.zero_grad()
    outputs = run(images, labels=LABELS)
    outputs.loss.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    return {"logits": outputs.logits} | gradients


def assert_same(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name, value in expected.items():
        if not name.endswith("k_proj.bias"):  # nothing but rounding: softmax ignores it
            assert_close(actual[name], value, name, 1e-12)


@every_shape
def test_a_model_compiles_into_one_graph(shape):
    """`fullgraph` raises where Python would have to interrupt the graph."""
    model, images = model_and_images(shape)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert_same(values(model, compiled, images), values(model, model, images))
    torch.compiler.reset()


@every_shape
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_changes_no_gradient(shape, reentrant):
    model, images = model_and_images(shape)
    model.train()
    runs: list[int] = []
    model.model.layers[-1].mlp.register_forward_pre_hook(lambda *args: runs.append(1))
    expected = values(model, model, images)
    assert len(runs) == 1
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    actual = values(model, model, images)
    assert len(runs) == 3, "nothing was recomputed"
    assert_same(actual, expected)


def test_parallel_plans_name_what_a_model_has():
    vit, swin = (model_and_images(shape)[0].model for shape in ("vit", "swin"))
    assert vit.fsdp_plan.keys() == {"layers.*", "norm"}
    assert swin.fsdp_plan.keys() == {"layers.*", "merges.*", "norm"}
    feed_forward = {"layers.*.mlp.up_proj", "layers.*.mlp.down_proj"}
    assert vit.tp_plan.keys() == feed_forward | {f"layers.*.self_attn.{name}_proj" for name in "qkvo"}
    assert swin.tp_plan.keys() == feed_forward  # a bias per head keeps attention whole
