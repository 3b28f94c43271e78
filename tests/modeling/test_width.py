"""muP: what layers compute does not grow or shrink with the width, at the start and after steps of the optimizer."""

import os
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn

import vanillaformer
from vanillaformer import VanillaDecoderConfig, VanillaDecoderForCausalLM, preset
from vanillaformer.configuration.options import FEED_FORWARD_CHOICES
from vanillaformer.modeling import AUTO_CLASSES
from vanillaformer.training.trainer.optimizers import build_optimizer, decaying_names, scale_rates

CONFIGS = int(os.environ.get("VANILLAFORMER_WIDTHS", "2"))  # docs/comparing.md has the result of 200
WIDTHS, STEPS, RATE, VOCABULARY = (128, 256, 512), 10, 2e-3, 64
MUP: dict[str, Any] = {"parametrization": "mup", "base_width": 32}
BETAS = {"adam_beta1": 0.9, "adam_beta2": 0.98, "adam_epsilon": 1e-12, "muon_momentum": 0.95, "muon_lr_factor": 1.0}


def drawn(number: int) -> dict[str, Any]:
    draw = Random(number)
    return {
        "num_hidden_layers": draw.choice((1, 2, 3)), "tie_word_embeddings": draw.choice((True, False)),
        "norm": draw.choice(("layer_norm", "rms_norm")), "norm_placement": draw.choice(("pre", "sandwich", "inside")),
        "position_embedding_type": draw.choice(("learned", "rotary", "alibi", "none")),
        "feed_forward": draw.choice([*FEED_FORWARD_CHOICES]), "hidden_act": draw.choice(("relu", "gelu", "silu")),
        "block_layout": draw.choice(("sequential", "parallel")),
        "num_attention_heads": draw.choice((2, 4)), "mlp_bias": draw.choice((True, False)),
    }  # fmt: skip


def optimizer_of(model: nn.Module, name: str) -> torch.optim.Optimizer:
    arguments = SimpleNamespace(learning_rate=RATE, weight_decay=0.1, **BETAS)
    if name == "muon":
        return build_optimizer(name, model, set(decaying_names(model, dict(model.named_parameters()))), arguments)
    return torch.optim.AdamW(model.parameters(), lr=RATE, eps=1e-12, weight_decay=0.1)


def sizes_after_training(fields: dict[str, Any], width: int, name: str, seed: int) -> dict[str, float]:
    """The mean size of what each layer and sublayer adds to the stream or leaves in it."""
    torch.manual_seed(seed)
    fields = {"vocab_size": VOCABULARY, "hidden_size": width, "max_position_embeddings": 32} | fields
    model, kept = VanillaDecoderForCausalLM(VanillaDecoderConfig(**fields)), {}
    keep = lambda part, _, inputs, out: kept.update({part: out[0] if isinstance(out, tuple) else out})  # noqa: E731
    for part, module in model.model.layers.named_modules():
        if part.isdigit() or part.endswith(("self_attn", "mlp")):
            module.register_forward_hook(partial(keep, part))
    optimizer, ids = optimizer_of(model, name), torch.randint(VOCABULARY, (4, 32))
    scale_rates(optimizer, model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    with torch.no_grad():
        model(input_ids=ids)
    return {part: states.abs().mean().item() for part, states in kept.items()}


def slopes(fields: dict[str, Any], name: str = "adamw", seeds: int = 2) -> dict[str, float]:
    """The slope of the logarithm of each size over that of the width."""
    found: dict[str, list[float]] = {}
    for width in WIDTHS:
        runs = [sizes_after_training(fields, width, name, seed) for seed in range(seeds)]
        for part in runs[0]:
            found.setdefault(part, []).append(np.mean([np.log(run[part]) for run in runs]))
    return {part: np.polyfit(np.log(WIDTHS), values, 1)[0] for part, values in found.items()}


@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("number", range(CONFIGS))
def test_with_mup_activations_do_not_depend_on_the_width(number, name):
    found = slopes(drawn(number) | {"parametrization": "mup", "base_width": 64}, name)
    assert abs(np.mean([*found.values()])) <= 0.05, found
    assert max(map(abs, found.values())) <= 0.15, found  # of one layer, by two seeds
    if number == 0:
        assert max(slopes(drawn(number) | {"initialization": "xavier"}, name, seeds=1).values()) > 0.2


def logits_moved(model_class: Any, width: int, fields: dict[str, Any], inputs: dict[str, torch.Tensor]) -> float:
    """How far three steps of Adam move the logits of a classifier, on average over three seeds."""
    moved = []
    for seed in range(3):
        torch.manual_seed(seed)
        sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": 2}
        config = model_class.config_class(**MUP, **sizes, **fields, num_attention_heads=2, num_labels=5)
        model = model_class(config)
        optimizer, start = optimizer_of(model, "adamw"), model(**inputs).logits.detach()
        scale_rates(optimizer, model)
        for _ in range(3):
            optimizer.zero_grad()
            model(**inputs, labels=torch.arange(8) % 5).loss.backward()
            optimizer.step()
        moved.append((model(**inputs).logits - start).abs().mean().item())
    return float(np.mean(moved))


TEXTS = {"input_ids": torch.arange(128).view(8, 16) % 61 + 3}
IMAGES = {"pixel_values": torch.arange(8 * 3 * 16 * 16).view(8, 3, 16, 16).sin()}


@pytest.mark.parametrize(
    ("kind", "task", "fields", "inputs"),
    [
        ("Decoder", "SequenceClassification", {"pad_token_id": 0}, TEXTS),
        ("Encoder", "SequenceClassification", {}, TEXTS),
        ("ImageEncoder", "ImageClassification", {"image_size": 16, "patch_size": 4}, IMAGES),
    ],
)
def test_steps_move_the_logits_of_a_wide_classifier_as_far_as_those_of_a_narrow_one(kind, task, fields, inputs):
    model_class = getattr(vanillaformer, f"Vanilla{kind}For{task}")
    narrow, wide = (logits_moved(model_class, width, fields, inputs) for width in (128, 512))
    assert wide == pytest.approx(narrow, rel=0.3)


def maps(model_class: Any, width: int, fields: dict[str, Any]) -> dict[str, nn.Linear]:
    torch.manual_seed(0)
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": 1, "num_attention_heads": 2}
    factors = {"scale_embedding": False} if model_class.config_class.is_encoder_decoder else {}
    model = model_class(model_class.config_class(**MUP, **sizes, **factors, **fields))
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}


TRANSLATOR = vanillaformer.VanillaEncoderDecoderForConditionalGeneration


@pytest.mark.parametrize(
    ("model_class", "fields"),
    [
        *((each, {}) for some in AUTO_CLASSES.values() for each in some if "Recurrent" not in each.__name__),
        (TRANSLATOR, {"output_distribution": "pointer_generator"}),
        (TRANSLATOR, {"decoding": "mask_predict"}),
    ],
)
def test_maps_to_outputs_that_do_not_grow_with_the_width_start_by_the_base_width(model_class, fields):
    """Whatever their names are: a head that a model gets later is found here, too."""
    wide = maps(model_class, 256, fields)
    for name, module in maps(model_class, 64, fields).items():
        if name != "lm_head" and module.out_features == wide[name].out_features:
            std = 32**0.5 / module.in_features
            assert module.weight.std().item() == pytest.approx(std, rel=0.3), name


def test_the_parts_of_mup_follow_the_width_of_the_config():
    config = VanillaDecoderConfig(hidden_size=64, num_attention_heads=2, parametrization="mup", base_width=64)
    wide = VanillaDecoderConfig.from_dict(config.to_dict(), hidden_size=256)
    assert (config.initialization, config.logit_scale, config.attention_scale) == ("mup", 1.0, 0.25)
    assert (wide.logit_scale, wide.attention_scale, wide.base_width) == (0.25, 8 / 128, 64)
    assert VanillaDecoderConfig(hidden_size=128, num_attention_heads=2).attention_scale is None
    with pytest.raises(StrictDataclassError, match="base_width=64 only applies to parametrization='mup'"):
        VanillaDecoderConfig(base_width=64)
    for name in ("scale_embedding", "scale_decoder_outputs"):
        with pytest.raises(StrictDataclassError, match=f"parametrization='mup' needs {name}=False"):
            preset("t5", parametrization="mup", **{"scale_decoder_outputs": False, name: True})


def test_a_preset_made_with_mup_starts_as_it_says():
    assert preset("llama-tiny").initialization == "normal"
    assert preset("llama-tiny", parametrization="mup").initialization == "mup"
    assert preset("llama-tiny", parametrization="mup", initialization="t5").initialization == "t5"
    for name in ("transformer-tiny", "t5"):  # without their factors of √D
        config = preset(name, parametrization="mup")
        assert not config.scale_embedding
        assert not getattr(config, "scale_decoder_outputs", False)
    assert preset("t5", parametrization="mup").attention_scale == 8 / 64  # 1 goes with T5's fresh queries


def test_what_mup_starts_with_does_not_grow_with_the_width():
    for width in (64, 256):
        torch.manual_seed(0)
        sizes = {"vocab_size": 500, "hidden_size": width, "num_hidden_layers": 1, "num_attention_heads": 2}
        fields = sizes | {"parametrization": "mup", "base_width": 64, "tie_word_embeddings": False}
        model = VanillaDecoderForCausalLM(VanillaDecoderConfig(**fields))
        block = model.model.layers[0]
        assert not block.self_attn.q_proj.weight.any()
        for table in (model.model.embed_tokens, model.lm_head):
            assert table.weight.std().item() == pytest.approx(1 / 8, rel=0.03)
        for linear in (block.self_attn.v_proj, block.mlp.up_proj, block.mlp.down_proj):
            assert linear.weight.std().item() == pytest.approx(linear.in_features**-0.5, rel=0.03)
