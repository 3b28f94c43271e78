"""Models of the training programs: new ones, and classifiers that start from a saved one with other classes."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from refusals import refused
from transformers import BeitConfig, BeitModel, BertConfig, BertForSequenceClassification
from transformers.generation import utils as generation

from vanillaformer.configuration import preset
from vanillaformer.training.arguments import ModelArguments
from vanillaformer.training.models import build_model, check_preset, fit_decoding, set_generation

SMALL = ["hidden_size=16", "num_hidden_layers=1", "num_attention_heads=2"]


def build(job: str, *tokenizers, length: int = 8, seed: int = 0, labels=None, **arguments):
    given = ModelArguments(overrides=[*SMALL, *arguments.pop("overrides", [])], **arguments)
    return build_model(job, given, *tokenizers, length=length, seed=seed, labels=labels)


def test_translation_takes_its_tokens_from_one_tokenizer_or_two(
    translator_tokenizer, decoder_tokenizer, encoder_tokenizer
) -> None:
    config = build("translation", translator_tokenizer).config
    assert config.vocab_size == config.decoder_vocab_size == len(translator_tokenizer)
    assert config.share_encoder_decoder_embeddings
    assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (0, 2, 3)
    assert config.decoder_start_token_id == translator_tokenizer.bos_token_id
    decoder_tokenizer.add_tokens(["new"])
    model = build("translation", translator_tokenizer, decoder_tokenizer)
    assert not model.config.share_encoder_decoder_embeddings
    assert model.config.decoder_vocab_size == model.config.vocab_size + 1
    assert model.model.encoder.embed_tokens.weight is not model.model.decoder.embed_tokens.weight
    encoder_tokenizer.pad_token = "[SEP]"
    refused("pad with different ids, 0 and 3", build, "translation", translator_tokenizer, encoder_tokenizer)


def test_seed_decides_the_weights_and_pairs_need_two_token_types(encoder_tokenizer, tmp_path) -> None:
    first, again, other = (build("masked", encoder_tokenizer, seed=seed) for seed in (1, 1, 2))
    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(first.state_dict()[name], again.state_dict()[name])
    assert not torch.equal(first.state_dict()[name], other.state_dict()[name])
    model = build("mlm+nsp", encoder_tokenizer)
    types = torch.tensor([[0, 0, 1]])
    assert model(torch.tensor([[5, 6, 0]]), token_type_ids=types).seq_relationship_logits.shape == (1, 2)
    for few in (0, 1):
        options = {"overrides": [f"type_vocab_size={few}"]}
        refused(f"type_vocab_size={few}: --set type_vocab_size=2", build, "mlm+nsp", encoder_tokenizer, **options)
    build("masked", encoder_tokenizer, overrides=["type_vocab_size=1"]).save_pretrained(tmp_path)
    saved = ModelArguments(model_name_or_path=str(tmp_path))
    refused("type_vocab_size=1", build_model, "mlm+nsp", saved, encoder_tokenizer, length=8, seed=0)


def test_a_classifier_is_of_the_kind_of_its_preset() -> None:
    for name, kind in (("bert-tiny", "encoder"), ("gpt-tiny", "decoder"), ("llama-tiny", "decoder")):
        assert check_preset("classification", ModelArguments(preset=name)) == kind, name


def test_a_native_model_of_which_transformers_has_none_for_the_task_is_named(tmp_path) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BeitModel(BeitConfig(**sizes)).save_pretrained(tmp_path)
    given = ModelArguments(model_name_or_path=str(tmp_path))
    refused(r"no AutoModelForMaskedImageModeling .*'beit'; `van", build_model, "masked_image", given, seed=0)


def test_saved_model_keeps_its_weights_and_takes_changes(decoder_tokenizer, tmp_path) -> None:
    model = build("causal", decoder_tokenizer, dtype="bfloat16", attn_implementation="eager")
    assert (model.dtype, model.config._attn_implementation) == (torch.bfloat16, "eager")
    model.save_pretrained(tmp_path)
    changed = {"model_name_or_path": str(tmp_path), "overrides": ["dropout=0.4"]}
    loaded = build("causal", decoder_tokenizer, seed=5, **changed)
    assert loaded.config.dropout == 0.4
    for name, value in model.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name]), name
    decoder_tokenizer.add_tokens(["new"])
    size = len(decoder_tokenizer)
    message = f"vocab_size={size - 1} is smaller than its tokenizer's {size} tokens"
    refused(message, build, "causal", decoder_tokenizer, **changed)


def test_generation_limits(decoder_tokenizer, translator_tokenizer, monkeypatch) -> None:
    decoder = build("causal", decoder_tokenizer, overrides=["max_position_embeddings=40"])
    set_generation(decoder, "causal", length=8)
    warnings: list[str] = []
    monkeypatch.setattr(generation.logger, "warning", warnings.append)
    assert decoder.generate(torch.tensor([[5, 6]]), max_new_tokens=3, min_new_tokens=3).shape == (1, 5)
    assert warnings == []  # of two lengths, of which one has no effect
    translator = build("translation", translator_tokenizer)
    set_generation(translator, "translation", length=8, num_beams=3)
    assert (translator.generation_config.max_length, translator.generation_config.num_beams) == (9, 3)
    assert translator.generate(torch.tensor([[5, 3]])).shape[1] <= 9


@pytest.mark.parametrize(("changes", "message"), [
    (["n_layers=3"], r"has no field 'n_layers' \(value 3\): .*num_hidden_layers"),
    (["max_ngram=3"], "has no field 'max_ngram' .*: it is a field of VanillaEncoderConfig"),
    (["block_layout=parallel", "norm_placement=post"], "block_layout='parallel' needs norm_placement"),
])  # fmt: skip
def test_changes_are_checked_alike_in_new_and_saved_models(changes, message, decoder_tokenizer, tmp_path) -> None:
    build("causal", decoder_tokenizer, preset="llama-tiny").save_pretrained(tmp_path)
    for start in ({"preset": "llama-tiny"}, {"model_name_or_path": str(tmp_path)}):
        with pytest.raises((ValueError, StrictDataclassError), match=message):
            build("causal", decoder_tokenizer, overrides=changes, **start)


@pytest.mark.parametrize(("decoding", "excluded"), [
    ("autoregressive", {}), ("mask_predict", {"r_drop": 0.0}),
    ("ctc", {"r_drop": 0.0, "label_smoothing_factor": 0.0, "num_beams": 1}),
])  # fmt: skip
def test_a_way_of_decoding_switches_off_what_it_excludes(decoding, excluded) -> None:
    options = {"r_drop": 1.0, "label_smoothing_factor": 0.1, "num_beams": 4, "guided_attention": 0.0}
    config = preset("transformer-tiny", decoding=decoding)
    chosen = SimpleNamespace(**options, scheduled_sampling="none", given=())
    fit_decoding(config, chosen)
    assert {name: getattr(chosen, name) for name in options} == options | excluded
    for name in excluded:
        given = SimpleNamespace(**options, scheduled_sampling="none", given=(name,))
        refused(f"--{name} .* decoding='{decoding}'", fit_decoding, config, given)


def test_attention_that_a_model_does_not_have_is_not_guided() -> None:
    config, given = preset("gru-tiny", cross_attention="none"), SimpleNamespace(guided_attention=1.0)
    refused("--guided_attention 1.0: the model has cross_attention='none'", fit_decoding, config, given)


PARTS = {
    "bert-tiny": ("classification", ["wide_max_ngram=1", "wide_buckets=64", "vocab_size=30"]),
    "gpt-tiny": ("classification", ["vocab_size=30", "pad_token_id=0"]),
    "vit-mini": ("image_classification", []),
}


def saved(preset: str, folder: Path, labels: list[str]) -> torch.nn.Module:
    task, more = PARTS[preset]
    model = build_model(task, ModelArguments(preset=preset, overrides=[*SMALL, *more]), seed=1, labels=labels)
    if hasattr(model, "wide"):
        torch.nn.init.normal_(model.wide.ngram_logits.weight)  # as fitted
    model.save_pretrained(folder)
    return model.eval()


def started(preset: str, folder: Path, labels: list[str]) -> torch.nn.Module:
    return build_model(PARTS[preset][0], ModelArguments(model_name_or_path=str(folder)), seed=2, labels=labels).eval()


def inputs(preset: str) -> dict[str, torch.Tensor]:
    if preset == "vit-mini":
        return {"pixel_values": torch.randn(2, 3, 32, 32)}
    return {"input_ids": torch.tensor([[5, 6, 7], [8, 5, 5]])}


@pytest.mark.parametrize("preset", PARTS)
def test_the_same_classes_in_another_order_keep_their_logits(preset: str, tmp_path: Path, capsys) -> None:
    old = saved(preset, tmp_path, ["pos", "neg", "mid"])
    capsys.readouterr()
    new = started(preset, tmp_path, ["mid", "neg", "pos"])
    assert "has the same classes in another order" in capsys.readouterr().out
    assert new.config.id2label == {0: "mid", 1: "neg", 2: "pos"}
    with torch.inference_mode():
        batch = inputs(preset)
        logits = {name: model(**batch).logits for name, model in (("old", old), ("new", new))}
    assert torch.equal(logits["new"], logits["old"][:, [2, 1, 0]])


@pytest.mark.parametrize("preset", PARTS)
@pytest.mark.parametrize("labels", [["a", "b", "c"], ["neg", "pos"], ["mid", "neg", "new", "pos"]])
def test_other_classes_have_a_new_output_layer(preset: str, labels: list[str], tmp_path: Path, capfd) -> None:
    old = saved(preset, tmp_path, ["mid", "neg", "pos"]).state_dict()
    capfd.readouterr()
    new = started(preset, tmp_path, labels)
    captured = capfd.readouterr()
    assert "has other classes (mid, neg, pos): the output layer is new" in captured.out
    assert "LOAD REPORT" not in captured.out + captured.err
    assert list(new.config.id2label.values()) == labels
    head = {name for name in old if name.startswith(("classifier.", "score.", "wide."))}
    assert head
    for name, value in new.state_dict().items():
        if name in head:
            assert len(labels) in value.shape
            assert value.shape != old[name].shape or not value.any() or not torch.equal(value, old[name])
        else:
            assert torch.equal(value, old[name]), name
    again = started(preset, tmp_path, labels).state_dict()
    assert all(torch.equal(value, again[name]) for name, value in new.state_dict().items())  # by the seed


BERT = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def test_numbers_name_the_classes_of_a_model_without_names(tmp_path: Path, capsys) -> None:
    model = BertForSequenceClassification(BertConfig(**BERT, num_labels=2)).eval()
    model.save_pretrained(tmp_path)
    batch = inputs("bert-tiny")
    with torch.inference_mode():
        assert torch.equal(started("bert-tiny", tmp_path, ["0", "1"])(**batch).logits, model(**batch).logits)
        swapped = started("bert-tiny", tmp_path, ["1", "0"])(**batch).logits
    assert torch.equal(swapped, model(**batch).logits[:, [1, 0]])
    assert "another order" in capsys.readouterr().out
    started("bert-tiny", tmp_path, ["neg", "pos"])
    assert "has other classes (0, 1)" in capsys.readouterr().out
    named = started("bert-tiny", tmp_path, ["LABEL_0", "LABEL_1"])  # by the data too
    assert named.config.id2label == {0: "LABEL_0", 1: "LABEL_1"}
    with torch.inference_mode():
        assert torch.equal(named(**batch).logits, model(**batch).logits)


@pytest.mark.parametrize("kind", ["regression", "multi_label_classification"])
def test_a_model_of_another_problem_learns_one_class_for_each_row(kind: str, tmp_path: Path) -> None:
    count = 1 if kind == "regression" else 2
    BertForSequenceClassification(BertConfig(**BERT, num_labels=count, problem_type=kind)).save_pretrained(tmp_path)
    labels = torch.tensor([0, 1])
    found = started("bert-tiny", tmp_path, ["neg", "pos"])(**inputs("bert-tiny"), labels=labels)
    assert torch.equal(found.loss, torch.nn.functional.cross_entropy(found.logits, labels))
