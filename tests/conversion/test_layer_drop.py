import pytest
from transformers import BartConfig, OPTConfig

from vanillaformer.configuration import VanillaDecoderConfig, VanillaEncoderDecoderConfig
from vanillaformer.conversion.architectures import bart, opt
from vanillaformer.conversion.mapping.fields import given, taken


@pytest.mark.parametrize(("encoder", "decoder", "rate"), [(0.1, 0.1, 0.1), (None, 0.0, 0.0), (0.1, 0.2, None)])
def test_of_both_sides(encoder: float | None, decoder: float, rate: float | None) -> None:
    native = BartConfig(encoder_layerdrop=encoder, decoder_layerdrop=decoder)
    assert taken(bart.ARCHITECTURE.fields, native).get("layer_drop") == rate


def test_of_ours() -> None:
    fields = given(bart.ARCHITECTURE.fields, VanillaEncoderDecoderConfig(layer_drop=0.2))
    assert (fields["encoder_layerdrop"], fields["decoder_layerdrop"]) == (0.2, 0.2)
    assert given(opt.ARCHITECTURE.fields, VanillaDecoderConfig(layer_drop=0.2))["layerdrop"] == 0.2
    assert taken(opt.ARCHITECTURE.fields, OPTConfig(layerdrop=0.3))["layer_drop"] == 0.3
