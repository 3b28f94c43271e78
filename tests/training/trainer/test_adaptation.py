import pytest
from refusals import refused
from torch import nn

import vanillaformer as vf
from vanillaformer.training.tasks.classification import ClassifierTrainingArguments
from vanillaformer.training.trainer import adaptation
from vanillaformer.training.trainer.adaptation import AdaptationArguments, freeze, with_adapters
from vanillaformer.training.trainer.parallel import adapted_plan

SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 11, "num_attention_heads": 2}


@pytest.fixture
def model() -> vf.VanillaDecoderForCausalLM:
    return vf.VanillaDecoderForCausalLM(vf.VanillaDecoderConfig(**SIZES, tie_word_embeddings=True))


def frozen(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if not parameter.requires_grad}


@pytest.mark.parametrize(("pattern", "beginning", "end"), [
    ("embed_tokens", "model.embed_tokens.", ""), ("lm_head", "model.embed_tokens.", ""),  # the same table
    ("layers.1", "model.layers.1.", ""), ("layers.1?", "model.layers.10.", ""), ("*.bias", "", ".bias"),
    ("model.layers.*", "model.layers.", ""), ("model.norm.weight", "model.norm.weight", ""),
])  # fmt: skip
def test_freeze(pattern: str, beginning: str, end: str, model, capsys) -> None:
    freeze(model, [pattern])
    named = dict(model.named_parameters())
    wanted = {name for name in named if name.startswith(beginning) and name.endswith(end)}
    assert frozen(model) == wanted != set()
    left = sum(named[name].numel() for name in named.keys() - wanted)
    total = sum(parameter.numel() for parameter in named.values())
    assert capsys.readouterr().out == f"Trained: {left:,} of {total:,} parameters, without {pattern}\n"


def test_names_that_nothing_has(model) -> None:
    for pattern in ("layers.11", "embed", "layer"):
        refused(f"--freeze {pattern}: no parameter .* called model.embed_tokens.weight, ", freeze, model, [pattern])
    refused(r"--freeze model\.\* leaves nothing to train", freeze, model, ["model.*"])


def test_adapters_and_heads_are_trained(model, capsys) -> None:
    classifier = vf.VanillaEncoderForSequenceClassification(vf.VanillaEncoderConfig(**SIZES, classifier_act="tanh"))
    adapted = with_adapters(classifier, AdaptationArguments(lora_rank=2, lora_targets=["k_proj"]))
    names = {name.removeprefix("base_model.model.") for name in frozen(adapted)}
    trained = {name for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    assert len([name for name in trained if "k_proj.lora_" in name]) == 2 * SIZES["num_hidden_layers"]
    assert {name.split(".")[2] for name in trained if "lora" not in name} == {"classifier", "pooler"}
    assert "model.embed_tokens.weight" in names
    assert "Warning: --lora_rank trains adapters of a new model" in capsys.readouterr().out
    names = "down_proj, k_proj, lm_head, o_proj, q_proj, up_proj, v_proj"
    with pytest.raises(ValueError, match=f"--lora_targets query: the model's linear layers are called {names}"):
        with_adapters(model, AdaptationArguments(lora_rank=2, lora_targets=["q_proj", "query"]))
    with pytest.raises(ValueError, match="--lora_targets lm_head: its weight is the embeddings'"):
        with_adapters(model, AdaptationArguments(lora_rank=2, lora_targets=["lm_head"]))


def test_tensor_parallel_plan_of_adapters(model) -> None:
    adapters = AdaptationArguments(lora_rank=2, lora_targets=["q_proj", "down_proj"])
    plan = adapted_plan(with_adapters(model, adapters).get_base_model())
    layer, styles = "model.layers.*", {"self_attn.q_proj": ("colwise", "B"), "mlp.down_proj": ("rowwise", "A")}
    for name, (style, side) in styles.items():
        assert plan[f"{layer}.{name}.base_layer"] == plan[f"{layer}.{name}.lora_{side}.default"] == style
        assert f"{layer}.{name}" not in plan
    assert plan[f"{layer}.self_attn.k_proj"] == "colwise"
    other = vf.VanillaDecoderForCausalLM(vf.VanillaDecoderConfig(**SIZES))
    adapters = AdaptationArguments(lora_rank=2, lora_targets=["layers.1.self_attn.q_proj"])
    some = with_adapters(other, adapters).get_base_model()
    refused("--lora_targets: .*q_proj must have adapters in all layers or in none", adapted_plan, some)


def test_adapters_need_a_layer_and_peft(monkeypatch) -> None:
    refused("--lora_rank 2 .* --lora_targets", ClassifierTrainingArguments, use_cpu=True, lora_rank=2, lora_targets=[])
    monkeypatch.setattr(adaptation, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"--lora_rank 2 needs peft, .*: pip install 'vanillaformer\[peft\]'"):
        ClassifierTrainingArguments(use_cpu=True, lora_rank=2)
