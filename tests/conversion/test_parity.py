"""Every architecture, its own model against ours with the same weights: logits, loss, gradients and tokens.

`pytest -o junit_family=xunit1 --junitxml=conversion.xml` writes the measured errors of each case into the report.
"""

import pytest
import torch
from modeling.toys import assert_close, padding, relative_error, tokens
from transformers import PreTrainedModel

from vanillaformer.conversion import ARCHITECTURES
from vanillaformer.conversion.mapping.architecture import OUR_CLASSES
from vanillaformer.conversion.mapping.tensors import BUFFER_ROW
from vanillaformer.conversion.mapping.weights import model_links, tensors_of, to_our_values

from . import natives
from .natives import CASES, IMAGE_CONFIGS, LM_CONFIGS, PAD, B, Case, S, V, batch_for, converted, real

LOGITS, GRADIENTS = 1e-5, 1e-4
# Whose blocks ours were written after
FIRST = ("openai-gpt", "gpt2", "llama", "bert", "marian")
WITH_HEAD = [case for case in CASES if case.head != "base"]
TEXT = [case for case in WITH_HEAD if case.architecture in LM_CONFIGS]
GENERATING = [case for case in CASES if case.head == "lm" and hasattr(OUR_CLASSES[
    ARCHITECTURES[case.architecture].config_class]["lm"], "generate")]  # fmt: skip
SCORES = {
    "pretraining": "prediction_logits", "question": "start_logits", "base": "last_hidden_state",
    "masked_image": "reconstruction",
}  # fmt: skip


def test_every_architecture_and_every_head_has_a_case():
    assert set(LM_CONFIGS | IMAGE_CONFIGS) == set(ARCHITECTURES)
    heads = {(name, head) for name, architecture in ARCHITECTURES.items() for head in architecture.heads}
    assert {(case.architecture, case.head) for case in CASES} == heads


@pytest.mark.parametrize("case", CASES, ids=str)
@torch.no_grad()
def test_logits_and_loss(case, record_property):
    native, ours = converted(case)
    batch = batch_for(case, native)
    theirs, actual = native(**batch), ours(**batch)
    name = SCORES.get(case.head, "logits")
    error = relative_error(real(actual[name], batch), real(theirs[name], batch))
    record_property("logits", error)
    assert error <= (1e-6 if case.architecture in IMAGE_CONFIGS else LOGITS), f"logits: relative error {error:.2e}"
    if case.head == "pretraining":
        assert_close(actual.seq_relationship_logits, theirs.seq_relationship_logits, "pair logits", LOGITS)
    if case.head == "question":
        assert_close(real(actual.end_logits, batch), real(theirs.end_logits, batch), "end logits", LOGITS)
    if getattr(theirs, "pooler_output", None) is not None:
        assert_close(actual.pooler_output, theirs.pooler_output, "pooled", LOGITS)
    if case.head != "base":
        assert_close(actual.loss, theirs.loss, "loss", LOGITS)


# Architectures and heads that read a row padded on the left in another way than ours; docs/deploy.md says how
OTHERWISE_ON_THE_LEFT = {
    *((name, head) for name in ("opt", "m2m_100", *natives.ROBERTAS) for head in ("lm", "sequence", "token")),
    *((name, "sequence") for name in ("bert", "distilbert", "modernbert", "megatron-bert", "electra")),
}
LEFT = [case for case in TEXT if (case.number == 0 or case.head == "sequence") and case.head != "choice"]
# What adds the same number to the scores of all answers, or of all choices
SHIFTS = {"qa_outputs.bias", "classifier.bias", "model.norm.bias"}
SHIFTS |= {f"model.layers.{natives.LAYERS - 1}.mlp_residual.norm.bias"}
POOLING_THE_MEAN = Case("modernbert", {}, "sequence", 0)


@pytest.mark.parametrize("case", LEFT, ids=str)
@torch.no_grad()
def test_padding_on_the_left(case):
    native, ours = converted(case)
    batch = {name: value for name, value in batch_for(case, native).items() if name.startswith("decoder_input")}
    mask = padding(B, S).flip(1)
    batch |= {"input_ids": tokens(B, S, V).masked_fill(mask == 0, native.config.pad_token_id), "attention_mask": mask}
    name = SCORES.get(case.head, "logits")
    theirs, actual = native(**batch)[name], ours(**batch)[name]
    if actual.shape[:2] == mask.shape and "decoder_input_ids" not in batch:
        theirs, actual = theirs[mask == 1], actual[mask == 1]
    error = relative_error(actual, theirs)
    if (case.architecture, case.head) in OTHERWISE_ON_THE_LEFT and case != POOLING_THE_MEAN:
        assert error > 1e-2, "docs/deploy.md says that these differ"
    else:
        assert error <= LOGITS


def gradients(
    native: PreTrainedModel, ours: PreTrainedModel, case: Case
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Our gradients and, carried by the architecture's own table, the native ones."""
    table = model_links(ARCHITECTURES[case.architecture], ours, native, case.head)
    table = [link for link in table if link.kind is not BUFFER_ROW]
    if case.head == "image":
        table = [link for link in table if "mask_token" not in link.native]  # which a classifier does not read
    theirs = {name: tensor.grad for name, tensor in tensors_of(native).items()}
    parameters = dict(ours.named_parameters(remove_duplicate=False))
    expected = to_our_values(table, theirs, ours.config, set(parameters))
    return {name: (parameters[name].grad, value) for name, value in expected.items()}


@pytest.mark.parametrize("case", WITH_HEAD, ids=str)
def test_gradients(case, record_property):
    native, ours = converted(case)
    batch = batch_for(case, native)
    for model in (native, ours):
        model.zero_grad()
        model(**batch).loss.backward()
    errors = {}
    pairs = gradients(native, ours, case)
    for name, (actual, expected) in pairs.items():
        scale = expected.double().norm()
        if name.endswith("k_proj.bias"):  # softmax ignores it without rotary positions: its gradient is rounding
            scale = max(scale, pairs[name.replace("k_proj", "v_proj")][1].double().norm())
        if case.head in ("question", "choice") and name in SHIFTS:  # ignored too
            scale = max(scale, pairs[name.replace("bias", "weight")][1].double().norm())
        assert scale > 0, f"the reference has no gradient for {name}"
        errors[name] = ((actual.double() - expected.double()).norm() / scale).item()
    worst = max(errors, key=errors.get)
    record_property("gradients", errors[worst])
    limit = 1e-5 if case.architecture in (*IMAGE_CONFIGS, *FIRST) else GRADIENTS
    assert errors[worst] <= limit, f"gradient of {worst}: relative error {errors[worst]:.2e}"


@pytest.mark.parametrize("length_penalty", [0.6, 1.4])
@pytest.mark.parametrize("case", [case for case in GENERATING if case.architecture == "marian"], ids=str)
def test_beams_and_their_scores(case, length_penalty):
    settings = {"num_beams": 4, "num_return_sequences": 2, "max_new_tokens": 9, "length_penalty": length_penalty}
    settings |= {"return_dict_in_generate": True, "output_scores": True, "bad_words_ids": [[PAD]]}
    mask = padding(2, 6)
    prompt = tokens(2, 6, V).masked_fill(mask == 0, PAD)
    theirs, actual = (model.generate(prompt, attention_mask=mask, **settings) for model in converted(case))
    assert torch.equal(actual.sequences, theirs.sequences)
    assert_close(actual.sequences_scores, theirs.sequences_scores, "scores", LOGITS)


@pytest.mark.parametrize("case", GENERATING, ids=str)
def test_greedy_tokens(case):
    native, ours = converted(case)
    prompt = tokens(2, 5, V)
    settings = {"max_new_tokens": 8, "do_sample": False, "attention_mask": torch.ones_like(prompt)}
    settings |= {"no_repeat_ngram_size": 2, "pad_token_id": PAD}
    theirs, actual = native.generate(prompt, **settings), ours.generate(prompt, **settings)
    assert len(set(theirs.flatten().tolist())) > 3, "the reference repeats itself: nothing is compared"
    assert torch.equal(actual, theirs)
