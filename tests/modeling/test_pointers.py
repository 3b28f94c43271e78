"""The copy mechanism: against its formula, against the plain model, its gradients, and the source's tokens."""

import pytest
import torch
from refusals import refused
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from vanillaformer.modeling.parts.pointers import PointerGenerator

from .toys import PAD, SOURCE_VOCABULARY, assert_close, padding, sharpen, tokens, toy, toy_config

ONE_VOCABULARY = {"share_encoder_decoder_embeddings": True, "decoder_vocab_size": SOURCE_VOCABULARY}
COPYING = {"output_distribution": "pointer_generator", **ONE_VOCABULARY}
MASK = padding(3, 7)
# Words that repeat, padding, and a word with its number
SOURCE = tokens(3, 4)[:, [0, 1, 0, 2, 1, 3, 2]].masked_fill(MASK == 0, PAD)
SOURCE[:, 3] = PAD
INPUTS = {"input_ids": SOURCE, "attention_mask": MASK, "decoder_input_ids": tokens(3, 5, seed=3)}
LABELS = tokens(3, 5, seed=4)
LABELS[:, 4] = LABELS[0, 1] = -100
LABELS[0, 0] = SOURCE[0, 0]


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return toy("encoder_decoder", **COPYING).double()


def test_the_distribution_is_that_of_the_formula(model):
    pointer, outputs = model.pointer, model.model(**INPUTS)
    states, source = outputs.last_hidden_state, outputs.encoder_last_hidden_state
    expected = model.lm_head(states).softmax(-1)
    for row, length in enumerate(MASK.sum(1)):
        real = source[row, :length]
        for t, state in enumerate(states[row]):
            scores = torch.stack([pointer.query.weight @ state @ e for e in real]) / len(state) ** 0.5
            attention = scores.softmax(0)
            context = (attention[:, None] * real).sum(0)
            generate, copy = pointer.gate(torch.cat([state, context])).softmax(0)
            expected[row, t] *= generate
            for weight, token in zip(attention, SOURCE[row]):
                expected[row, t, token] += copy * weight
    logits = model(**INPUTS).logits
    assert_close(logits.exp(), expected, "probabilities", 1e-12)
    assert_close(logits, logits.log_softmax(-1), "log-probabilities as logits", 1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_of_the_labeled_rows_is_that_of_all(model, smoothing):
    log_p = model(**INPUTS).logits[LABELS != -100]
    gold = LABELS[LABELS != -100]
    terms = (1 - smoothing) * log_p.gather(-1, gold[:, None])[:, 0] + smoothing * log_p.mean(-1)
    output = model(**INPUTS, labels=LABELS, labeled_only=True, label_smoothing=smoothing)
    assert output.logits.shape == log_p.shape
    assert_close(output.loss, -terms.mean(), "loss", 1e-6)
    assert_close(output.logits, log_p, "log-probabilities", 1e-12)


def test_the_gradients_are_those_of_differences_and_finite_where_probabilities_vanish():
    pointer = sharpen(PointerGenerator(toy_config("encoder_decoder", **COPYING))).double()
    generator = torch.Generator().manual_seed(0)
    states, source, logits = (
        torch.randn(1, length, width, dtype=torch.float64, generator=generator).requires_grad_()
        for length, width in ((2, 24), (4, 24), (2, SOURCE_VOCABULARY))
    )
    ids, mask = torch.tensor([[5, 6, 5, PAD]]), torch.tensor([[1, 1, 1, 0]])

    def log_p(states: torch.Tensor, source: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        return pointer.mix(logits, *pointer(states, source, ids, mask))

    assert torch.autograd.gradcheck(log_p, (states, source, logits))
    model = toy("encoder_decoder", **COPYING)
    with torch.no_grad():
        model.pointer.query.weight.mul_(1e4)  # an attention of exact zeros and ones
        model.lm_head.weight.mul_(100)
    model(**INPUTS, labels=LABELS).loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert model.pointer.gate.weight.grad.abs().max() > 0


def test_beams_are_those_of_a_search_without_cache_and_of_given_encoder_outputs(model):
    source = {name: INPUTS[name] for name in ("input_ids", "attention_mask")}
    search = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 6, "output_scores": True}
    search |= {"return_dict_in_generate": True}
    found = model.generate(**source, **search)
    encoded = model.get_encoder()(**source)
    for other in (
        model.generate(**source, **search, use_cache=False),
        model.generate(encoder_outputs=encoded, attention_mask=MASK, **search),
    ):
        assert torch.equal(other.sequences, found.sequences)
        assert_close(other.sequences_scores, found.sequences_scores, "scores", 1e-10)


def test_encoder_outputs_of_other_kinds_need_the_source_tokens(model):
    expected = model(**INPUTS).logits
    states = model.get_encoder()(SOURCE, attention_mask=MASK).last_hidden_state
    others = {name: value for name, value in INPUTS.items() if name != "input_ids"}
    for encoded in (BaseModelOutput(states), (states,)):
        assert torch.equal(model(input_ids=SOURCE, encoder_outputs=encoded, **others).logits, expected)
        refused("give input_ids, or encoder_outputs", model, encoder_outputs=encoded, **others)
    refused("pointer_generator", model, inputs_embeds=model.get_input_embeddings()(SOURCE), **others)
