"""What holds for every combination of options, and gradients, compilation and accumulation as training needs them."""

import copy
import itertools
import zlib
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from refusals import refused
from torch import nn
from transformers import DynamicCache, EncoderDecoderCache
from transformers.distributed.pipeline_parallel import PipelineIdentityLayer

import vanillaformer as vf
from vanillaformer.configuration import layer_types, options
from vanillaformer.configuration.options import POSITION_CHOICES

from . import toys
from .axes import axes, cover

SAME_FOR_ALL_KEYS = ("k_proj.bias", "k_norm.bias")
SHAPES = list(toys.IMAGE_SHAPES.values())


def gradients(model: nn.Module, kind: str, run: Any = None) -> dict[str, torch.Tensor]:
    """The gradients, and the logits and the loss, by `run`, a form of the model."""
    model.zero_grad()
    output = (model if run is None else run)(**toys.inputs_of(kind, config=model.config), labels=toys.labels_of(kind))
    output.loss.backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    return found | {"logits": output.logits.detach(), "loss": output.loss.detach()}


@toys.over({kind: cover(kind, times=5) for kind in toys.KINDS} | {"image_encoder": SHAPES})
def test_gradient_checkpointing_changes_no_gradient_and_every_parameter_has_one(kind, overrides):
    model = copy.deepcopy(toys.shared_toy(kind, overrides)).requires_grad_(True).train()
    if model.config.position_embedding_type == "relative":
        model.set_attn_implementation("eager")  # sdpa has another kernel for a trained bias, but not while recording
    runs = []
    layer = next(module for name, module in model.named_modules() if name.endswith("layers.1.mlp"))
    layer.register_forward_pre_hook(lambda *args: runs.append(1))
    expected = gradients(model, kind)
    largest = max(expected[name].norm() for name in expected if name not in ("logits", "loss"))
    assert len(runs) == 1
    for name, gradient in expected.items():
        assert torch.isfinite(gradient).all(), name
        # what is added to all keys moves all scores of a query alike: its gradient is rounding, unless keys are turned
        moves_nothing = name.endswith(SAME_FOR_ALL_KEYS) and gradient.norm() < 1e-12 * largest
        assert gradient.norm() > 0 or moves_nothing, f"{name} has no gradient"
    # one of the ways for each of many configs
    reentrant = zlib.crc32(str(overrides).encode()) % 2 == 0 and not overrides.get("value_residual")
    runs.clear()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    actual = gradients(model, kind)
    assert len(runs) == 2, "nothing was recomputed"
    for name, gradient in expected.items():
        # of terms that cancel each other, much of what is left is their rounding
        if not name.endswith(SAME_FOR_ALL_KEYS) or gradient.norm() > 1e-3 * largest:
            tolerance = 1e-12 if kind == "image_encoder" else None
            toys.assert_close(actual[name], gradient, f"{name}, reentrant={reentrant}", tolerance)


@toys.toys(times=1)
def test_gradients_through_eager_attention_are_those_through_sdpa(kind, overrides):
    model, inputs = copy.deepcopy(toys.shared_toy(kind, overrides)).requires_grad_(True), toys.inputs_of(kind)
    found = []
    for way in toys.ways_to_attend(model, "eager", "sdpa"):
        model.set_attn_implementation(way)
        logits = model(**inputs).logits
        logits = logits if kind == "encoder_decoder" else logits[inputs["attention_mask"] == 1]
        logits.cos().sum().backward()
        found.append(toys.gradients(model))
    toys.assert_same_gradients(found[0], found[-1], 5e-5, 5e-8)


@pytest.mark.parametrize("kind", toys.KINDS)
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("rate", ["dropout", "attention_dropout", "activation_dropout"])
def test_each_dropout_has_its_own_rate_and_acts_in_training_alone(kind, rate, implementation):
    model, inputs = toys.toy(kind, **{rate: 0.5}), toys.inputs_of(kind)
    model.set_attn_implementation(implementation)
    assert torch.equal(model(**inputs).logits, model(**inputs).logits)
    model.train()
    assert not torch.equal(model(**inputs).logits, model(**inputs).logits)


@toys.over({
    # Transformers' code for `dynamic` asks for a length in Python
    kind: [{"position_embedding_type": scheme} for scheme in get_args(options.PositionEmbedding)][number::3]
    + [fields for fields in cover(kind, times=1) if "dynamic" not in str(fields)][::10]
    for number, kind in enumerate(toys.KINDS)
} | {"image_encoder": SHAPES})  # fmt: skip
def test_a_model_compiles_into_one_graph(kind, overrides):
    """`fullgraph` raises where Python would have to interrupt the graph."""
    model = toys.toy(kind, **overrides).double()
    torch.compiler.reset()
    found = gradients(model, kind, torch.compile(model, fullgraph=True, backend="eager"))
    for name, value in gradients(model, kind).items():
        if not name.endswith(SAME_FOR_ALL_KEYS):
            toys.assert_close(found[name], value, name, 1e-6 if name == "loss" else 1e-12)
    torch.compiler.reset()


@pytest.mark.parametrize(("kind", "model_class", "options"), [
    *((kind, None, {"return_logits": False}) for kind in toys.KINDS),
    ("encoder", vf.VanillaEncoderForPreTraining,
     {"next_sentence_label": torch.tensor([1, 0, 1]), "num_items_in_batch": torch.tensor(40)}),
])  # fmt: skip
def test_losses_without_logits_and_of_pretraining_are_part_of_the_graph(kind, model_class, options):
    model, inputs = toys.toy(kind, model_class), toys.inputs_of(kind) | {"labels": toys.labels_of(kind)} | options
    torch.compiler.reset()
    found = torch.compile(model, fullgraph=True, backend="aot_eager")(**inputs)
    toys.assert_close(found.loss, model(**inputs).loss, "loss")
    found.loss.backward()
    torch.compiler.reset()


CHUNKS = (3, 2, 1, 1)  # a prompt, a piece of several tokens on a filled cache, single steps


@toys.toys("encoder_decoder", "decoder")
def test_reading_in_chunks_with_a_cache_gives_the_logits_of_the_full_pass(kind, overrides):
    model, length = toys.shared_toy(kind, overrides), sum(CHUNKS)
    if kind == "decoder":
        name, ids, mask, cache = "input_ids", toys.tokens(2, length), toys.padding(2, length, "left"), None
        by_token = {"attention_mask": mask, "position_ids": toys.positions_of(mask)}
        full = model(ids, **by_token, use_cache=False).logits
        fixed = {}
    else:
        name, ids = "decoder_input_ids", toys.tokens(2, length, toys.TARGET_VOCABULARY, seed=3)
        source = {"input_ids": toys.tokens(2, 6), "attention_mask": toys.padding(2, 6)}
        mask, by_token = torch.ones_like(ids), {}
        full = model(**source, decoder_input_ids=ids, use_cache=False).logits
        # of the source everything is kept, whatever window the layers have
        cache = EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache())
        fixed = {"encoder_outputs": model.get_encoder()(**source), "attention_mask": source["attention_mask"]}
    start, logits = 0, []
    for end in itertools.accumulate(CHUNKS):
        step = {key: value[:, start if key == "position_ids" else 0 : end] for key, value in by_token.items()}
        output = model(**fixed, **step, **{name: ids[:, start:end]}, past_key_values=cache, use_cache=True)
        start, cache = end, output.past_key_values
        logits.append(output.logits)
    toys.assert_close(torch.cat(logits, dim=1)[mask == 1], full[mask == 1], "cached against full logits")


def padded(rows: list[torch.Tensor], side: str, filler: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of which each is one token shorter than the one before, with `filler` where none is; and their mask."""
    mask = toys.padding(len(rows), len(rows[0]), side)
    return filler.masked_scatter(mask == 1, torch.cat(rows)), mask


@toys.toys()
def test_a_padded_batch_gives_what_its_rows_give_alone_whatever_stands_on_padding(kind, overrides):
    """With padding on either side, attending in either way."""
    model, pair = toys.shared_toy(kind, overrides), kind == "encoder_decoder"
    rows = [toys.tokens(1, 7 - row, seed=row)[0] for row in range(3)]
    targets = [toys.tokens(1, 5 - row, toys.TARGET_VOCABULARY, seed=5 + row)[0] for row in range(3)]
    given = [{"decoder_input_ids": target[None]} if pair else {} for target in targets]
    alone = torch.cat([model(row[None], **target).logits[0] for row, target in zip(rows, given)])
    others, pads = toys.tokens(3, 7, toys.TARGET_VOCABULARY, seed=9), torch.full((3, 7), toys.PAD)
    ways = toys.ways_to_attend(model, "eager", "sdpa")
    for side in ("right", "left"):
        found = []
        for way, filler in (*((way, others) for way in ways), (ways[-1], pads)):
            ids, mask = padded(rows, side, filler)
            inputs, real = {"input_ids": ids, "attention_mask": mask}, mask == 1
            if side == "left":
                inputs["position_ids"] = toys.positions_of(mask)
            if pair:
                inputs["decoder_input_ids"], mask = padded(targets, side, filler[:, :5])
                real = mask == 1
                if side == "left":
                    inputs |= {"decoder_attention_mask": mask, "decoder_position_ids": toys.positions_of(mask)}
            with toys.attending(model, way):
                found.append(model(**inputs).logits[real])
            toys.assert_close(found[-1], alone, f"padding on the {side}, {way}")
        assert torch.equal(found[-1], found[-2]), "a token on padding leaked into the logits"


@toys.toys("encoder_decoder", "decoder")
def test_a_token_changes_no_logits_before_it_and_all_from_it_on(kind, overrides):
    model = toys.shared_toy(kind, overrides)
    inputs = toys.inputs_of(kind, batch=1)
    name = "decoder_input_ids" if kind == "encoder_decoder" else "input_ids"
    before = model(**inputs).logits[0]
    sliding = [each == "sliding_attention" for each in layer_types(model.config)]
    # how many tokens can see a token through all layers
    reach = 1 + sum(model.config.sliding_window - 1 if each else 99 for each in sliding)
    for t in (0, 2, before.shape[0] - 1):
        changed = inputs[name].clone()
        changed[0, t] = changed[0, t] % 20 + 5
        after = model(**(inputs | {name: changed})).logits[0]
        assert torch.equal(after[:t], before[:t]), f"changing token {t} changed the logits of an earlier one"
        for later in range(t, min(t + reach, before.shape[0])):
            assert not torch.equal(after[later], before[later]), f"token {t} has no effect on position {later}"


@toys.toys(times=2)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_gives_what_eager_attention_gives(kind, overrides, monkeypatch):
    toys.plain_flex_attention(monkeypatch)
    model = toys.shared_toy(kind, overrides)
    for side in ("right", "left"):
        inputs, logits = toys.inputs_of(kind, side=side), []
        # a row of padding that sees nothing has no defined value
        real = inputs["attention_mask"] == 1 if kind != "encoder_decoder" else slice(None)
        for way in ("flex_attention", "eager"):
            with toys.attending(model, way):
                logits.append(model(**inputs).logits[real])
        toys.assert_close(*logits, f"flex against eager, padding on the {side}")


WINDOW = 3


@toys.over({
    kind: [positions | {"num_hidden_layers": 1, "sliding_window": WINDOW} for positions in toys.position_choices()]
    for kind in toys.KINDS
})  # fmt: skip
def test_beyond_its_window_a_token_changes_nothing_and_within_it_all(kind, overrides):
    model, ids, middle = toys.shared_toy(kind, overrides), toys.tokens(1, 9, toys.TARGET_VOCABULARY), 4
    changed = ids.clone()
    changed[0, middle] = ids[0, middle] % 20 + 5

    def changed_places(run: Callable[[torch.Tensor], torch.Tensor]) -> list[int]:
        before, after = (run(tokens_)[0] for tokens_ in (ids, changed))
        return [place for place in range(9) if not torch.equal(before[place], after[place])]

    # a causal window counts the token itself, an encoder's reaches that far to either side
    around, later = [*range(middle - WINDOW, middle + WINDOW + 1)], [*range(middle, middle + WINDOW)]
    if kind == "encoder_decoder":
        source = {"encoder_outputs": model.get_encoder()(toys.tokens(1, 5))}
        assert changed_places(lambda tokens_: model(**source, decoder_input_ids=tokens_).logits) == later
        assert changed_places(lambda tokens_: model.get_encoder()(tokens_).last_hidden_state) == around
    else:
        assert changed_places(lambda tokens_: model(tokens_).logits) == (around if kind == "encoder" else later)


@toys.over({kind: toys.position_choices() + axes(kind)["rope_parameters"][1:] for kind in toys.KINDS})
def test_inputs_beyond_a_table_of_positions_are_refused_and_others_are_read(kind, overrides):
    model, length = toys.shared_toy(kind, overrides), 30
    inputs = {"input_ids": toys.tokens(1, length)}
    if kind == "encoder_decoder":
        inputs["decoder_input_ids"] = toys.tokens(1, length, toys.TARGET_VOCABULARY)
    assert length > model.config.max_position_embeddings
    if POSITION_CHOICES[model.config.position_embedding_type].has_table:
        refused(f"the input has {length} tokens, but max_position_embeddings=24", model, **inputs)
        return
    logits = model(**inputs).logits
    assert logits.shape[1] == length
    assert torch.isfinite(logits).all()
    for ids in inputs.values():
        ids[0, -2] = ids[0, -2] % 20 + 5
    others = model(**inputs).logits
    assert not torch.equal(others[0, -1], logits[0, -1]), "the last token sees nothing of the one before"


@toys.toys(times=3)
def test_bfloat16_is_finite_and_near_float32(kind, overrides):
    # a copy with softer attention: selection multiplies rounding errors
    model = toys.sharpen(copy.deepcopy(toys.shared_toy(kind, overrides)), focus=0.7)
    inputs = toys.inputs_of(kind)
    rounded = model.to(torch.bfloat16)(**inputs).logits
    exact = model.to(torch.float32)(**inputs).logits  # of the same, rounded weights
    assert rounded.dtype == torch.bfloat16, "the logits left the model's dtype"
    assert torch.isfinite(rounded).all()
    assert toys.relative_error(rounded, exact) < 0.1


@toys.every_value("decoder")
def test_two_stages_of_a_pipeline_give_the_logits_of_the_whole(kind, overrides):
    """What comes in as embeddings is not embedded again."""
    whole = toys.shared_toy(kind, overrides)
    first, last = copy.deepcopy(whole), copy.deepcopy(whole)
    first.model.layers[1] = first.model.norm = PipelineIdentityLayer()
    last.model.layers[0] = PipelineIdentityLayer()
    inputs = toys.inputs_of(kind)
    rest = {name: value for name, value in inputs.items() if name != "input_ids"}
    with torch.no_grad():
        states = first.model(**inputs).last_hidden_state
        if whole.config.value_residual:
            refused("later stages of a pipeline do not get", last, inputs_embeds=states, **rest)
            return
        toys.assert_close(last(inputs_embeds=states, **rest).logits, whole(**inputs).logits, "logits")


@pytest.mark.parametrize("kind", toys.KINDS)
def test_the_toys_attend_selectively(kind):
    """A guard for this file: with flat attention, or a layer that does nothing, most properties would hold anyway."""
    model = toys.shared_toy(kind, {})
    with toys.attending(model, "eager"):
        output = model(**toys.inputs_of(kind, batch=1, length=12), output_attentions=True)
    for name in (name for name in output if name.endswith("attentions")):
        for layer, probabilities in enumerate(output[name]):
            # from the sixth token on an even spread would give no key more than a sixth
            assert probabilities.amax(-1)[..., 5:].mean() > 0.25, f"{name} of layer {layer} are flat"
