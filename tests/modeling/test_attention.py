"""Attention against loops over batch, heads and tokens, and through every interface of transformers."""

import math
from typing import get_args

import pytest
import torch

from vanillaformer.configuration import options
from vanillaformer.configuration.fields import PROJECTIONS
from vanillaformer.modeling.parts.attention import Attention, CrossAttention, eager_attention, repeat_heads
from vanillaformer.modeling.parts.positions import no_rotation

from .toys import (
    KINDS,
    assert_close,
    attending,
    combinations,
    few_toys,
    inputs_of,
    name_of,
    plain_flex_attention,
    shared_toy,
    sharpen,
    toy,
    toy_config,
)

B, T, S, D, H, G, K = 2, 5, 6, 24, 4, 2, 8


def weighted(norm: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Each head normalized by the bare norm and multiplied by its own weight."""
    heads = zip(x.split(K, dim=-1), norm.weight, strict=True)
    return torch.cat([weight * norm.norm(head) for head, weight in heads], dim=-1)


def naive_attention(
    module: Attention, x: torch.Tensor, y: torch.Tensor, causal: bool, scale: float = K**-0.5, cap: float | None = None
) -> torch.Tensor:
    """Every query, head and row by itself: `softmax(q·k / √K) v`."""
    queries, keys, values = module.q_proj(x), module.k_proj(y), module.v_proj(y)
    if module.config.qk_norm == "full":
        queries, keys = module.q_norm(queries), module.k_norm(keys)
    if module.config.qk_norm == "head":
        queries = torch.cat([module.q_norm(head) for head in queries.split(K, dim=-1)], dim=-1)
        keys = torch.cat([module.k_norm(head) for head in keys.split(K, dim=-1)], dim=-1)
    if module.config.qk_norm == "each_head":
        queries, keys = weighted(module.q_norm, queries), weighted(module.k_norm, keys)
    output = torch.zeros(x.shape[0], x.shape[1], H * K)
    for b in range(x.shape[0]):
        for h in range(H):
            g = h // (H // G)  # this many query heads in a row share a key head
            query, shared = slice(h * K, (h + 1) * K), slice(g * K, (g + 1) * K)
            for t in range(x.shape[1]):
                seen = t + 1 if causal else y.shape[1]
                scores = [(queries[b, t, query] @ keys[b, s, shared]).item() * scale for s in range(seen)]
                scores = scores if cap is None else [cap * math.tanh(score / cap) for score in scores]
                total = sum(math.exp(score) for score in scores)
                for s, score in enumerate(scores):
                    output[b, t, query] += math.exp(score) / total * values[b, s, shared]
    return module.o_proj(output)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("causal", [True, False])
def test_self_attention_is_its_loop(causal, implementation):
    config = toy_config("decoder", attn_implementation=implementation)
    module = sharpen(Attention(config, 0, causal, no_rotation)).eval()
    x = torch.randn(B, T, D)
    mask = torch.zeros(T, T).masked_fill(torch.ones(T, T).triu(1) == 1, -1e9)[None, None] if causal else None
    output, _ = module(x, attention_mask=mask)
    assert_close(output, naive_attention(module, x, x, causal), "output")


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_cross_attention_is_its_loop(implementation):
    config = toy_config("decoder", attn_implementation=implementation)
    module = sharpen(CrossAttention(config, 0, False, no_rotation)).eval()
    x, y = torch.randn(B, T, D), torch.randn(B, S, D)
    output, _ = module(x, key_value_states=y)
    assert_close(output, naive_attention(module, x, y, causal=False), "output")


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("qk_norm", get_args(options.QueryKeyNorm))
@pytest.mark.parametrize("norm", get_args(options.Norm))
@pytest.mark.parametrize("attention_class", [Attention, CrossAttention])
def test_queries_and_keys_are_normalized_per_head_or_over_their_width(attention_class, norm, qk_norm, implementation):
    config = toy_config("decoder", attn_implementation=implementation, qk_norm=qk_norm, norm=norm)
    module = sharpen(attention_class(config, 0, False, no_rotation)).eval()
    x = torch.randn(B, T, D)
    output, _ = module(x, key_value_states=x)
    assert_close(output, naive_attention(module, x, x, causal=False), "output")


@pytest.mark.parametrize("attention_class", [Attention, CrossAttention])
def test_scale_and_soft_cap(attention_class):
    config = toy_config("decoder", attention_scale=0.7, attn_logit_softcapping=1.5, attn_implementation="eager")
    module = sharpen(attention_class(config, 0, False, no_rotation)).eval()
    x = torch.randn(B, T, D)
    output, _ = module(x, key_value_states=x)
    assert_close(output, naive_attention(module, x, x, causal=False, scale=0.7, cap=1.5), "output")


@pytest.mark.parametrize("bias", [True, False, [], ["o_proj"], ["q_proj", "k_proj", "v_proj"], ["v_proj", "q_proj"]])
def test_each_projection_has_the_bias_that_it_is_given(bias):
    module = Attention(toy_config("decoder", attention_bias=bias), 0, True, no_rotation)
    names = [name for name in PROJECTIONS if getattr(module, name).bias is not None]
    assert names == [name for name in PROJECTIONS if bias is True or (bias and name in bias)]


def test_keys_and_values_can_come_from_another_width():
    model = toy("encoder_decoder", encoder_hidden_size=40, encoder_intermediate_size=56)
    layer = model.model.decoder.layers[0]
    assert model.model.encoder.layers[0].self_attn.q_proj.weight.shape == (H * K, 40)
    assert model.model.encoder.layers[0].mlp.up_proj.weight.shape == (56, 40)
    assert layer.cross_attn.k_proj.weight.shape == layer.cross_attn.v_proj.weight.shape == (G * K, 40)
    assert (layer.cross_attn.q_proj.weight.shape, layer.cross_attn.o_proj.weight.shape) == ((H * K, D), (D, H * K))
    assert model(**inputs_of("encoder_decoder")).logits.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_soft_cap_is_eager_unless_it_is_said_and_never_sdpa(kind):
    model = toy(kind, attn_logit_softcapping=5.0)
    assert model.config._attn_implementation == "eager"
    for implementation in ("sdpa", "paged|eager"):
        with pytest.raises(ValueError, match=r"attn_logit_softcapping=5\.0 needs 'eager' or 'flex_attention'"):
            model.set_attn_implementation(implementation)
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scheme", ["alibi", "relative"])
def test_a_position_bias_is_never_left_out_by_an_attention_without_one(kind, scheme):
    model = toy(kind, position_embedding_type=scheme)
    assert model.config._attn_implementation == "sdpa"
    for implementation in ("flash_attention_2", "flash_attention_3", "kernels-community/flash-attn2", "paged|eager"):
        with pytest.raises(ValueError, match=f"position_embedding_type='{scheme}' needs 'eager', 'sdpa' or"):
            model.set_attn_implementation(implementation)


@pytest.mark.parametrize(
    "overrides",
    [
        {"position_embedding_type": "alibi"},
        {"position_embedding_type": "relative"},
        {"attn_logit_softcapping": 5.0},
    ],
    ids=name_of,
)
def test_continuous_batching_is_refused_where_it_would_be_wrong(overrides):
    model = toy("decoder", **overrides)
    with pytest.raises(ValueError, match=f"continuous batching.*{next(iter(overrides))}"):
        model.generate_batch([[5, 6, 7]], max_new_tokens=3)


@pytest.mark.parametrize(("kind", "window"), [("decoder", 5), ("encoder", 6)])
def test_attention_functions_with_a_window_of_their_own_are_told_it(kind, window):
    """Flash attention counts the token itself; transformers' mask of an encoder does not."""
    overrides = {"sliding_window": 5, "layer_types": ["full_attention", "sliding_attention"]}
    layers = toy(kind, **overrides).base_model.layers
    assert [layer.self_attn.options for layer in layers] == [{}, {"sliding_window": window}]


def test_cross_attention_has_no_window():
    model = toy("encoder_decoder", sliding_window=5).model
    assert model.decoder.layers[0].self_attn.options == {"sliding_window": 5}
    assert model.encoder.layers[0].self_attn.options == {"sliding_window": 6}
    assert model.decoder.layers[0].cross_attn.options == {}


def test_cross_attention_has_no_rotation():
    inputs = inputs_of("encoder_decoder", batch=1)
    model = shared_toy("encoder_decoder", {"position_embedding_type": "rotary"})
    seen = []
    hook = model.model.decoder.layers[0].cross_attn.register_forward_hook(
        lambda module, args, kwargs, output: seen.append((kwargs, output[0])), with_kwargs=True
    )
    model(**inputs)
    hook.remove()
    kwargs, output = seen[0]
    states = kwargs["key_value_states"]
    layer = model.model.decoder.layers[0]
    plain = CrossAttention(model.config, 0, False, no_rotation).eval().double()
    plain.load_state_dict(layer.cross_attn.state_dict())
    x = []
    hook = layer.cross_attn.register_forward_pre_hook(lambda module, args: x.append(args[0]))
    model(**inputs)
    hook.remove()
    assert_close(output, plain(x[0], key_value_states=states)[0], "output")


def test_the_position_bias_is_added_to_the_scores():
    module = Attention(toy_config("decoder"), 0, False, no_rotation).eval()
    query, key, value = torch.randn(B, H, T, K), torch.randn(B, G, S, K), torch.randn(B, G, S, K)
    bias = torch.randn(1, H, T, S)
    output, probabilities = eager_attention(module, query, key, value, None, scaling=0.3, position_bias=bias)
    scores = query @ key.repeat_interleave(2, 1).transpose(2, 3) * 0.3 + bias
    assert_close(probabilities, scores.softmax(-1), "probabilities")
    assert_close(output, (scores.softmax(-1) @ value.repeat_interleave(2, 1)).transpose(1, 2), "output")


def test_key_heads_are_repeated_in_a_row():
    x = torch.arange(3.0).view(1, 3, 1, 1)
    assert repeat_heads(x, 2).flatten().tolist() == [0, 0, 1, 1, 2, 2]
    assert repeat_heads(x, 1) is x


@pytest.mark.parametrize("kind", KINDS)
def test_the_attributes_that_transformers_attention_reads(kind):
    model = shared_toy(kind, {})
    attentions = {name: module for name, module in model.named_modules() if isinstance(module, Attention)}
    assert len(attentions) == (6 if kind == "encoder_decoder" else 2)
    for name, module in attentions.items():
        assert module.layer_idx == int(name.split(".")[-2])
        assert module.is_causal is (("decoder" in name or kind == "decoder") and "cross_attn" not in name)
        assert module.scaling == K**-0.5
        assert module.num_key_value_groups == H // G


@few_toys()
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_gives_what_sdpa_gives(kind, overrides, side, monkeypatch):
    plain_flex_attention(monkeypatch)
    model, inputs = shared_toy(kind, overrides), inputs_of(kind, side=side)
    real = inputs["attention_mask"] == 1 if kind != "encoder_decoder" else slice(None)
    expected = model(**inputs).logits[real]
    with attending(model, "flex_attention"):
        assert_close(model(**inputs).logits[real], expected, "flex against sdpa")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("overrides", combinations(("relu",))[::7], ids=name_of)
def test_gradients_through_eager_attention_are_those_through_sdpa(kind, overrides):
    inputs, gradients = inputs_of(kind), []
    for implementation in ("eager", "sdpa"):
        model = toy(kind, **overrides, attn_implementation=implementation)
        logits = model(**inputs).logits
        if kind != "encoder_decoder":
            logits = logits[inputs["attention_mask"] == 1]
        logits.cos().sum().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if not name.endswith("k_proj.bias")})
    largest = max(gradient.norm() for gradient in gradients[1].values())
    for name, gradient in gradients[1].items():
        # Without residuals or norms some all but vanish, and what is left of them is rounding of what they come from
        scale = max(gradient.norm(), 1e-3 * largest)
        error = (gradients[0][name] - gradient).norm() / scale
        assert error <= 1e-4, f"gradient of {name}: relative error {error:.1e}"


@pytest.mark.parametrize("kind", KINDS)
def test_an_attention_that_does_not_exist_is_refused(kind):
    with pytest.raises(ValueError, match="nonsense"):
        KINDS[kind][1](toy_config(kind, attn_implementation="nonsense"))


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
def test_eager_attention_in_float64_is_sdpas(kind):
    model, inputs = toy(kind).double(), inputs_of(kind, side="left")
    visible = inputs["attention_mask"].bool()
    found = {}
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        logits = model(**inputs).logits
        found[implementation] = logits if kind == "encoder_decoder" else logits[visible]
    assert_close(found["eager"], found["sdpa"], "logits", 1e-12)
