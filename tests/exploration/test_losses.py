"""The loss by position, whose weighted mean is the loss, and without parts: by hooks as by weights."""

import numpy as np
import pytest
import torch
from modeling.axes import PATCHES_ONLY
from modeling.toys import inputs_of, labels_of, padding, pixels, tokens, toy
from refusals import refused
from torch import nn

import vanillaformer
from exploration.toys import KINDS, doubled
from vanillaformer.exploration import losses
from vanillaformer.exploration.losses import attention_layers, head_ablation, held_out_loss
from vanillaformer.exploration.recording import head_hook


def rows_of(kind: str) -> list[dict[str, torch.Tensor]]:
    """Two batches of different lengths."""
    if kind == "image_encoder":
        return [{"pixel_values": pixels(3), "labels": torch.tensor([0, 4, 1])}]
    batches = []
    for length in (7, 5):
        inputs = inputs_of(kind, length=length)
        inputs.pop("decoder_input_ids", None)
        batches.append(inputs | {"labels": labels_of(kind, length=length)})
    return batches


@pytest.mark.parametrize(("kind", "overrides"), [
    *((kind, {}) for kind in KINDS), ("decoder", {"num_key_value_heads": 1}),
    ("image_encoder", PATCHES_ONLY | {"window_size": 2, "depths": [1, 1]}),
])  # fmt: skip
def test_heads_make_the_difference_that_the_loss_without_their_columns_has(kind, overrides):
    model, rows = toy(kind, **overrides).double(), [*map(doubled, rows_of(kind))]
    passes: list[int] = []
    found = head_ablation(model, rows, advance=lambda: passes.append(1))
    parts = losses.sublayer_ablation(model, rows, advance=lambda: passes.append(1))
    assert len(passes) == losses.count_passes(model)
    loss = held_out_loss(model, rows)
    for attention_kind in found:
        model = toy(kind, **overrides).double()
        layers = attention_layers(model)[attention_kind]
        projection, width = layers[0].o_proj, layers[0].head_dim
        assert found[attention_kind].shape == (len(layers), layers[-1].o_proj.in_features // layers[-1].head_dim)
        with torch.no_grad():
            projection.weight[:, width : 2 * width] = 0.0
        without_head = held_out_loss(model, rows)
        assert found[attention_kind][0, 1] == without_head - loss != 0
        with head_hook(layers[0], 1, 0.0):
            assert held_out_loss(model, rows) == without_head  # nothing of it was left
        with torch.no_grad():
            projection.weight[:] = projection.bias[:] = 0.0
        name, part = ("decoder", "cross_attn") if attention_kind == "cross" else (attention_kind, "self_attn")
        assert parts[name][0, losses.PARTS.index(part)] == held_out_loss(model, rows) - loss


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich", "inside", "rezero", "deepnorm", "no_residual"])
def test_a_sublayer_left_out_adds_nothing_in_any_placement(placement):
    """A placement keeps nothing of a sublayer, not even what a norm makes of 0: as a factor of 0 on it shows."""
    model = toy("decoder", norm_placement=placement, layer_scale_init_value=0.5).double()
    batch, layer = rows_of("decoder")[0], model.model.layers[0]
    with torch.no_grad():
        with losses.without_part(layer, "mlp"):
            without = model(**batch).logits
        layer.mlp_residual.layer_scale.weight[:] = 0.0
        torch.testing.assert_close(without, model(**batch).logits, rtol=1e-12, atol=0)


def test_a_layer_left_out_is_a_model_without_it():
    model = toy("encoder").double()
    batch = rows_of("encoder")[0]
    with torch.no_grad():
        with losses.without_part(model.model.layers[0], "layer"):
            without = model(**batch).logits
        model.model.layers = nn.ModuleList([model.model.layers[1]])
        model.model.layer_types = model.model.layer_types[1:]
        assert torch.equal(without, model(**batch).logits)


def test_the_loss_is_the_mean_over_all_targets_however_they_are_batched():
    model = toy("decoder").double()
    rows = rows_of("decoder")
    single = [{name: x[row : row + 1] for name, x in batch.items()} for batch in rows for row in range(3)]
    assert held_out_loss(model, rows) == pytest.approx(held_out_loss(model, single), rel=1e-6)
    for kind, found in head_ablation(model, rows, "mean").items():
        np.testing.assert_allclose(found, head_ablation(model, single, "mean")[kind], atol=2e-6)


def test_the_mean_of_a_head_leaves_padding_out():
    model = toy("encoder_decoder").double()
    mask = padding(3, 7)
    labels = tokens(3, 5, 29).masked_fill(padding(3, 5) == 0, -100)
    batch = {"input_ids": tokens(3, 7), "attention_mask": mask, "labels": labels}
    for kind, seen in (("encoder", mask), ("decoder", labels != -100), ("cross", labels != -100)):
        attention = attention_layers(model)[kind][0]
        outputs: list[torch.Tensor] = []
        attention.o_proj.register_forward_pre_hook(lambda module, args, kept=outputs: kept.append(args[0]))
        means = losses.mean_outputs(model, [batch])[attention]
        torch.testing.assert_close(means.flatten(), outputs[0][seen.bool()].mean(dim=0))


def test_classifiers_and_masked_images_are_ablated_by_their_own_losses():
    classifier = toy("encoder", vanillaformer.VanillaEncoderForSequenceClassification, num_labels=3)
    rows = [inputs_of("encoder") | {"labels": torch.tensor([0, 2, 1])}]
    masked = toy("image_encoder", vanillaformer.VanillaImageEncoderForMaskedImageModeling)
    images = [{"pixel_values": pixels(3), "bool_masked_pos": torch.tensor([[1, 0, 1, 0, 0, 1]] * 3).bool()}]
    for model, batches in ((classifier, rows), (masked, images)):
        (found,) = head_ablation(model, batches).values()
        assert np.isfinite(found).all()
        assert np.abs(found).max() > 1e-4


def test_what_cannot_be_ablated_or_has_no_positions_is_refused():
    refused("replacement .* zero, mean, got 'noise'", head_ablation, toy("decoder"), rows_of("decoder"), "noise")
    refused("has no attention heads", head_ablation, toy("recurrent_encoder_decoder"), rows_of("encoder_decoder"))
    refused("the rows have no targets", held_out_loss, toy("decoder"), [])
    classifier = toy("encoder", vanillaformer.VanillaEncoderForSequenceClassification, num_labels=3)
    rows = [inputs_of("encoder") | {"labels": torch.tensor([0, 2, 1])}]
    for model in (classifier, toy("encoder_decoder", decoding="ctc")):
        refused("has no loss of each token", losses.loss_by_position, model, rows)


@pytest.mark.parametrize("kind", ["encoder_decoder", "decoder", "encoder", "recurrent_encoder_decoder", "pretraining"])
def test_the_means_weighted_by_their_numbers_are_the_loss(kind):
    head = vanillaformer.VanillaEncoderForPreTraining if kind == "pretraining" else None
    kind = "encoder" if head else kind
    model, rows = toy(kind, head).double(), rows_of(kind)
    means, counts = losses.loss_by_position(model, rows)
    assert counts.sum() == sum(int((model.targets(batch["labels"]) != -100).sum()) for batch in rows)
    assert np.isnan(means[counts == 0]).all()
    loss = held_out_loss(model, rows)  # computed in float32
    assert np.nansum(means * counts) / counts.sum() == pytest.approx(loss, rel=1e-6)


def test_a_position_is_that_of_the_predicted_token():
    model, labels = toy("decoder").double(), rows_of("decoder")[0]["labels"][:1].clone()
    labels[:, :] = -100
    labels[0, 3] = 5
    batch = {"input_ids": rows_of("decoder")[0]["input_ids"][:1], "labels": labels}
    means, counts = losses.loss_by_position(model, [batch])
    assert counts.tolist() == [0, 0, 0, 1, 0, 0, 0]
    assert means[3] == pytest.approx(-model(**batch).logits[0, 2].log_softmax(dim=-1)[5].item())
