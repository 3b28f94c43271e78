"""Attention against a loop over heads, and through every interface of transformers."""

import re
from typing import get_args

import pytest
import torch
from refusals import refused

from vanillaformer.configuration import options
from vanillaformer.configuration.fields import PROJECTIONS
from vanillaformer.modeling.parts.attention import Attention, CrossAttention, eager_attention, repeat_heads
from vanillaformer.modeling.parts.positions import no_rotation

from .toys import KINDS, assert_close, inputs_of, relative_error, shared_toy, sharpen, toy, toy_config

B, T, S, D, H, G, K = 2, 5, 6, 24, 4, 2, 8


def normed(norm: torch.nn.Module, kind: str, states: torch.Tensor) -> torch.Tensor:
    """Queries or keys (B, T, heads * K) normalized as `qk_norm` says."""
    heads = states.unflatten(-1, (-1, K))
    if kind == "each_head":  # the bare norm, and a weight of its own
        return (norm.weight * norm.norm(heads)).flatten(2)
    return {"none": lambda: states, "full": lambda: norm(states), "head": lambda: norm(heads).flatten(2)}[kind]()


def naive_attention(module: Attention, x: torch.Tensor, y: torch.Tensor, causal: bool) -> torch.Tensor:
    """Every head by itself: `softmax(q·k / √K) v`."""
    scale, cap = module.config.attention_scale or K**-0.5, module.config.attn_logit_softcapping
    queries = normed(module.q_norm, module.config.qk_norm, module.q_proj(x)).split(K, dim=-1)
    keys = normed(module.k_norm, module.config.qk_norm, module.k_proj(y)).split(K, dim=-1)
    values, outputs = module.v_proj(y).split(K, dim=-1), []
    for h, query in enumerate(queries):
        g = h // (H // G)  # this many query heads in a row share a key head
        scores = query @ keys[g].mT * scale
        scores = scores if cap is None else cap * (scores / cap).tanh()
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores[0]).triu(1) == 1, -torch.inf)
        outputs.append(scores.softmax(-1) @ values[g])
    return module.o_proj(torch.cat(outputs, dim=-1))


@pytest.mark.parametrize(("implementation", "fields"), [
    *((way, {"qk_norm": qk_norm, "norm": norm}) for way in ("eager", "sdpa")
      for qk_norm in get_args(options.QueryKeyNorm) for norm in get_args(options.Norm)),
    ("eager", {"attention_scale": 0.7, "attn_logit_softcapping": 1.5}),
], ids=str)  # fmt: skip
def test_attention_is_its_loop(implementation, fields):
    config = toy_config("decoder", attn_implementation=implementation, **fields)
    x, y = torch.randn(B, T, D), torch.randn(B, S, D)
    cross = sharpen(CrossAttention(config, 0, False, no_rotation)).eval()
    assert_close(cross(x, key_value_states=y)[0], naive_attention(cross, x, y, causal=False), "cross-attention")
    for causal in (True, False):
        module = sharpen(Attention(config, 0, causal, no_rotation)).eval()
        mask = torch.zeros(T, T).masked_fill(torch.ones(T, T).triu(1) == 1, -1e9)[None, None] if causal else None
        output, _ = module(x, attention_mask=mask)
        assert_close(output, naive_attention(module, x, x, causal), "self-attention")


@pytest.mark.parametrize("bias", [True, False, [], ["o_proj"], ["q_proj", "k_proj", "v_proj"], ["v_proj", "q_proj"]])
def test_each_projection_has_the_bias_that_it_is_given(bias):
    module = Attention(toy_config("decoder", attention_bias=bias), 0, True, no_rotation)
    names = [name for name in PROJECTIONS if getattr(module, name).bias is not None]
    assert names == [name for name in PROJECTIONS if bias is True or (bias and name in bias)]


WITHOUT_BIAS = ("flash_attention_2", "flash_attention_3", "kernels-community/flash-attn2", "paged|eager")


# Fields, the attention that is chosen for them, others that cannot compute them, and those that can
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("fields", "chosen", "others", "able"), [
    ({"attn_logit_softcapping": 5.0}, "eager", ("sdpa", "paged|eager"), "'eager' or 'flex_attention'"),
    ({"position_embedding_type": "alibi"}, "sdpa", WITHOUT_BIAS, "'eager', 'sdpa' or"),
    ({"position_embedding_type": "relative"}, "sdpa", WITHOUT_BIAS, "'eager', 'sdpa' or"),
])  # fmt: skip
def test_options_that_few_attention_functions_have_are_refused_by_others(kind, fields, chosen, others, able):
    model, ((name, value),) = toy(kind, **fields), fields.items()
    for implementation in others:
        refused(re.escape(f"{name}={value!r} needs {able}"), model.set_attn_implementation, implementation)
    assert model.config._attn_implementation == chosen
    if kind == "decoder":
        refused(f"continuous batching.*{name}", model.generate_batch, [[5, 6, 7]], max_new_tokens=3)


@pytest.mark.parametrize(("kind", "window"), [("decoder", 5), ("encoder", 6)])
def test_attention_functions_that_apply_a_window_get_its_size(kind, window):
    """Flash attention counts the token itself; transformers' mask of an encoder does not."""
    overrides = {"sliding_window": 5, "layer_types": ["full_attention", "sliding_attention"]}
    layers = toy(kind, **overrides).base_model.layers
    assert [layer.self_attn.options for layer in layers] == [{}, {"sliding_window": window}]
    pair = toy("encoder_decoder", **overrides).base_model
    assert [layer.self_attn.options for layer in getattr(pair, kind).layers] == [{}, {"sliding_window": window}]
    assert [layer.cross_attn.options for layer in pair.decoder.layers] == [{}, {}]


def test_cross_attention_has_no_rotation():
    for layer in shared_toy("encoder_decoder", {"position_embedding_type": "rotary"}).model.decoder.layers:
        assert layer.cross_attn.rotate is no_rotation
        assert layer.self_attn.rotate is not no_rotation


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_eager_attention_of_rows_without_a_visible_token_is_finite(dtype):
    module = Attention(toy_config("decoder"), 0, True, no_rotation).eval()
    heads, width = module.config.num_attention_heads, module.head_dim
    query = torch.full((1, heads, T, width), 10.0, dtype=dtype)
    key, value = -query[:, ::2], torch.randn(1, heads // 2, T, width).to(dtype)
    mask = torch.full((1, 1, T, T), torch.finfo(dtype).min, dtype=dtype)
    mask[..., -1, 0] = 0  # the last token sees the first one
    output, probabilities = eager_attention(module, query, key, value, mask, scaling=1.0)
    assert torch.isfinite(output).all()
    assert_close(probabilities.double().sum(-1), torch.ones(1, heads, T, dtype=torch.float64), "sums", 1e-2)
    assert torch.equal(output[:, -1], repeat_heads(value, 2)[:, :, 0])


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_mixed_with_those_of_the_first_layer(kind):
    """As in a model without it, in which hooks do so; a cache and rows of other texts are the axes' business."""
    model, inputs = toy(kind, value_residual=True), inputs_of(kind)
    plain = toy(kind)
    weights = model.state_dict()
    plain.load_state_dict({name: value for name, value in weights.items() if "mix_values" not in name})
    factors = {name.rpartition(".mix_values")[0]: value for name, value in weights.items() if "mix_values" in name}
    assert len(factors) == (2 if kind == "encoder_decoder" else 1)
    assert relative_error(plain(**inputs).logits, model(**inputs).logits) > 0.01
    first = {}
    for name, module in plain.named_modules():
        stack = name.partition(".layers.")[0]
        if name.endswith("layers.0.self_attn"):
            module.v_proj.register_forward_hook(lambda _, args, out, stack=stack: first.update({stack: out}))
        elif name in factors:
            mix = lambda _, args, out, stack=stack, factor=factors[name]: out.lerp(first[stack], factor)  # noqa: E731
            module.v_proj.register_forward_hook(mix)
    assert_close(model(**inputs).logits, plain(**inputs).logits, "logits")
    model.train().gradient_checkpointing_enable({"use_reentrant": True})
    refused("value_residual=True needs gradient checkpointing with use_reentrant=False", model, **inputs)
