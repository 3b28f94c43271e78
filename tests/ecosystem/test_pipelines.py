"""transformers' pipelines give what the model, called directly, gives; they are made from a folder, as users do."""

import copy

import pytest
import torch
import transformers
from modeling.toys import assert_close, sharpen
from refusals import refused
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, MBartConfig, NllbTokenizer, pipeline

import vanillaformer
from vanillaformer import VanillaDecoderForCausalLM, VanillaEncoderDecoderForConditionalGeneration
from vanillaformer.tokenization import save_pair, train

from .tiny import TEXTS, batch_of, tiny, tokenizer_of

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


@pytest.mark.parametrize(("kind", "model_class"), [
    ("encoder", vanillaformer.VanillaEncoderForSequenceClassification),
    ("decoder", vanillaformer.VanillaDecoderForSequenceClassification),
])  # fmt: skip
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


def test_token_classification(saved):
    folder = saved(vanillaformer.VanillaEncoderForTokenClassification, **LABELS)
    found = pipeline("token-classification", str(folder), device="cpu", ignore_labels=[])(TEXTS[1])
    model = tiny(vanillaformer.VanillaEncoderForTokenClassification, **LABELS)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(TEXTS[1], return_tensors="pt", return_offsets_mapping=True)
    offsets = inputs.pop("offset_mapping")[0, 1:-1].tolist()
    with torch.no_grad():
        best = model(**inputs).logits[0, 1:-1].softmax(-1).max(-1)  # without [CLS] and [SEP]
    assert [entry["entity"] for entry in found] == [LABELS["id2label"][number] for number in best.indices.tolist()]
    assert [[entry["start"], entry["end"]] for entry in found] == offsets
    assert_close(torch.tensor([float(entry["score"]) for entry in found]), best.values, "scores")


FEATURES = (
    vanillaformer.VanillaEncoderModel, vanillaformer.VanillaDecoderModel, VanillaEncoderDecoderForConditionalGeneration
)  # fmt: skip


@pytest.mark.parametrize("model_class", FEATURES)
def test_feature_extraction(model_class, saved):
    """The pipeline gives a model no target: of an encoder-decoder it is handed the encoder."""
    folder = saved(model_class)
    loaded, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    model = tiny(model_class)
    if model.config.is_encoder_decoder:
        loaded, model = loaded.get_encoder(), model.get_encoder()
    features = pipeline("feature-extraction", loaded, tokenizer=tokenizer, device="cpu")(TEXTS, return_tensors=True)
    for text, states in zip(TEXTS, features, strict=True):
        with torch.no_grad():
            expected = model(**tokenizer(text, return_tensors="pt")).last_hidden_state
        assert_close(states, expected, "states")


NAMES = {"translation": "translation_text", "summarization": "summary_text", "text2text-generation": "generated_text"}


def generated(model, tokenizer, text, target_tokenizer=None, **options):
    """What `generate()` makes of a text, which the pipeline promises to give."""
    output = model.generate(**tokenizer(text, return_tensors="pt"), **options)
    return (target_tokenizer or tokenizer).batch_decode(output, skip_special_tokens=True)


@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize("task", NAMES)
def test_text_to_text(task, batch_size, saved):
    folder = saved(VanillaEncoderDecoderForConditionalGeneration)
    pipe = pipeline(task, str(folder), device="cpu", num_beams=2)
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    expected = [generated(model, tokenizer, text, num_beams=2, max_new_tokens=8) for text in TEXTS]
    found = pipe(TEXTS, batch_size=batch_size, max_new_tokens=8)
    assert found == [{NAMES[task]: text} for (text,) in expected]
    assert pipe(TEXTS[1], max_new_tokens=8) == [found[1]]
    several = pipe(TEXTS, batch_size=batch_size, max_new_tokens=8, num_return_sequences=2)
    options = {"num_beams": 2, "num_return_sequences": 2, "max_new_tokens": 8}
    assert several == [[{NAMES[task]: t} for t in generated(model, tokenizer, text, **options)] for text in TEXTS]
    assert pipe(TEXTS[0], prefix=f"{TEXTS[2]} ", max_new_tokens=8) == pipe(f"{TEXTS[2]} {TEXTS[0]}", max_new_tokens=8)
    assert [made for (made,) in pipe((text for text in TEXTS), max_new_tokens=8)] == found
    assert len(tokenizer(pipe(TEXTS[1], min_new_tokens=60)[0][NAMES[task]])["input_ids"]) > 20  # transformers' default
    refused("a text must be a string, got int: 5", pipe, 5)
    refused("src_lang='de': the tokenizer .* has no languages", pipe, "the old ship", src_lang="de")


NATIVE = {"vocab_size": 100, "d_model": 16, "num_layers": 1, "num_heads": 2, "d_ff": 32, "d_kv": 8}
NATIVE |= {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
NATIVE |= {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 64, "tie_word_embeddings": False}


@pytest.mark.parametrize(
    "class_name", ["T5ForConditionalGeneration", "MT5ForConditionalGeneration", "BartForConditionalGeneration",
                   "MarianMTModel", "M2M100ForConditionalGeneration"],
)  # fmt: skip
def test_a_native_model_translates(class_name, tmp_path):
    model_class, tokenizer = getattr(transformers, class_name), tokenizer_of("encoder_decoder")
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")}
    ids["decoder_start_token_id"] = tokenizer.bos_token_id
    torch.manual_seed(0)
    sharpen(model_class(model_class.config_class(**NATIVE, **ids))).save_pretrained(tmp_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    found = pipeline("translation", str(tmp_path), device="cpu")(TEXTS, batch_size=3, max_new_tokens=8)
    expected = [generated(model, tokenizer, text, max_new_tokens=8) for text in TEXTS]
    assert found == [{"translation_text": text} for (text,) in expected]
    assert len({text for (text,) in expected}) > 1


@pytest.mark.parametrize(("name", "option"), [("nllb", "forced_bos_token_id"), ("mbart", "decoder_start_token_id")])
def test_languages(name, option, tmp_path):
    """The languages of a call: the source's in front of its tokens, and the target's as transformers' pages say."""
    words = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "a": 4, "b": 5}
    made = {"nllb": NllbTokenizer, "mbart": transformers.MBartTokenizer}[name](
        vocab=words | {"xx": 6, "yy": 7} if name == "nllb" else [(word, 0.0) for word in words],
        **({"extra_special_tokens": ["xx", "yy"], "src_lang": "xx", "tgt_lang": "xx"} if name == "nllb" else {}),
    )
    source, target = ("xx", "yy") if name == "nllb" else ("de_DE", "ro_RO")
    ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
    torch.manual_seed(0)
    config = MBartConfig(**NATIVE | {"vocab_size": len(made)}, **ids)
    model = sharpen(transformers.MBartForConditionalGeneration(config)).eval()
    pipe = pipeline("translation", model=model, tokenizer=made, device="cpu", tgt_lang=target)
    calls = []
    model.generate = lambda **options: calls.append(options) or torch.tensor([[2, 4]])
    pipe("a b", src_lang=source)
    assert made.convert_tokens_to_ids(source) in calls[0]["input_ids"][0]
    assert calls[0][option] == made.convert_tokens_to_ids(target)
    before = made.src_lang
    pipe("a b", src_lang=target)
    assert made.src_lang == before, "the next call would be of this one's language"
    refused("tgt_lang='klingon' must be one of the tokenizer's codes: ", pipe, "a b", tgt_lang="klingon")


def test_the_language_of_a_call_is_not_that_of_the_next():
    """M2M-100's tokenizer has none at first, and cannot be set to none again."""
    read = []

    class Undecided(transformers.PreTrainedTokenizerFast):
        src_lang = None

        def __call__(self, *texts, **options):
            read.append(self.src_lang)
            return super().__call__(*texts, **options)

    tokenizer = copy.deepcopy(tokenizer_of("encoder_decoder"))
    tokenizer.__class__ = Undecided
    tokenizer.add_tokens(["de"])
    tokenizer.lang_code_to_id = {"de": len(tokenizer) - 1}
    model = tiny(VanillaEncoderDecoderForConditionalGeneration)
    pipe = pipeline("translation", model=model, tokenizer=tokenizer, device="cpu", max_new_tokens=2)
    pipe(TEXTS[0], src_lang="de")
    pipe(TEXTS[0])
    assert read == ["de", None]


GERMAN = ["ein alter Hund", "das rote Haus"] * 9


def test_two_vocabularies(tmp_path):
    source, target = copy.deepcopy(tokenizer_of("encoder_decoder")), train(GERMAN, algorithm="bpe", vocab_size=60)
    model = tiny(VanillaEncoderDecoderForConditionalGeneration, decoder_vocab_size=len(target),
                 share_encoder_decoder_embeddings=False)  # fmt: skip
    model.save_pretrained(tmp_path)
    save_pair(source, target, tmp_path)
    (found,) = pipeline("translation", str(tmp_path), device="cpu")(TEXTS[0], max_new_tokens=8)
    assert [found["translation_text"]] == generated(model, source, TEXTS[0], target, max_new_tokens=8)
    pipeline("translation", str(tmp_path), device="cpu").save_pretrained(tmp_path / "saved")
    assert pipeline("translation", str(tmp_path / "saved"), device="cpu")(TEXTS[0], max_new_tokens=8) == [found]


def test_the_prefix_of_a_task_is_that_of_the_config(saved):
    folder = saved(VanillaEncoderDecoderForConditionalGeneration)
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    model.config.task_specific_params = {"summarization": {"prefix": "summarize: "}}
    found = [pipeline(task, model=model, tokenizer=tokenizer, device="cpu").prefix for task in NAMES]
    assert found == [None, "summarize: ", None]
