"""transformers' pipelines give what the model, called directly, gives; they are made from a folder, as users do."""

import pytest
import torch
from modeling.toys import assert_close
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

from vanillaformer import (
    VanillaDecoderForCausalLM,
    VanillaDecoderForSequenceClassification,
    VanillaDecoderModel,
    VanillaEncoderDecoderForConditionalGeneration,
    VanillaEncoderForMaskedLM,
    VanillaEncoderForSequenceClassification,
    VanillaEncoderForTokenClassification,
    VanillaEncoderModel,
)
from vanillaformer.scripts import generate

from .tiny import TEXTS, batch_of, tiny

LABELS = {"id2label": {0: "calm", 1: "glad", 2: "wild"}, "label2id": {"calm": 0, "glad": 1, "wild": 2}}


@pytest.mark.parametrize("batch_size", [1, 3])
def test_text_generation(batch_size, saved):
    folder = saved(VanillaDecoderForCausalLM)
    made = pipeline("text-generation", str(folder), device="cpu")
    made.tokenizer.padding_side = "left"
    greedy = {"do_sample": False, "max_new_tokens": 8}
    results = made(TEXTS, batch_size=batch_size, return_full_text=False, **greedy)
    model, tokenizer = tiny(VanillaDecoderForCausalLM), AutoTokenizer.from_pretrained(folder)
    for text, (result,) in zip(TEXTS, results, strict=True):
        prompt = tokenizer(text, return_tensors="pt")
        written = model.generate(**prompt, **greedy)[0, prompt["input_ids"].shape[1] :]
        assert result["generated_text"] == tokenizer.decode(written, skip_special_tokens=True)


def test_text_generation_of_messages(saved):
    folder = saved(VanillaDecoderForCausalLM)
    messages = [{"role": "user", "content": TEXTS[0]}]
    greedy = {"do_sample": False, "max_new_tokens": 8}
    (result,) = pipeline("text-generation", str(folder), device="cpu")(messages, **greedy)
    model, tokenizer = tiny(VanillaDecoderForCausalLM), AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    written = model.generate(**prompt, **greedy)[0, prompt["input_ids"].shape[1] :]
    reply = result["generated_text"][-1]
    assert reply == {"role": "assistant", "content": tokenizer.decode(written, skip_special_tokens=True)}


@pytest.mark.parametrize(
    ("kind", "model_class"),
    [("encoder", VanillaEncoderForSequenceClassification), ("decoder", VanillaDecoderForSequenceClassification)],
)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_text_classification(kind, model_class, batch_size, saved):
    folder = saved(model_class, **LABELS)
    results = pipeline("text-classification", str(folder), device="cpu")(TEXTS, batch_size=batch_size, top_k=None)
    with torch.no_grad():
        expected = tiny(model_class, **LABELS)(**batch_of(kind)).logits.softmax(-1)
    names = list(LABELS["label2id"])
    scores = [[{entry["label"]: entry["score"] for entry in row}[name] for name in names] for row in results]
    assert_close(torch.tensor(scores), expected, "scores")
    assert len({row[0]["label"] for row in results}) > 1, "one label for all: the order of labels is not seen"


def test_fill_mask(saved):
    folder = saved(VanillaEncoderForMaskedLM)
    text = "the old [MASK] finds the red house"
    results = pipeline("fill-mask", str(folder), device="cpu", top_k=5)(text)
    model, tokenizer = tiny(VanillaEncoderForMaskedLM), AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        logits = model(**inputs).logits[inputs["input_ids"] == tokenizer.mask_token_id]
    likeliest = logits[0].softmax(-1).topk(5)
    assert [result["token"] for result in results] == likeliest.indices.tolist()
    assert_close(torch.tensor([result["score"] for result in results]), likeliest.values, "scores")
    assert results[0]["sequence"] == tokenizer.decode(
        inputs["input_ids"][0].masked_fill(inputs["input_ids"][0] == tokenizer.mask_token_id, results[0]["token"]),
        skip_special_tokens=True,
    )


def test_token_classification(saved):
    folder = saved(VanillaEncoderForTokenClassification, **LABELS)
    found = pipeline("token-classification", str(folder), device="cpu", ignore_labels=[])(TEXTS[1])
    model, tokenizer = tiny(VanillaEncoderForTokenClassification, **LABELS), AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(TEXTS[1], return_tensors="pt", return_offsets_mapping=True)
    offsets = inputs.pop("offset_mapping")[0, 1:-1].tolist()
    with torch.no_grad():
        best = model(**inputs).logits[0, 1:-1].softmax(-1).max(-1)  # without [CLS] and [SEP]
    assert [entry["entity"] for entry in found] == [LABELS["id2label"][number] for number in best.indices.tolist()]
    assert [[entry["start"], entry["end"]] for entry in found] == offsets
    assert_close(torch.tensor([float(entry["score"]) for entry in found]), best.values, "scores")


@pytest.mark.parametrize("model_class", [VanillaEncoderModel, VanillaDecoderModel])
def test_feature_extraction(model_class, saved):
    folder = saved(model_class)
    made = pipeline("feature-extraction", str(folder), device="cpu")
    features = made(TEXTS, return_tensors=True)
    for text, states in zip(TEXTS, features, strict=True):
        with torch.no_grad():
            expected = tiny(model_class)(**made.tokenizer(text, return_tensors="pt")).last_hidden_state
        assert_close(states, expected, "states")


# ------------------------------------------------------------------------------------------- encoder-decoders
def test_features_of_an_encoder_decoder_are_its_encoders(saved):
    """The pipeline gives a model no target: it is handed the encoder."""
    folder = saved(VanillaEncoderDecoderForConditionalGeneration)
    encoder = AutoModel.from_pretrained(folder).get_encoder()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    states = pipeline("feature-extraction", model=encoder, tokenizer=tokenizer, device="cpu")(
        TEXTS[0], return_tensors=True
    )
    model = tiny(VanillaEncoderDecoderForConditionalGeneration)
    inputs = tokenizer(TEXTS[0], return_tensors="pt")
    with torch.no_grad():
        expected = model(**inputs, decoder_input_ids=inputs["input_ids"]).encoder_last_hidden_state
    assert_close(states, expected, "states")


@pytest.mark.parametrize("task", ["translation", "translation_en_to_de", "text2text-generation", "summarization"])
def test_transformers_has_no_pipeline_for_translation(task, saved):
    """Its own words, which docs/ecosystem.md repeats: should they change, the page must."""
    with pytest.raises(KeyError, match=f"The task {task} has been removed from transformers"):
        pipeline(task, str(saved(VanillaEncoderDecoderForConditionalGeneration)))


def test_translation_goes_through_generate_py(saved, capsys):
    folder = saved(VanillaEncoderDecoderForConditionalGeneration)
    generate.main(["--model", str(folder), "--max_new_tokens", "8", "--text", *TEXTS])
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    expected = [
        tokenizer.decode(
            model.generate(**tokenizer(text, return_tensors="pt"), do_sample=False, max_new_tokens=8)[0],
            skip_special_tokens=True,
        )
        for text in TEXTS
    ]
    assert capsys.readouterr().out.splitlines() == expected
