"""Parallel decoding: mask-predict and CTC, against plain computations, and each sentence of a batch against itself."""

import copy
import itertools
import math
import re
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from refusals import refused
from torch import nn
from transformers import AutoModelForSeq2SeqLM, LogitsProcessorList, MinLengthLogitsProcessor, StoppingCriteriaList
from transformers.generation import MaxTimeCriteria, TextStreamer

from vanillaformer.modeling.decoding import MaskPredict

from .axes import PAD, SOURCE_VOCABULARY, TARGET_VOCABULARY
from .test_pointers import COPYING
from .toys import assert_refused, inputs_of, padding, tokens, toy

START, END, NEW = 2, 3, 10
PARALLEL = ("mask_predict", "ctc")
every_parallel = pytest.mark.parametrize("decoding", PARALLEL)
ADDED = {"position_embedding_type": "sinusoidal", "tie_word_embeddings": True}


def parallel_toy(decoding: str, **overrides: Any) -> Any:
    return toy("encoder_decoder", decoding=decoding, **(ADDED | overrides)).double()


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {decoding: parallel_toy(decoding).requires_grad_(False) for decoding in PARALLEL}


def source(batch: int = 3, length: int = 7, side: str = "right") -> dict[str, torch.Tensor]:
    return inputs_of("encoder", batch, length, side)


def labels_of(batch: int = 3, length: int = 6) -> torch.Tensor:
    """Targets with an end, each one token shorter than the one before."""
    labels, mask = tokens(batch, length, TARGET_VOCABULARY, seed=4), padding(batch, length)
    return labels.scatter(1, mask.sum(1, keepdim=True) - 1, END).masked_fill(mask == 0, -100)


def single(inputs: dict[str, torch.Tensor], row: int) -> dict[str, torch.Tensor]:
    """A sentence of a batch without its padding."""
    real = inputs["attention_mask"][row] == 1
    return {name: value[row : row + 1, real] for name, value in inputs.items()}


def text_of(row: torch.Tensor) -> list[int]:
    return [token for token in row.tolist()[1:] if token != PAD]


@pytest.mark.parametrize(("decoding", "options"), [
    ("mask_predict", {"refinement_steps": 1}), ("mask_predict", {"refinement_steps": 4}),
    ("mask_predict", {"refinement_steps": 3, "num_beams": 4, "num_return_sequences": 2}),
    ("mask_predict", {"length_scale": 2.0}), ("ctc", {}),
])  # fmt: skip
def test_a_batch_is_its_sentences(models, decoding, options):
    inputs, returned = source(), options.get("num_return_sequences", 1)
    batch = models[decoding].generate(**inputs, max_new_tokens=NEW, **options)
    assert (batch[:, 0] == START).all()
    for row, text in enumerate(batch):
        alone = models[decoding].generate(**single(inputs, row // returned), max_new_tokens=NEW, **options)
        found = text_of(alone[row % returned])
        assert text_of(text) == found
        assert found[-1] == END
        assert found.count(END) == 1
        assert START not in found
        assert len(found) <= NEW


@every_parallel
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_of_the_source_changes_nothing(models, decoding, side):
    inputs, labels = source(side=side), labels_of()
    loss = models[decoding](**inputs, labels=labels).loss
    counts = (labels != -100).sum(1)
    losses = [models[decoding](**single(inputs, row), labels=labels[row : row + 1]).loss for row in range(3)]
    torch.testing.assert_close(loss, (torch.stack(losses) * counts).sum() / counts.sum())


@every_parallel
@pytest.mark.parametrize("fields", [{}, COPYING], ids=["softmax", "pointer_generator"])
def test_every_weight_is_trained(decoding, fields):
    model = parallel_toy(decoding, **fields).train()
    torch.manual_seed(0)
    model(**source(), labels=labels_of()).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name
    assert model.eval().generate(**source(), max_new_tokens=NEW).shape[0] == 3


@every_parallel
def test_a_pass_is_divided_by_the_targets_of_the_step(models, decoding):
    inputs, labels = source(), labels_of()
    whole = models[decoding](**inputs, labels=labels)
    part = models[decoding](**inputs, labels=labels, num_items_in_batch=torch.tensor(40), return_logits=False)
    assert part.loss.item() == pytest.approx((whole.loss * (labels != -100).sum() / 40).item())
    assert part.logits is None
    labels[2] = -100  # a row without labels adds nothing
    first = models[decoding](**{name: value[:2] for name, value in inputs.items()}, labels=labels[:2])
    torch.testing.assert_close(models[decoding](**inputs, labels=labels).loss, first.loss)


@every_parallel
def test_training_without_labels_is_an_error_that_says_why(decoding):
    model = parallel_toy(decoding)
    given = source() | {"decoder_input_ids": tokens(3, 6, TARGET_VOCABULARY)}
    shape = model(**given).logits.shape
    model.train()
    refused(f"decoding='{decoding}'.* needs labels: .*label_smoothing_factor", model, **given)
    assert model(**source(), labels=labels_of()).loss.isfinite()
    with torch.no_grad():
        assert model(**given).logits.shape == shape
    assert model.generate(**source(), max_new_tokens=NEW).shape[0] == 3  # as after training


@every_parallel
def test_a_saved_model_generates_the_same(decoding, tmp_path):
    model = parallel_toy(decoding)
    if decoding == "mask_predict":
        model.generation_config.refinement_steps = 7
    model.save_pretrained(tmp_path)
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert (again.config.decoding, getattr(again.generation_config, "refinement_steps", 7)) == (decoding, 7)
    options = {"max_new_tokens": NEW}
    assert torch.equal(again.generate(**source(), **options), model.generate(**source(), **options))


@every_parallel
@pytest.mark.parametrize(("name", "options"), [
    *((f"{name}={value!r}", {name: value}) for name, value in {
        "do_sample": True, "repetition_penalty": 1.5, "no_repeat_ngram_size": 2, "forced_bos_token_id": 5,
        "min_new_tokens": 3, "prompt_lookup_num_tokens": 2, "cache_implementation": "static",
    }.items()),
    ("streamer", {"streamer": TextStreamer(None)}),
    ("output_scores=True", {"output_scores": True, "return_dict_in_generate": True}),
    ("decoder_input_ids", {"decoder_input_ids": torch.tensor([[START, 5]] * 3)}),
    ("MinLength", {"logits_processor": LogitsProcessorList([MinLengthLogitsProcessor(3, END)])}),
    ("PrefixConstrained", {"prefix_allowed_tokens_fn": lambda batch, ids: [4]}),
    ("MaxTimeCriteria", {"stopping_criteria": StoppingCriteriaList([MaxTimeCriteria(1.0)])}),
])  # fmt: skip
def test_options_that_need_a_prefix_are_refused_by_name(models, decoding, name, options):
    assert_refused([name, f"decoding={decoding!r}"], models[decoding].generate, **source(), **options)


@pytest.mark.parametrize(("decoding", "options", "message"), [
    ("mask_predict", {"refinement_steps": 0}, "refinement_steps must be an integer of at least 1, got 0"),
    ("mask_predict", {"length_scale": -1.0}, "length_scale must be a finite number greater than 0"),
    ("ctc", {"num_beams": 2}, "num_beams=2: decoding='ctc' has a single candidate"),
    ("ctc", {"length_scale": 2.0}, "length_scale"),
])  # fmt: skip
def test_wrong_options_are_refused(models, decoding, options, message):
    refused(message, models[decoding].generate, **source(), **options)
    refused("assistant_model", models[decoding].generate, **source(), assistant_model=models[decoding])
    smoothed = {"labels": labels_of(), "label_smoothing": 0.1}
    refused(r"label_smoothing=0.1: decoding='ctc'", models["ctc"], **source(), **smoothed)


def test_the_first_position_attends_to_the_last(models):
    ids = tokens(1, 5, TARGET_VOCABULARY)
    other = ids.clone()
    other[0, -1] = ids[0, -1] - 1
    logits = [models["mask_predict"](**source(1), decoder_input_ids=entry).logits[0, 0] for entry in (ids, other)]
    assert (logits[0] - logits[1]).abs().max() > 1e-3


def refined(model, inputs, length: int, steps: int) -> tuple[list[int], float]:
    """The algorithm of the paper for one sentence, in plain Python: the text, and the sum of the log-probabilities."""
    text, certainty = [START] * length, [0.0] * length
    for step in range(1, steps + 1):
        logits = model(**inputs, decoder_input_ids=torch.tensor([[*text, END]])).logits[0]
        logits[:, [PAD, START, END]] = -torch.inf
        best = logits.log_softmax(-1).max(-1)
        for place in [place for place in range(length) if text[place] == START]:
            text[place], certainty[place] = best.indices[place].item(), best.values[place].item()
        for place in sorted(range(length), key=lambda place: certainty[place])[: length * (steps - step) // steps]:
            text[place] = START
    return [*text, END], sum(certainty)


def length_log_probabilities(model, inputs) -> dict[int, float]:
    """Log-probability of every length that fits into NEW tokens, by the differences to the source's 7 tokens."""
    states = model.get_encoder()(**inputs).last_hidden_state
    logits = model.decoding.length_logits(states, inputs["attention_mask"].bool())[0].tolist()
    fitting = {7 + place - 128: logit for place, logit in enumerate(logits) if 1 <= 7 + place - 128 <= NEW - 1}
    total = math.log(sum(map(math.exp, fitting.values())))
    return {length: logit - total for length, logit in fitting.items()}


@pytest.mark.parametrize(("beams", "steps", "penalty"), [(1, 1, 1.0), (1, 3, 1.0), (3, 3, 1.0), (3, 3, 0.0)])
def test_candidates_are_the_likeliest_lengths_and_the_likeliest_text_wins(models, beams, steps, penalty):
    model, inputs = models["mask_predict"], single(source(), 0)
    lengths = length_log_probabilities(model, inputs)
    likeliest = sorted(lengths, key=lambda length: -lengths[length])[:beams]
    texts = {length: refined(model, inputs, length, steps) for length in likeliest}
    scores = {length: (lengths[length] + texts[length][1]) / length**penalty for length in likeliest}
    order = sorted(likeliest, key=lambda length: -scores[length])
    search = {"max_new_tokens": NEW, "refinement_steps": steps, "length_penalty": penalty, "num_beams": beams}
    output = model.generate(**inputs, **search, num_return_sequences=beams, return_dict_in_generate=True)
    assert [text_of(row) for row in output.sequences] == [texts[length][0] for length in order]
    assert output.sequences_scores.tolist() == pytest.approx([scores[length] for length in order], rel=1e-5)
    assert text_of(model.generate(**inputs, **search)[0]) == texts[order[0]][0]


def test_length_scale_is_a_factor_on_the_length(models):
    model, inputs = models["mask_predict"], single(source(), 0)
    options = [{"max_new_tokens": 20, "length_scale": scale} for scale in (1.0, 0.5, 1.5)]
    length, *others = [model.generate(**inputs, **each).shape[1] - 2 for each in options]
    assert others == [round(0.5 * length), min(round(1.5 * length), 19)]


def test_draws_hide_any_number_of_tokens_and_never_the_end():
    content = (padding(2000, 6)[:2].repeat(1000, 1) == 1).clone()
    content[0::2, 5] = False
    content[1::2, 4] = False  # where the end is
    torch.manual_seed(0)
    hidden = MaskPredict.draw_hidden(content)
    assert not (hidden & ~content).any()
    for start, length in ((0, 5), (1, 4)):
        numbers = hidden[start::2].sum(1)
        assert numbers.bincount(minlength=length + 1)[1:].tolist() == pytest.approx([1000 / length] * length, rel=0.2)
        share = (length + 1) / 2 / length
        assert hidden[start::2].float().mean(0)[:length].tolist() == pytest.approx([share] * length, rel=0.1)


@pytest.mark.parametrize("hidden", [[1, 1, 1, 1, 1], [1, 0, 1, 1, 0]], ids=["held out", "training"])
def test_the_loss_is_the_likelihood_of_the_length_and_of_hidden_tokens(models, hidden, monkeypatch):
    """Those that are hidden, as if they were the mean over all; all of them in evaluation."""
    model, inputs, labels = models["mask_predict"], single(source(), 0), labels_of(1)
    length, places = labels.shape[1] - 1, torch.tensor([[*hidden, 0]]) == 1
    monkeypatch.setattr(MaskPredict, "draw_hidden", staticmethod(lambda content: places))
    given = labels.masked_fill(places, START)
    logits = model(**inputs, decoder_input_ids=given).logits
    tokens_loss = length * nn.functional.cross_entropy(logits[places], labels[places])
    lengths = model.decoding.length_head(model.get_encoder()(**inputs).last_hidden_state.mean(1))
    length_loss = nn.functional.cross_entropy(lengths, torch.tensor([length - 7 + 128]))
    loss = copy.deepcopy(model).train(not all(hidden))(**inputs, labels=labels).loss
    torch.testing.assert_close(loss, (tokens_loss.float() + length_loss.float()) / (length + 1))
    assert torch.equal(model.prepare_decoder_input_ids_from_labels(labels), given) == all(hidden)


def collapsed(path: list[int]) -> list[int]:
    """A path without repetitions and blanks, in plain Python."""
    return [token for token, _ in itertools.groupby(path) if token != PAD]


@pytest.mark.parametrize(("start", "new"), [(START, 24), (PAD, 24), (END, 24), (START, 4)])
def test_paths_collapse_as_in_plain_python_whatever_starts_a_text(start, new):
    model = parallel_toy("ctc", decoder_start_token_id=start, lm_head_bias=True).requires_grad_(False)
    inputs = source(20, 8)
    logits = model(**inputs).logits
    gaps = logits.amax(-1, keepdim=True) - logits
    for token in (PAD, END):  # half of the frames are blank, and most texts end
        model.lm_head.bias[token] += gaps[..., token].median()
    frames = model.config.ctc_upsampling * inputs["attention_mask"].sum(1)
    logits = model(**inputs).logits
    if start not in (PAD, END):
        logits[..., start] = -math.inf
    paths = [path[:count] for path, count in zip(logits.argmax(-1).tolist(), frames.tolist())]
    expected = [list(itertools.takewhile(END.__ne__, collapsed(path))) for path in paths]
    assert len({len(text) for text in expected}) > 3
    made = model.generate(**inputs, max_new_tokens=new)[:, 1:].tolist()
    assert [row[: row.index(END)] for row in made] == [text[: new - 1] for text in expected]


@pytest.mark.parametrize("ends", [PAD, [END, PAD]])
def test_a_blank_that_ends_a_text_is_refused(ends):
    message = rf"pad_token_id={PAD} and eos_token_id={re.escape(str(ends))}"
    refused(message, parallel_toy, "ctc", error=StrictDataclassError, eos_token_id=ends)
    assert parallel_toy("mask_predict", eos_token_id=ends).config.eos_token_id == ends


def test_the_loss_is_the_likelihood_of_all_paths_and_a_target_without_one_adds_nothing(models):
    model = parallel_toy("ctc", decoder_vocab_size=6, ctc_upsampling=2).requires_grad_(False)
    inputs = {"input_ids": torch.tensor([[5, 6]])}
    log_probabilities = model(**inputs).logits[0].log_softmax(-1)  # 4 frames
    labels = torch.tensor([[4, 4, END]])
    paths = [path for path in itertools.product(range(6), repeat=4) if collapsed(list(path)) == [4, 4, END]]
    total = log_probabilities[torch.arange(4), torch.tensor(paths)].sum(1).exp().sum().item()
    assert model(**inputs, labels=labels).loss.item() == pytest.approx(-math.log(total) / 3, rel=1e-5)
    labels = torch.tensor([[4] * 12 + [END]])  # 12 equal tokens need 23 frames
    assert models["ctc"](input_ids=torch.tensor([[5, 6, 3]]), labels=labels).loss == 0


def test_there_are_frames_for_every_position_of_the_table():
    model = parallel_toy("ctc", position_embedding_type="learned")
    length = model.config.max_position_embeddings
    assert model(input_ids=tokens(1, length, SOURCE_VOCABULARY)).logits.shape[1] == 3 * length
    assert model.model.decoder.embeddings.positions.embed_positions.num_embeddings == 3 * length
