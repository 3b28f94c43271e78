"""What must hold for every combination of options, without any reference model to compare with."""

import copy
from typing import Any

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel

from vanillaformer import BlockConfig
from vanillaformer.configuration import layer_types
from vanillaformer.configuration.options import POSITION_CHOICES

from .axes import axes, cover, single_values
from .toys import (
    KINDS,
    PAD,
    SOURCE_VOCABULARY,
    TARGET_VOCABULARY,
    assert_close,
    attending,
    inputs_of,
    over,
    padding,
    plain_flex_attention,
    position_choices,
    positions_of,
    relative_error,
    shared_toy,
    sharpen,
    tokens,
    toys,
    ways_to_attend,
)

CHUNKS = (3, 2, 1, 1)  # a prompt, a piece of several tokens on a filled cache, single steps


def in_chunks(model: PreTrainedModel, cache, **inputs: torch.Tensor) -> torch.Tensor:
    """Logits of the tokens read a few at a time; `inputs` has the fixed ones and, as `ids`, those to be cut up."""
    ids, mask, position_ids = inputs.pop("ids"), inputs.pop("mask", None), inputs.pop("positions", None)
    name = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
    start, logits = 0, []
    for size in CHUNKS:
        end = start + size
        step = {name: ids[:, start:end], "past_key_values": cache, "use_cache": True}
        if mask is not None:
            step["attention_mask"] = mask[:, :end]
        if position_ids is not None:
            step["position_ids"] = position_ids[:, start:end]
        output = model(**inputs, **step)
        cache = output.past_key_values
        logits.append(output.logits)
        start = end
    assert start == ids.shape[1]
    return torch.cat(logits, dim=1)


@toys("decoder")
def test_a_decoder_that_reads_in_chunks_with_a_cache_gives_the_logits_of_the_full_pass(kind, overrides):
    model = shared_toy(kind, overrides)
    mask = padding(2, sum(CHUNKS), "left")
    ids, position_ids = tokens(2, sum(CHUNKS)), positions_of(mask)
    full = model(ids, attention_mask=mask, position_ids=position_ids, use_cache=False).logits
    cached = in_chunks(model, None, ids=ids, mask=mask, positions=position_ids)
    assert_close(cached[mask == 1], full[mask == 1], "cached against full logits")


@toys("encoder_decoder")
def test_an_encoder_decoder_that_writes_in_chunks_with_a_cache_gives_the_logits_of_the_full_pass(kind, overrides):
    model = shared_toy(kind, overrides)
    source = {"input_ids": tokens(2, 6), "attention_mask": padding(2, 6)}
    ids = tokens(2, sum(CHUNKS), TARGET_VOCABULARY, seed=3)
    full = model(**source, decoder_input_ids=ids, use_cache=False).logits
    encoder_outputs = model.get_encoder()(**source)
    # of the source everything is kept, whatever window the layers have
    cache = EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache())
    fixed = {"encoder_outputs": encoder_outputs, "attention_mask": source["attention_mask"]}
    assert_close(in_chunks(model, cache, **fixed, ids=ids), full, "cached against full logits")


@toys("decoder", "encoder")
def test_padding_on_either_side_changes_nothing_for_the_tokens(kind, overrides):
    model = shared_toy(kind, overrides)
    ids = tokens(1, 5)
    alone = model(ids).logits[0]
    filler = torch.full((1, 3), PAD)
    for side, padded, real in (
        ("left", torch.cat([filler, ids], 1), slice(3, None)),
        ("right", torch.cat([ids, filler], 1), slice(0, 5)),
    ):
        mask = (padded != PAD).long()
        logits = model(padded, attention_mask=mask, position_ids=positions_of(mask)).logits[0, real]
        assert_close(logits, alone, f"padding on the {side}")


@toys("encoder_decoder")
def test_padding_of_the_source_changes_nothing_for_the_target(kind, overrides):
    model = shared_toy(kind, overrides)
    source, target = tokens(1, 5), tokens(1, 4, TARGET_VOCABULARY, seed=3)
    alone = model(source, decoder_input_ids=target).logits
    padded = torch.cat([source, torch.full((1, 3), PAD)], dim=1)
    logits = model(padded, attention_mask=(padded != PAD).long(), decoder_input_ids=target).logits
    assert_close(logits, alone, "source padded on the right")


@toys("encoder_decoder")
def test_left_padding_of_the_target_changes_nothing_for_its_tokens(kind, overrides):
    model = shared_toy(kind, overrides)
    source, target = tokens(1, 5), tokens(1, 4, TARGET_VOCABULARY, seed=3)
    alone = model(source, decoder_input_ids=target).logits
    padded = torch.cat([torch.full((1, 2), PAD), target], dim=1)
    mask = (padded != PAD).long()
    where = {"decoder_attention_mask": mask, "decoder_position_ids": positions_of(mask)}
    logits = model(source, decoder_input_ids=padded, **where).logits[:, 2:]
    assert_close(logits, alone, "target padded on the left")


@toys()
def test_a_batch_gives_what_its_rows_give_one_by_one(kind, overrides):
    model = shared_toy(kind, overrides)
    inputs = inputs_of(kind)
    together = model(**inputs).logits
    for row in range(3):
        alone = model(**{name: value[row : row + 1] for name, value in inputs.items()}).logits[0]
        assert_close(together[row], alone, f"row {row} in the batch")


def reach(config: BlockConfig) -> int:
    """How many tokens, itself included, a token can be seen by through all layers of a causal stack."""
    windows = [config.sliding_window if kind == "sliding_attention" else 100 for kind in layer_types(config)]
    return 1 + sum(window - 1 for window in windows)


@toys("encoder_decoder", "decoder")
def test_a_token_changes_no_logits_before_it_and_all_from_it_on(kind, overrides):
    model = shared_toy(kind, overrides)
    inputs = inputs_of(kind, batch=1)
    name = "decoder_input_ids" if kind == "encoder_decoder" else "input_ids"
    before = model(**inputs).logits[0]
    for t in (0, 2, before.shape[0] - 1):
        changed = inputs[name].clone()
        changed[0, t] = changed[0, t] % 20 + 5
        after = model(**(inputs | {name: changed})).logits[0]
        assert torch.equal(after[:t], before[:t]), f"changing token {t} changed the logits of an earlier one"
        for later in range(t, min(t + reach(model.config), before.shape[0])):
            assert not torch.equal(after[later], before[later]), f"token {t} has no effect on position {later}"


@toys()
def test_what_stands_on_padding_changes_nothing(kind, overrides):
    model = shared_toy(kind, overrides)
    inputs = inputs_of(kind)
    mask = inputs["attention_mask"]
    other = torch.where(mask == 1, inputs["input_ids"], tokens(*mask.shape, SOURCE_VOCABULARY, seed=9))
    assert not torch.equal(other, inputs["input_ids"])
    real = mask == 1 if kind != "encoder_decoder" else slice(None)
    before, after = (model(**(inputs | {"input_ids": ids})).logits[real] for ids in (inputs["input_ids"], other))
    assert torch.equal(after, before), "a token on padding leaked into the logits"


def logits_by_attention(model: PreTrainedModel, kind: str, side: str, *ways: str) -> dict[str, torch.Tensor]:
    """The logits of a padded batch, as each way to attend computes them."""
    inputs = inputs_of(kind, side=side)
    # a row of padding that sees nothing has no defined value
    real = inputs["attention_mask"] == 1 if kind != "encoder_decoder" else slice(None)
    logits = {}
    for way in ways_to_attend(model, *ways):
        with attending(model, way):
            logits[way] = model(**inputs).logits[real]
    return logits


@toys()
def test_eager_attention_gives_what_sdpa_gives(kind, overrides):
    for side in ("right", "left"):
        logits = logits_by_attention(shared_toy(kind, overrides), kind, side, "eager", "sdpa")
        for way in logits:
            assert_close(logits[way], logits["eager"], f"{way} against eager, padding on the {side}")


def values_of_attention(kind: str) -> list[dict[str, Any]]:
    """Every value of every axis that an attention layer reads, beside the toys' other ones."""
    parts = ("position", "rope", "rotary", "relative", "attention", "attn", "heads", "head_dim", "qk_norm", "sliding")
    return [fields for fields in single_values(kind) if any(part in name for name in fields for part in parts)]


@over({kind: values_of_attention(kind) + cover(kind)[::12] for kind in KINDS})
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_eager_attention_gives_what_flex_attention_gives(kind, overrides, monkeypatch):
    plain_flex_attention(monkeypatch)
    logits = logits_by_attention(shared_toy(kind, overrides), kind, "left", "eager", "flex_attention")
    assert_close(logits["flex_attention"], logits["eager"], "flex against eager, padding on the left")


WINDOW = 3
one_windowed_layer = over({
    kind: [positions | {"num_hidden_layers": 1, "sliding_window": WINDOW} for positions in position_choices()]
    for kind in KINDS
})  # fmt: skip


@one_windowed_layer
@pytest.mark.parametrize("way", ["eager", "sdpa", "flex_attention"])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_beyond_its_window_a_token_changes_nothing_and_within_it_all(kind, overrides, way, monkeypatch):
    plain_flex_attention(monkeypatch)
    model, ids, middle = shared_toy(kind, overrides), tokens(1, 9), 4
    source = {"encoder_outputs": model.get_encoder()(tokens(1, 5))} if kind == "encoder_decoder" else {}
    name = "decoder_input_ids" if source else "input_ids"
    ids = ids % TARGET_VOCABULARY if source else ids
    changed = ids.clone()
    changed[0, middle] = ids[0, middle] % 20 + 5
    with attending(model, way):
        before, after = (model(**source, **{name: tokens_}).logits[0] for tokens_ in (ids, changed))
    # a causal window counts the token itself, an encoder's is so many tokens to either side
    inside = range(middle - WINDOW, middle + WINDOW + 1) if kind == "encoder" else range(middle, middle + WINDOW)
    for place in range(9):
        assert torch.equal(before[place], after[place]) is (place not in inside), f"token {middle} seen from {place}"


@pytest.mark.parametrize("way", ["eager", "sdpa"])
def test_the_window_of_an_encoder_decoder_holds_for_its_source_too(way):
    model = shared_toy("encoder_decoder", {"encoder_layers": 1, "sliding_window": WINDOW})
    ids, middle = tokens(1, 9), 4
    changed = ids.clone()
    changed[0, middle] = ids[0, middle] % 20 + 5
    with attending(model, way):
        before, after = (model.get_encoder()(ids_).last_hidden_state[0] for ids_ in (ids, changed))
    for place in range(9):
        assert torch.equal(before[place], after[place]) is (abs(place - middle) > WINDOW)


@over({kind: position_choices() + axes(kind)["rope_parameters"][1:] for kind in KINDS})
def test_beyond_the_longest_input_a_table_says_so_and_other_schemes_go_on(kind, overrides):
    model, length = shared_toy(kind, overrides), 30
    inputs = {"input_ids": tokens(1, length)}
    if kind == "encoder_decoder":
        inputs["decoder_input_ids"] = tokens(1, length, TARGET_VOCABULARY)
    assert length > model.config.max_position_embeddings
    if POSITION_CHOICES[model.config.position_embedding_type].has_table:
        with pytest.raises(ValueError, match=f"the input has {length} tokens, but max_position_embeddings=24"):
            model(**inputs)
        return
    logits = model(**inputs).logits
    assert logits.shape[1] == length
    assert torch.isfinite(logits).all()
    changed = dict(inputs)
    for name, ids in inputs.items():
        changed[name] = ids.clone()
        changed[name][0, -2] = ids[0, -2] % 20 + 5
    others = model(**changed).logits
    assert not torch.equal(others[0, -1], logits[0, -1]), "the last token sees nothing of the one before"


@over({kind: single_values(kind) + cover(kind)[::4] for kind in KINDS})
def test_bfloat16_is_finite_and_near_float32(kind, overrides):
    # a copy with softer attention: selection multiplies rounding errors
    model = sharpen(copy.deepcopy(shared_toy(kind, overrides)), focus=0.7)
    inputs = inputs_of(kind)
    rounded = model.to(torch.bfloat16)(**inputs).logits
    exact = model.to(torch.float32)(**inputs).logits  # of the same, rounded weights
    assert rounded.dtype == torch.bfloat16, "the logits left the model's dtype"
    assert torch.isfinite(rounded).all()
    assert relative_error(rounded, exact) < 0.1


@pytest.mark.parametrize("kind", ["encoder_decoder", "decoder", "encoder"])
def test_the_toys_attend_selectively(kind):
    """A guard for this file: with flat attention, or a layer that does nothing, most properties would hold anyway."""
    model = shared_toy(kind, {})
    with attending(model, "eager"):
        output = model(**inputs_of(kind, batch=1, length=12), output_attentions=True)
    names = [name for name in ("attentions", "encoder_attentions", "decoder_attentions") if name in output]
    for name in names + (["cross_attentions"] if kind == "encoder_decoder" else []):
        for layer, probabilities in enumerate(output[name]):
            # from the sixth token on an even spread would give no key more than a sixth
            assert probabilities.amax(-1)[..., 5:].mean() > 0.25, f"{name} of layer {layer} are flat"
