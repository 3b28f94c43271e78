"""State dicts of models outside transformers: the model that they come from against ours, states and gradients."""

from typing import Any

import pytest
import torch
from modeling.toys import assert_close, padding, tokens
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel

import vanillaformer
from vanillaformer.conversion import from_state_dict, native_architectures, to_native
from vanillaformer.conversion.state_dicts import SOURCES, unwrapped

from .natives import GPT, LENGTH, Case, D, H, V, native_model, poison

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor")


def torch_transformer(**options: Any) -> nn.Transformer:
    sizes = {"d_model": D, "nhead": H, "num_encoder_layers": 3, "num_decoder_layers": 2, "dim_feedforward": 40}
    model = nn.Transformer(**sizes, dropout=0.0, batch_first=True, **options)
    poison(model)
    return model


def assert_same(
    reference: nn.Module, ours: nn.Module, expected: torch.Tensor, actual: torch.Tensor, **fields: Any
) -> None:
    """Equal states and gradients of all parameters, which come to ours as weights do, for the way is linear."""
    assert_close(actual, expected, "states")
    weights = torch.randn_like(expected)
    for states in (actual, expected):
        (states * weights).sum().backward()
    slopes = {name: parameter.grad for name, parameter in reference.named_parameters()}
    theirs = from_state_dict(slopes, "torch.nn.Transformer", **fields)
    for name, parameter in ours.named_parameters():
        # a key bias moves all scores of a query alike: its gradient is rounding, measured by the value bias
        scale = theirs.get_parameter(name.replace("k_proj.bias", "v_proj.bias")).norm()
        if "embed_tokens" not in name:
            error = (parameter.grad - theirs.get_parameter(name)).norm() / scale
            assert error <= 1e-5, f"gradient of {name}: relative error {error:.2e}"


@pytest.mark.parametrize(("theirs", "fields"), [
    ({}, {}), ({"norm_first": True, "activation": "gelu"}, {"norm_placement": "pre", "hidden_act": "gelu"}),
    ({"bias": False, "layer_norm_eps": 1e-3}, {"norm_eps": 1e-3}),
], ids=["post", "pre", "no biases"])  # fmt: skip
def test_an_encoder_decoder_of_torch(theirs, fields):
    reference, fields = torch_transformer(**theirs), fields | {"num_attention_heads": H}
    ours = from_state_dict(reference.state_dict(), "torch.nn.Transformer", **fields)
    assert type(ours) is vanillaformer.VanillaEncoderDecoderModel
    assert (ours.config.encoder_layers, ours.config.num_hidden_layers) == (3, 2)
    source, target = torch.randn(3, 9, D), torch.randn(3, 7, D)
    mask, target_mask = padding(3, 9), padding(3, 7)
    causal = nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.bool)
    hidden = {"src_key_padding_mask": mask == 0, "memory_key_padding_mask": mask == 0}
    expected = reference(source, target, tgt_mask=causal, tgt_key_padding_mask=target_mask == 0, **hidden)
    inputs = {"inputs_embeds": source, "attention_mask": mask, "decoder_inputs_embeds": target}
    actual = ours(**inputs, decoder_attention_mask=target_mask).last_hidden_state
    assert_same(reference, ours, expected[target_mask == 1], actual[target_mask == 1], **fields)


@pytest.mark.parametrize("final_norm", [True, False])
@pytest.mark.parametrize("causal", [False, True])
def test_an_encoder_of_torch(causal, final_norm):
    layer = nn.TransformerEncoderLayer(D, H, 40, 0.0, batch_first=True, norm_first=True)
    reference = nn.TransformerEncoder(layer, 2, nn.LayerNorm(D) if final_norm else None, enable_nested_tensor=False)
    poison(reference)
    fields = {"num_attention_heads": H, "norm_placement": "pre", "causal": causal}
    ours = from_state_dict(reference.state_dict(), "torch.nn.Transformer", **fields)
    assert type(ours) is (vanillaformer.VanillaDecoderModel if causal else vanillaformer.VanillaEncoderModel)
    x, real = torch.randn(3, 9, D), padding(3, 9)
    mask = nn.Transformer.generate_square_subsequent_mask(9, dtype=torch.bool) if causal else None
    expected = reference(x, mask=mask, src_key_padding_mask=real == 0)[real == 1]
    actual = ours(inputs_embeds=x, attention_mask=real).last_hidden_state[real == 1]
    assert_same(reference, ours, expected, actual, **fields)


def test_fresh_embeddings_have_the_size_asked_for():
    state = torch_transformer().state_dict()
    fields = {"vocab_size": 50, "decoder_vocab_size": 60, "position_embedding_type": "sinusoidal"}
    ours = from_state_dict(state, "torch.nn.Transformer", num_attention_heads=H, **fields)
    assert ours.encoder.embed_tokens.weight.shape == (50, D)
    assert ours(input_ids=tokens(1, 5, 50), decoder_input_ids=tokens(1, 4, 60)).last_hidden_state.shape == (1, 4, D)


def gpt(bias: bool = True, **changes: Any) -> PreTrainedModel:
    """A GPT-2 of transformers, which with other activations or without biases is one of nanoGPT or minGPT."""
    model = native_model(Case("gpt2", GPT | {"activation_function": "gelu"} | changes))
    if not bias:
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.data.zero_()
    return model


def state_of(model: PreTrainedModel, bias: bool = True) -> dict[str, torch.Tensor]:
    """Its weights as nanoGPT and minGPT name and lay them."""
    turned = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    named = {name: tensor for name, tensor in model.state_dict().items() if bias or not name.endswith("bias")}
    state = {name: (tensor.T if name.endswith(turned) else tensor).contiguous() for name, tensor in named.items()}
    mask = torch.ones(LENGTH, LENGTH).tril().view(1, 1, LENGTH, LENGTH)
    return state | {f"transformer.h.{layer}.attn.bias": mask.clone() for layer in range(2)}


def checkpoint_of(model: PreTrainedModel, bias: bool) -> dict[str, Any]:
    """What nanoGPT's train.py saves of a compiled model."""
    arguments = {"n_layer": 2, "n_head": H, "n_embd": D, "block_size": LENGTH, "bias": bias, "vocab_size": V}
    weights = {f"_orig_mod.{name}": tensor for name, tensor in state_of(model, bias).items()}
    return {"model": weights, "model_args": arguments | {"dropout": 0.1}, "config": {}, "iter_num": 5}


def test_names_of_compiled_and_distributed_models_are_unwrapped_in_any_order():
    weight = torch.ones(2)
    for prefix in ("module._orig_mod.", "_orig_mod.module.", "module.", "_orig_mod._orig_mod.", ""):
        assert unwrapped({f"{prefix}a.weight": weight, f"{prefix}b": weight})[0].keys() == {"a.weight", "b"}, prefix
    assert unwrapped({"module.a": weight, "b": weight})[0].keys() == {"module.a", "b"}


def assert_same_logits_and_gradients(ours: vanillaformer.VanillaDecoderForCausalLM, reference: nn.Module) -> None:
    ids = tokens(2, 9, V)
    actual, expected = ours(ids).logits, reference(ids).logits
    assert_close(actual, expected, "logits")
    for logits in (actual, expected):
        F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()


@pytest.mark.parametrize("bias", [True, False])
def test_a_checkpoint_of_nanogpt(bias, tmp_path):
    reference = gpt(bias)
    torch.save(checkpoint_of(reference, bias), tmp_path / "ckpt.pt")
    ours = from_state_dict(tmp_path / "ckpt.pt", "nanogpt")
    assert (ours.config.num_attention_heads, ours.config.dropout) == (H, 0.1)
    assert ours.config.tie_word_embeddings
    assert not ours.training
    assert_same_logits_and_gradients(ours, reference)
    gradients = [getattr(ours.model.layers[0].self_attn, f"{name}_proj").weight.grad for name in "qkv"]
    assert_close(torch.cat(gradients), reference.transformer.h[0].attn.c_attn.weight.grad.T, "attention", 1e-4)
    assert_close(ours.lm_head.weight.grad, reference.lm_head.weight.grad, "tokens", 1e-4)
    assert native_architectures(ours.config) == ["gpt2"]
    assert_close(to_native(ours).eval()(tokens(2, 9, V)).logits, reference(tokens(2, 9, V)).logits, "logits of GPT-2")


def test_a_state_dict_of_mingpt_in_safetensors(tmp_path):
    reference = gpt(tie_word_embeddings=False, activation_function="gelu_new")
    save_file(state_of(reference), tmp_path / "model.safetensors")
    ours = from_state_dict(tmp_path / "model.safetensors", "mingpt", num_attention_heads=H)
    assert not ours.config.tie_word_embeddings
    assert_same_logits_and_gradients(ours, reference)
    assert_close(ours.model.embed_tokens.weight.grad, reference.transformer.wte.weight.grad, "tokens", 1e-4)


def test_no_weight_is_shared_with_the_state_dict():
    state = state_of(gpt())
    ours = from_state_dict(state, "nanogpt", num_attention_heads=H)
    assert not {p.data_ptr() for p in ours.parameters()} & {tensor.data_ptr() for tensor in state.values()}
    halves = {k: t.bfloat16() for k, t in state.items()}
    assert from_state_dict(halves, "nanogpt", num_attention_heads=H).dtype == torch.bfloat16


def test_fields_that_weights_do_not_determine_are_required_and_others_cannot_differ():
    state, broken = state_of(gpt()), checkpoint_of(gpt(), True)
    for source in SOURCES:
        with pytest.raises(ValueError, match=f"num_attention_heads must be given.*{source}"):
            from_state_dict(state, source)
    refused(state, "hidden_size=32, but the nanogpt state dict has hidden_size=24", hidden_size=32)
    refused(state, r"hidden_act.*got 'gelv'", hidden_act="gelv")
    refused(state, "hidden_act", hiden_act="relu")
    broken["model_args"]["block_size"] = 99
    refused(broken, "max_position_embeddings=99")


def refused(state: Any, message: str, source: str = "nanogpt", **fields: Any) -> None:
    with pytest.raises(ValueError, match=message):
        from_state_dict(state, source, **{"num_attention_heads": H} | fields)


def test_unknown_sources_other_models_and_tensors_that_do_not_fit_are_named():
    refused({}, r"source must be one of .*nanogpt.*got 'nanoGPT'", "nanoGPT")
    refused(torch_transformer().state_dict(), r"transformer\.wte\.weight")
    refused(state_of(gpt()), r"linear1\.weight", "torch.nn.Transformer")
    state = state_of(gpt())
    refused(state | {"value_head.weight": torch.ones(2)}, r"nanogpt tensors value_head\.weight")
    refused(state | {"transformer.h.1.ln_1.weight": torch.ones(D + 1)}, r"layers\.1\.self_attn_residual\.norm\.weight")
    del state["transformer.h.1.mlp.c_proj.weight"]
    refused(state, r"transformer\.h\.1\.mlp\.c_proj\.weight")


def test_a_prefix_takes_a_part_of_a_larger_model():
    state = {f"body.{name}": tensor for name, tensor in torch_transformer().state_dict().items()}
    state["head.weight"] = torch.ones(2, D)
    ours = from_state_dict(state, "torch.nn.Transformer", prefix="body.", num_attention_heads=H)
    assert torch.equal(ours.encoder.norm.weight, state["body.encoder.norm.weight"])
    refused(state, r"prefix='boody\.'", "torch.nn.Transformer", prefix="boody.")


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("run",)


def test_nothing_in_a_file_is_run(tmp_path, capsys):
    torch.save({"model": state_of(gpt()), "config": Evil()}, tmp_path / "evil.pt")
    refused(tmp_path / "evil.pt", r"evil\.pt cannot be read as tensors")
    assert "run" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["broken.pt", "broken.safetensors", "missing.pt"])
def test_a_file_that_cannot_be_read_is_named(name, tmp_path):
    if name.startswith("broken"):
        (tmp_path / name).write_bytes(b"no tensors")
    refused(tmp_path / name, name)
    torch.save([1, 2], tmp_path / "list.pt")
    refused(tmp_path / "list.pt", r"list\.pt must hold tensors by name, got a list")
