"""Pruned models: they compute what the whole ones do without those heads, and are models like any other."""

from contextlib import ExitStack

import pytest
import torch
from modeling.toys import assert_close, inputs_of, labels_of, pixels, relative_error, tokens, toy
from transformers import AutoModelForCausalLM, AutoTokenizer

from vanillaformer import VanillaEncoderForSequenceClassification
from vanillaformer.conversion import to_native
from vanillaformer.exploration.ablation import attention_layers, head_ablation, replaced_heads
from vanillaformer.exploration.pruning import prune_folder, prune_heads
from vanillaformer.modeling.counts import count_flops, count_parameters
from vanillaformer.tokenization import train

SINGLE = {"num_key_value_heads": 4}
PAIR = ["decoder.0.0", "decoder.0.1"]
BOTH = [*PAIR, "decoder.1.0", "decoder.1.1"]
OTHERS = [*PAIR, "decoder.1.2", "decoder.1.3"]
ALL_KINDS = [
    f"{kind}.{layer}.{head}" for kind in ("encoder", "decoder", "cross") for layer in (0, 1) for head in (2, 3)
]
WINDOWS = {"window_size": 2, "use_cls_token": False, "image_pooling": "mean", **SINGLE}
WINDOWS |= {"position_embedding_type": "window_relative"}

# Kind of model, its fields, the heads to prune, and the number of heads of the pruned config
CASES = [
    ("decoder", {}, PAIR, 4),
    ("decoder", {}, OTHERS, 2),
    ("decoder", {"position_embedding_type": "alibi"}, BOTH, 4),
    ("decoder", {"position_embedding_type": "relative"}, OTHERS, 4),
    ("decoder", {"position_embedding_type": "relative"}, BOTH, 2),
    ("decoder", {"position_embedding_type": "relative", "relative_attention_per_layer": True}, OTHERS, 2),
    ("decoder", {"qk_norm": "each_head", "attention_bias": ["q_proj", "o_proj"]}, OTHERS, 2),
    ("encoder", {"qk_norm": "head", **SINGLE}, ["encoder.1.2"], 4),
    ("encoder_decoder", {"position_embedding_type": "relative", **SINGLE}, ["encoder.0.2", "cross.0.3"], 4),
    ("encoder_decoder", {"position_embedding_type": "relative"}, ALL_KINDS, 2),
    ("image_encoder", WINDOWS, ["encoder.0.2", "encoder.1.1"], 3),
    ("image_encoder", WINDOWS | {"depths": [1, 1]}, ["encoder.0.2", "encoder.1.5"], 4),
    ("image_encoder", {"position_embedding_type": "grid_relative", **SINGLE}, ["encoder.0.3"], 4),
]


def without(model, names, inputs):
    """The logits of a model whose heads of these names give 0."""
    with ExitStack() as stack, torch.no_grad():
        for kind, layers in attention_layers(model).items():
            for number, attention in enumerate(layers):
                prefix = f"{kind}.{number}."
                heads = [int(name.removeprefix(prefix)) for name in names if name.startswith(prefix)]
                stack.enter_context(replaced_heads(attention, [attention.heads.index(head) for head in heads]))
        return model(**inputs).logits


@pytest.mark.parametrize(("kind", "fields", "names", "heads"), CASES)
def test_a_pruned_model_computes_what_the_whole_one_does_without_the_heads(kind, fields, names, heads, tmp_path):
    model = toy(kind, **fields).double()
    inputs = {"pixel_values": pixels(2).double()} if kind == "image_encoder" else inputs_of(kind)
    pruned = prune_heads(model, names)
    expected = without(model, names, inputs)
    assert relative_error(pruned(**inputs).logits, expected) < 1e-14
    assert (pruned.config.num_attention_heads, pruned.config.pruned_heads) == (
        heads,
        sorted(names) if heads == 4 else None,
    )
    assert pruned.config.head_dim == model.config.head_dim
    assert sum(count_parameters(pruned.config).values()) == pruned.num_parameters() < model.num_parameters()
    before, after = (count_flops(each.config, length=5) for each in (model, pruned))
    assert after["attention scores"] < before["attention scores"]
    pruned.save_pretrained(tmp_path)
    loaded = type(pruned).from_pretrained(tmp_path, dtype=torch.float64)
    assert all(
        torch.equal(one, other) for one, other in zip(loaded.state_dict().values(), pruned.state_dict().values())
    )
    assert relative_error(loaded(**inputs).logits, pruned(**inputs).logits) < 1e-14  # memory is aligned otherwise


def test_heads_can_be_pruned_again_by_their_first_numbers():
    model = toy("decoder", **SINGLE).double()
    once = prune_heads(model, ["decoder.0.1"])
    twice = prune_heads(once, ["decoder.0.3", "decoder.1.0", "decoder.1.2"])
    whole = prune_heads(model, ["decoder.0.1", "decoder.0.3", "decoder.1.0", "decoder.1.2"])
    assert twice.config.num_attention_heads == 2
    assert torch.equal(twice(**inputs_of("decoder")).logits, whole(**inputs_of("decoder")).logits)
    found = head_ablation(once, [inputs_of("decoder") | {"labels": labels_of("decoder")}])["decoder"]
    assert found.shape == (2, 4)
    assert [tuple(each) for each in (found != found).nonzero()] == [(0,), (1,)]


def test_a_pruned_model_trains_and_generates():
    model = toy("encoder_decoder", **SINGLE)
    pruned = prune_heads(model, ["encoder.0.2", "decoder.1.0", "cross.0.3"])
    inputs = {"input_ids": tokens(2, 6)}
    pruned(**inputs, labels=labels_of("encoder_decoder", 2, 6)).loss.backward()
    assert all(parameter.grad is not None for parameter in pruned.parameters())
    options = {"max_new_tokens": 6, "num_beams": 2}
    expected = pruned.generate(**inputs, **options, use_cache=False)
    for cache in (None, "static"):
        assert torch.equal(pruned.generate(**inputs, **options, cache_implementation=cache), expected)


def test_as_many_heads_everywhere_convert_and_others_are_refused_by_name():
    gpt = {"position_embedding_type": "learned", **SINGLE}
    model = toy(
        "decoder",
        hidden_act="silu",
        feed_forward="gated",
        norm="rms_norm",
        norm_bias=False,
        mlp_bias=False,
        attention_bias=False,
        final_norm=True,
        lm_head_bias=False,
        **SINGLE,
    )
    ids = tokens(2, 6)
    pruned = prune_heads(model, ["decoder.0.1", "decoder.1.3"])
    assert_close(to_native(pruned, "llama")(ids).logits, pruned(ids).logits, "llama")
    with pytest.raises(ValueError, match=r"llama: pruned_heads=\['decoder.0.1'\]"):
        to_native(prune_heads(model, ["decoder.0.1"]), "llama")
    with pytest.raises(ValueError, match=r"gpt2: .*head_dim"):
        to_native(prune_heads(toy("decoder", **gpt, head_dim=6), ["decoder.0.1", "decoder.1.3"]), "gpt2")


def test_a_folder_is_pruned_with_what_belongs_to_it(tmp_path):
    model = toy("decoder", **SINGLE)
    model.save_pretrained(tmp_path / "whole")
    train(["a b c d"] * 9, algorithm="word", kind="decoder", vocab_size=30).save_pretrained(tmp_path / "whole")
    (tmp_path / "whole" / "README.md").write_text("# A model\n")
    result = prune_folder(str(tmp_path / "whole"), tmp_path / "small", ["decoder.0.1"])
    assert (result.model_class, result.before) == ("VanillaDecoderForCausalLM", model.num_parameters())
    small = AutoModelForCausalLM.from_pretrained(tmp_path / "small")
    assert small.num_parameters() == result.after < result.before
    assert "pruned_heads=['decoder.0.1']" in result.fields
    assert AutoTokenizer.from_pretrained(tmp_path / "small").get_vocab()
    assert "without the heads decoder.0.1" in (tmp_path / "small" / "README.md").read_text()
    with pytest.raises(ValueError, match="small"):
        prune_folder(str(tmp_path / "whole"), tmp_path / "small", ["decoder.0.1"])


@pytest.mark.parametrize(
    ("names", "fields", "message"),
    [
        ([], {}, "give heads"),
        (["decoder.0.4"], {}, "layers decoder 0 to 1 and the numbers 0 to 3, got 'decoder.0.4'"),
        (["decoder.2.0"], {}, "got 'decoder.2.0'"),
        (["encoder.0.0"], {}, "got 'encoder.0.0'"),
        (["decoder.0"], {}, "got 'decoder.0'"),
        (["decoder.0.0"], {}, r"pruned together, 2 in a row .* got \[0\] of decoder.0"),
        (["decoder.0.0"] * 2, SINGLE, "each once, got decoder.0.0, decoder.0.0"),
        ([f"decoder.0.{head}" for head in range(4)], {}, r"one head of each layer must remain, got all of decoder\.0"),
        (["decoder.0.0"], SINGLE | {"qk_norm": "full"}, "qk_norm='full'"),
    ],
)
def test_heads_that_cannot_be_pruned_are_refused(names, fields, message):
    with pytest.raises(ValueError, match=message):
        prune_heads(toy("decoder", **fields), names)


def test_other_heads_keep_their_head():
    model = toy("encoder", VanillaEncoderForSequenceClassification, num_labels=3, **SINGLE).double()
    inputs = inputs_of("encoder")
    pruned = prune_heads(model, ["encoder.0.1"])
    assert isinstance(pruned, VanillaEncoderForSequenceClassification)
    assert relative_error(pruned(**inputs).logits, without(model, ["encoder.0.1"], inputs)) < 1e-14
