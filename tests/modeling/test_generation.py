"""`generate` in all its modes, against greedy search, other caches and searches written out by hand."""

import inspect
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    GenerationConfig,
    PreTrainedModel,
    StaticCache,
    WatermarkLogitsProcessor,
)
from transformers.modeling_outputs import BaseModelOutputWithPooling

from vanillaformer.acceleration.shared_sources import SharedSourceCache, share_sources
from vanillaformer.modeling.base import CACHE_NAME

from . import toys
from .axes import single_values
from .toys import PAD, TARGET_VOCABULARY, assert_close, over, shared_toy, tokens, toy

GENERATORS = ("encoder_decoder", "decoder")
every_generator = pytest.mark.parametrize("kind", GENERATORS)
NEW = 8
GREEDY = {"do_sample": False, "max_new_tokens": NEW, "no_repeat_ngram_size": 3}  # toys like to repeat themselves


def prompt_of(kind: str, batch: int = 3) -> dict[str, torch.Tensor]:
    """A padded source, or prompts padded on the left; `generate` counts the positions."""
    inputs = toys.inputs_of(kind, batch, side="left" if kind == "decoder" else "right")
    return {name: inputs[name] for name in ("input_ids", "attention_mask")}


def next_logits(model: PreTrainedModel, prompt: torch.Tensor, written: list[int]) -> torch.Tensor:
    """Logits of the token after `written`, computed from scratch."""
    if model.config.is_encoder_decoder:
        target = torch.tensor([[model.config.decoder_start_token_id, *written]])
        return model(prompt, decoder_input_ids=target, use_cache=False).logits[0, -1]
    return model(torch.cat([prompt, torch.tensor([written], dtype=torch.long)], 1), use_cache=False).logits[0, -1]


@over({
    kind: toys.few_choices() + [fields for fields in single_values(kind) if "sliding_window" in fields]
    for kind in GENERATORS
})  # fmt: skip
def test_greedy_search_takes_the_likeliest_token_of_the_full_pass(kind, overrides):
    model = shared_toy(kind, overrides)
    prompts = prompt_of(kind)
    output = model.generate(**prompts, do_sample=False, max_new_tokens=NEW)
    written = output[:, 1 if kind == "encoder_decoder" else prompts["input_ids"].shape[1] :].tolist()
    for row in range(3):
        prompt = prompts["input_ids"][row : row + 1, prompts["attention_mask"][row] == 1]
        expected: list[int] = []
        while len(expected) < NEW and model.config.eos_token_id not in expected:
            expected.append(int(next_logits(model, prompt, expected).argmax()))
        assert written[row][: len(expected)] == expected


def naive_beams(model: PreTrainedModel, prompt: torch.Tensor, beams: int, steps: int) -> list[tuple[float, list[int]]]:
    """Beam search without cache, end token or length penalty: the best continuations and their log-probabilities."""
    hypotheses: list[tuple[float, list[int]]] = [(0.0, [])]
    for _ in range(steps):
        longer = []
        for score, written in hypotheses:
            log_probabilities = next_logits(model, prompt, written).log_softmax(-1)
            longer += [(score + value.item(), [*written, token]) for token, value in enumerate(log_probabilities)]
        hypotheses = sorted(longer, reverse=True)[:beams]
    return hypotheses


@every_generator
@pytest.mark.parametrize("positions", ["rotary", "sinusoidal"])
def test_beam_search_finds_what_a_search_written_out_finds(kind, positions):
    model = toy(kind, position_embedding_type=positions, eos_token_id=None)
    prompt = tokens(1, 5)
    output = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), num_beams=3, num_return_sequences=3, max_new_tokens=4,
        do_sample=False, length_penalty=0.0, return_dict_in_generate=True, output_scores=True, pad_token_id=PAD,
    )  # fmt: skip
    expected = naive_beams(model, prompt, beams=3, steps=4)
    skip = 1 if kind == "encoder_decoder" else 5
    assert [row[skip:] for row in output.sequences.tolist()] == [written for _, written in expected]
    assert_close(output.sequences_scores, torch.tensor([score for score, _ in expected]), "scores")
    assert expected[0][0] >= naive_beams(model, prompt, beams=1, steps=4)[0][0]


@pytest.mark.parametrize("vocabulary", [11, 90])
def test_a_target_vocabulary_of_its_own_is_that_of_scores_watermarks_and_looked_up_tokens(vocabulary):
    model, prompt = toy("encoder_decoder", decoder_vocab_size=vocabulary, eos_token_id=None), tokens(1, 5)
    search = {"do_sample": False, "max_new_tokens": 6, "pad_token_id": PAD}
    found = model.generate(prompt, num_beams=3, return_dict_in_generate=True, output_scores=True, **search)
    given = found.sequences, found.scores, found.beam_indices
    scores = model.compute_transition_scores(*given)
    assert_close(scores.mean(dim=1), found.sequences_scores, "scores of beams")
    written = found.sequences[0].tolist()
    expected = [next_logits(model, prompt, written[1:end]).log_softmax(-1)[written[end]] for end in range(1, 7)]
    assert_close(model.compute_transition_scores(*given, normalize_logits=True)[0], torch.stack(expected), "scores")
    marked = model.generate(prompt, **search, watermarking_config={"bias": 100.0})[0].tolist()
    rule = WatermarkLogitsProcessor(vocabulary, "cpu", bias=100.0)
    assert all(b in rule._get_greenlist_ids(torch.tensor([a])) for a, b in pairwise(marked))
    plain = model.generate(prompt, **search)
    assert torch.equal(model.generate(prompt, prompt_lookup_num_tokens=2, **search), plain)
    for name in ("encoder_repetition_penalty", "encoder_no_repeat_ngram_size"):
        with pytest.raises(ValueError, match=f"{name}.*decoder_vocab_size={vocabulary}"):
            model.generate(prompt, **search, **{name: 2})


@every_generator
@pytest.mark.parametrize("helper", ["itself", "another", "its first layer", *range(4)])
def test_assisted_generation_is_greedy_search(kind, helper):
    """A good assistant, bad ones and what stands in a prompt twice: with rejected drafts the cache is cut back."""
    model, prompts, settings = toy(kind), prompt_of(kind, batch=1), GREEDY
    if isinstance(helper, int):
        prompt = tokens(1, 4, TARGET_VOCABULARY, seed=helper).repeat(1, 2)
        settings = GREEDY | {"no_repeat_ngram_size": 0}
        prompts = {"input_ids": prompt, "attention_mask": torch.ones_like(prompt)}
    helped = {
        "itself": {"assistant_model": model}, "its first layer": {"assistant_early_exit": 1},
        "another": {"assistant_model": toys.sharpen(toy(kind, num_hidden_layers=1), seed=11)},
    }.get(helper, {"prompt_lookup_num_tokens": 3})  # fmt: skip
    greedy = model.generate(**prompts, **settings)
    for options in (helped, {}):
        assert torch.equal(model.generate(**prompts, **settings, **options), greedy)
        assert model.config.num_hidden_layers == 2


def test_a_decoder_runs_as_many_layers_as_its_config_has():
    model, ids = toy("decoder"), tokens(1, 5)
    expected = model.lm_head(model.model.norm(model(ids, output_hidden_states=True).hidden_states[1]))
    model.config.num_hidden_layers = 1
    assert_close(model(ids, use_cache=False).logits, expected, "the first layer")


@pytest.mark.parametrize("limit", [{"max_new_tokens": 100}, {"max_length": 100}, {}], ids=str)
def test_a_table_of_positions_ends_a_text_and_what_follows_vectors(limit):
    model = toy("decoder", position_embedding_type="learned", eos_token_id=None)
    rows, ten_more = model.config.max_position_embeddings, GenerationConfig(do_sample=False, max_new_tokens=10)
    prompt = tokens(1, rows - 5)
    expected = model.generate(prompt, do_sample=False, max_new_tokens=6)
    assert torch.equal(model.generate(prompt, generation_config=ten_more), expected)
    vectors = model.get_input_embeddings()(prompt)
    made = model.generate(inputs_embeds=vectors, generation_config=GenerationConfig(do_sample=False, **limit))
    assert torch.equal(made, expected[:, rows - 5 :])
    without_table = toy("decoder", position_embedding_type="rotary", eos_token_id=None)
    assert without_table.generate(prompt, generation_config=ten_more).shape[1] == rows + 5


@pytest.mark.parametrize("limit", ["max_new_tokens", "max_length"])
@pytest.mark.parametrize(("kind", "before"), [("decoder", 19), ("encoder_decoder", 1)])
def test_a_limit_beyond_the_table_that_is_given_by_keyword_is_refused(kind, before, limit):
    model = toy(kind, position_embedding_type="learned", max_position_embeddings=24, eos_token_id=None)
    with pytest.raises(ValueError, match=r"max_length=26: max_position_embeddings=24 allows a max_length of 25"):
        model.generate(tokens(1, 19), do_sample=False, **{limit: 26 - before * (limit == "max_new_tokens")})


@toys.toys(*GENERATORS, times=1)
def test_with_a_static_cache_or_without_any_the_tokens_are_those_of_a_dynamic_one(kind, overrides):
    model, prompts = shared_toy(kind, overrides), prompt_of(kind)
    settings = GREEDY | {"return_dict_in_generate": True, "output_logits": True}
    dynamic = model.generate(**prompts, **settings, use_cache=True)
    for other in ({"cache_implementation": "static"}, {"use_cache": False}):
        found = model.generate(**prompts, **settings, **other)
        assert torch.equal(found.sequences, dynamic.sequences)
        assert_close(torch.stack(found.logits), torch.stack(dynamic.logits), f"logits with {other}")


@every_generator
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_generation_resumes_from_a_cache(kind, implementation):
    model = toy(kind)
    model.set_attn_implementation(implementation)
    prompts = prompt_of(kind, batch=1)
    settings = {"do_sample": False, "eos_token_id": None, "pad_token_id": PAD}
    whole = model.generate(**prompts, **settings, max_new_tokens=6)
    first = model.generate(**prompts, **settings, max_new_tokens=3, return_dict_in_generate=True)
    if kind == "encoder_decoder":
        follow = {**prompts, "decoder_input_ids": first.sequences}
    else:
        follow = {"input_ids": first.sequences, "attention_mask": torch.ones_like(first.sequences)}
    rest = model.generate(**follow, **settings, max_new_tokens=3, past_key_values=first.past_key_values)
    assert torch.equal(rest, whole)


def varied_sources(seed: int) -> dict[str, torch.Tensor]:
    """A dozen sources, enough for groups of similar length."""
    return toys.ragged([1 + row % 6 for row in range(12)], seed=seed)


CHOSEN = torch.tensor([5, 2, 2, 9])


@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize(("method", "argument"), [
    ("reorder_cache", CHOSEN), ("batch_select_indices", CHOSEN), ("batch_repeat_interleave", 2),
])  # fmt: skip
def test_the_cache_that_is_returned_holds_each_row(method, argument, beams):
    model, batch = shared_toy("encoder_decoder", {}), varied_sources(2)
    options = {"max_new_tokens": 5, "eos_token_id": None, "num_beams": beams, "num_return_sequences": beams}
    cache = model.generate(**batch, **options, return_dict_in_generate=True).past_key_values
    assert all(cache.is_updated[layer] for layer in range(2))
    assert all(len(layer.keys) == 12 * beams for layer in cache.cross_attention_cache.layers)
    getattr(cache, method)(argument)
    rows = CHOSEN if argument is CHOSEN else torch.arange(12 * beams).repeat_interleave(argument)
    source = {name: value.repeat_interleave(beams, 0)[rows] for name, value in batch.items()}
    written = tokens(12 * beams, 5, TARGET_VOCABULARY)[rows]  # what was generated does not matter to the source
    cache.self_attention_cache.reset()
    step = model(**source, decoder_input_ids=written, past_key_values=cache).logits
    assert_close(step, model(**source, decoder_input_ids=written, use_cache=False).logits, method)


@pytest.mark.parametrize("beams", [1, 3])
def test_a_search_of_the_caller_gets_a_cache_of_all_rows(beams):
    """Such as those on the Hub, which repeat and choose rows of the cache."""
    model, seen = shared_toy("encoder_decoder", {}), []

    def search(model: Any, input_ids: torch.Tensor, **options: Any) -> torch.Tensor:
        seen.append(options[CACHE_NAME])
        return input_ids

    model.generate(**varied_sources(2), custom_generate=search, num_beams=beams)
    assert type(seen[0]) is EncoderDecoderCache


@every_generator
@pytest.mark.parametrize("beams", [1, 2])
def test_what_is_generated_can_be_differentiated(kind, beams):
    """By the function under `torch.no_grad`."""
    model, prompts = toy(kind), prompt_of(kind)
    options = GREEDY | {"num_beams": beams, "return_dict_in_generate": True, "output_logits": True}
    output = inspect.unwrap(model.generate)(model, **prompts, **options)
    (slope,) = torch.autograd.grad(output.logits[1].logsumexp(-1).sum(), model.lm_head.weight)
    assert slope.norm() > 0
    expected = model.generate(**prompts, **options)
    assert torch.equal(output.sequences, expected.sequences)
    assert not expected.logits[1].requires_grad


def test_outputs_that_cannot_share_their_source_have_their_own():
    model, cache = toy("encoder_decoder"), EncoderDecoderCache(DynamicCache(), DynamicCache())
    static = EncoderDecoderCache(*(StaticCache(config=model.config, max_cache_len=6) for _ in range(2)))
    beams = GenerationConfig(num_beams=3)

    def used(config: GenerationConfig, cache: Any) -> Any:
        return share_sources(model, {"generation_config": config, CACHE_NAME: cache})[CACHE_NAME]

    assert type(used(beams, cache)) is SharedSourceCache
    assert used(GenerationConfig(), cache) is cache
    assert used(beams, static) is static
    model.set_attn_implementation("flex_attention")
    assert used(beams, cache) is cache


def test_a_cache_that_was_reset_takes_another_source():
    model, target = shared_toy("encoder_decoder", {}), tokens(1, 4, TARGET_VOCABULARY)
    cache = EncoderDecoderCache(*(StaticCache(config=model.config, max_cache_len=6) for _ in range(2)))
    for seed in (1, 2):
        source = tokens(1, 6, seed=seed)
        expected = model(source, decoder_input_ids=target).logits
        assert_close(model(source, decoder_input_ids=target, past_key_values=cache).logits, expected, f"source {seed}")
        cache.reset()
    model, settings = shared_toy("encoder_decoder", {}), {"max_new_tokens": 6, "eos_token_id": None}
    cache = model.generate(**varied_sources(2), **settings, return_dict_in_generate=True).past_key_values
    cache.reset()
    again = model.generate(**varied_sources(5), **settings, past_key_values=cache)
    assert torch.equal(again, model.generate(**varied_sources(5), **settings))


def test_a_four_dimensional_mask_is_used_as_it_is():
    model, ids = shared_toy("decoder", {}), tokens(1, 5)
    mask = torch.ones(5, 5).tril().bool()
    mask[4, 1] = False
    additive = torch.zeros(1, 1, 5, 5).masked_fill(~mask, torch.finfo(torch.float32).min)
    full, cut = model(ids).logits, model(ids, attention_mask=additive).logits
    assert_close(cut[:, :4], full[:, :4], "rows with the usual mask")
    assert not torch.allclose(cut[:, 4], full[:, 4], atol=1e-3)


def source_caches(config: Any) -> dict[str, Callable[[], Any]]:
    """Caches as transformers' own models make them: both of one config."""
    dynamic, static = partial(DynamicCache, config=config), partial(StaticCache, config)
    return {
        "dynamic": lambda: EncoderDecoderCache(dynamic(), dynamic()),
        "static": lambda: EncoderDecoderCache(static(max_cache_len=12), static(max_cache_len=9)),
        "of self-attention alone": dynamic,
    }


@pytest.mark.parametrize("made", source_caches(None))
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("padded", [False, True])
def test_a_cache_made_elsewhere_keeps_the_whole_source(made, window, padded):
    model, source = shared_toy("encoder_decoder", {"sliding_window": window} if window else {}), tokens(2, 9)
    target, mask = tokens(2, 7, TARGET_VOCABULARY), toys.padding(2, 9) if padded else None
    full = model(source, attention_mask=mask, decoder_input_ids=target).logits
    cache, encoded = source_caches(model.config)[made](), model.get_encoder()(source, attention_mask=mask)
    for step in range(7):
        given = {"encoder_outputs": encoded, "attention_mask": mask, "past_key_values": cache}
        output = model(**given, decoder_input_ids=target[:, step : step + 1])
        assert_close(output.logits[:, 0], full[:, step], f"step {step}")
        assert output.past_key_values is cache


def test_a_cache_that_dropped_a_part_of_the_source_is_refused():
    model, target = shared_toy("encoder_decoder", {"sliding_window": 3}), tokens(1, 2, TARGET_VOCABULARY)
    made, keys = source_caches(model.config)["dynamic"](), torch.zeros(1, 2, 9, 8)
    made.cross_attention_cache.update(keys, keys, 0)
    cache = EncoderDecoderCache(made.self_attention_cache, made.cross_attention_cache)
    with pytest.raises(ValueError, match=r"sliding_window=3, which has dropped a part of the source: .*DynamicCache"):
        model(tokens(1, 9), decoder_input_ids=target, past_key_values=cache)


def test_the_encoders_outputs_may_have_any_form():
    model, source, target = shared_toy("encoder_decoder", {}), tokens(2, 5), tokens(2, 4, TARGET_VOCABULARY)
    own = model.get_encoder()(source, output_hidden_states=True)
    states, layers = own.last_hidden_state, own.hidden_states
    expected = model(source, decoder_input_ids=target).logits
    other = BaseModelOutputWithPooling(states, pooler_output=states[:, 0], hidden_states=layers)
    by_name = {"last_hidden_state": states, "hidden_states": layers}
    for given in (own, other, by_name, (states, layers), [states, layers]):
        output = model(encoder_outputs=given, decoder_input_ids=target)
        assert torch.equal(output.logits, expected)
        assert torch.equal(output.encoder_last_hidden_state, states)
        assert len(output.encoder_hidden_states) == len(layers)
