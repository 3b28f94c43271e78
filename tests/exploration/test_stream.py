"""Norms, shares and factors of the stream, by streams of which they are known."""

import numpy as np
import pytest
import torch
from modeling.toys import toy

from exploration.toys import KINDS, example_of, recorded
from vanillaformer.exploration.pictures import NotApplicable
from vanillaformer.exploration.recording import Recording, Sublayer, record
from vanillaformer.exploration.stream import contributions, residual_factors, stream, stream_norms, sublayers


def test_share_and_cosine_of_vectors_that_are_known():
    kept, added = torch.tensor([[[3.0, 4.0], [0.0, 1.0]]]), torch.tensor([[[-6.0, -8.0], [3.0, 0.0]]])
    sublayer = Sublayer(0, "mlp", kept, 2 * added, kept, added)
    found = contributions(Recording(None, {}, sublayers={"decoder": [sublayer]}))["decoder"]
    assert found.sublayers == [(0, "mlp")]
    assert (found.x, found.out, found.added) == ([3.0], [13.0], [6.5])
    assert (found.share, found.cosine) == (pytest.approx([(10 / 15 + 3 / 4) / 2]), pytest.approx([(-1 + 0) / 2]))


def test_a_model_without_residual_connections_keeps_nothing_and_a_new_rezero_model_adds_nothing():
    for placement, share in (("no_residual", 1.0), ("rezero", 0.0)):
        model = recorded("decoder", norm_placement=placement).model
        for layer in model.model.layers:
            for name in ("self_attn_residual", "mlp_residual"):
                if placement == "rezero":
                    getattr(layer, name).alpha.data.zero_()
        found = contributions(record(model, {"input_ids": torch.tensor([[5, 6, 7, 8]])}))["decoder"]
        np.testing.assert_allclose(found.share, share)


@pytest.mark.parametrize("kind", KINDS)
def test_norms_are_those_of_the_states_and_pictures_have_a_bar_for_every_sublayer(kind):
    found = recorded(kind)
    for name, layers in stream_norms(found).items():
        expected = [np.linalg.norm(state, axis=-1) for state in found.hidden_states[name]]
        np.testing.assert_allclose(layers, expected, rtol=1e-5)
    example = example_of(found)
    parts = 5 if kind == "encoder_decoder" else 2
    assert sum(len(drawing.rows) for drawing in sublayers(example)) == 2 * 2 * parts
    assert len(stream(example)) == len(found.hidden_states)


FACTORS = [
    ({"norm_placement": "rezero"}, ["α on the sublayer (ReZero)"]),
    ({"norm_placement": "admin"}, ["ω on the stream (Admin)"]),
    ({"norm_placement": "deepnorm"}, ["α on the stream (DeepNorm, fixed)"]),
    ({"norm_placement": "pre", "layer_scale_init_value": 0.1}, ["λ on the sublayer (layer scale)"]),
]


@pytest.mark.parametrize(("fields", "names"), FACTORS)
def test_factors_are_the_parameters(fields, names):
    model = toy("decoder", **fields)
    (found,) = residual_factors(model)["decoder"]
    assert [found.name] == names
    assert found.sublayers == [(0, "self_attn"), (0, "mlp"), (1, "self_attn"), (1, "mlp")]
    residual = model.model.layers[1].mlp_residual
    name = {"rezero": "alpha", "admin": "omega", "deepnorm": "alpha"}.get(fields["norm_placement"])
    expected = torch.as_tensor(getattr(residual, name) if name else residual.layer_scale.weight).detach().numpy()
    assert found.mean[-1] == pytest.approx(expected.mean())
    assert (found.smallest[-1], found.largest[-1]) == pytest.approx((expected.min(), expected.max()))


def test_most_models_have_no_factors_and_recurrent_ones_no_stream():
    with pytest.raises(NotApplicable, match="no factors"):
        residual_factors(toy("decoder"))
    found = recorded("recurrent_encoder_decoder")
    for function in (stream_norms, contributions):
        with pytest.raises(NotApplicable, match="no residual stream"):
            function(found)
