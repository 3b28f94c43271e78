import pytest
from transformers import BartConfig, OPTConfig

from vanillaformer.configuration import VanillaDecoderConfig, VanillaEncoderDecoderConfig
from vanillaformer.conversion.architectures import bart, opt


@pytest.mark.parametrize(("encoder", "decoder", "rate"), [(0.1, 0.1, 0.1), (None, 0.0, 0.0), (0.1, 0.2, None)])
def test_of_both_sides(encoder: float | None, decoder: float, rate: float | None) -> None:
    native = BartConfig(encoder_layerdrop=encoder, decoder_layerdrop=decoder)
    ours = bart.ARCHITECTURE.to_our_config(native, "lm")
    assert ours.layer_drop == (0.0 if rate is None else rate)


def test_of_ours() -> None:
    native = bart.ARCHITECTURE.to_native_config(VanillaEncoderDecoderConfig(layer_drop=0.2), "lm")
    assert (native.encoder_layerdrop, native.decoder_layerdrop) == (0.2, 0.2)
    assert opt.ARCHITECTURE.to_native_config(VanillaDecoderConfig(layer_drop=0.2), "lm").layerdrop == 0.2
    assert opt.ARCHITECTURE.to_our_config(OPTConfig(layerdrop=0.3), "lm").layer_drop == 0.3
