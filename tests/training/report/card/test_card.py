"""The text and the metadata of a model card."""

from dataclasses import fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import InferenceClient, ModelCard, constants, metadata_load
from huggingface_hub.repocard_data import model_index_to_eval_results
from jinja2 import Environment, meta
from transformers import GPT2Config
from transformers.pipelines import get_supported_tasks

from vanillaformer import VanillaRecurrentEncoderDecoderConfig, preset
from vanillaformer.configuration import options
from vanillaformer.data.arguments import DataArguments, TranslationDataArguments
from vanillaformer.data.tasks import TASKS
from vanillaformer.hub.card_merging import is_edited, native_card
from vanillaformer.training.report import card as cards
from vanillaformer.training.report.card import writing as words
from vanillaformer.training.report.card.writing import LICENSES, TEMPLATE, card_variables, model_card
from vanillaformer.training.report.facts import CardFacts, Source, data_source, loading_code

METRICS = {
    "eval_loss": 1.5, "eval_accuracy": 0.25, "test_accuracy": 0.2, "eval_perplexity": float("inf"),
    "eval_bits_per_byte": 2.0, "eval_runtime": 9.0, "eval_samples_per_second": 8.0, "train_loss": 2.0,
    "train_runtime": 100.0, "epoch": 3.0,
}  # fmt: skip
DATA = {
    "train": {"rows": 1000, "mean length": 12.5, "longest": 16, "unknown tokens": 0.02, "vocabulary": 50,
              "texts cut": 3},
    "validation": {"rows": 10, "mean length": 10.0, "longest": 12, "unknown tokens": 0.0, "also in train": 4},
}  # fmt: skip
TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 50}


def facts(**changes: Any) -> CardFacts:
    trained = {"model_class": "VanillaEncoderForMaskedLM", "parameters": 12345, "epochs": 2.0, "resumed": None}
    trained |= {"hardware": {"CPU": "a | b, 2 cores"}, "separate_target": False}
    details = {"data": DATA, "rows": {"train": 1000, "validation": 10}, "steps": 50, "training": trained}
    details["consumed"] = {"tokens": 25_000, "flops": 1_000_000}
    names = {field.name for field in fields(CardFacts)}
    trained |= {name: changes.pop(name) for name in trained.keys() & changes.keys()}
    details |= {name: changes.pop(name) for name in list(changes) if name not in names}
    known = CardFacts(
        task="masked", config=preset("bert-tiny", **TINY), name="my_run", place="runs/my_run",
        command="python -m train --set a=1", example="the [MASK] | end",
        source=Source("some data", description="Made up."), details=details,
        choices={"model": {"preset": "bert-tiny", "overrides": ["hidden_size=16"]}, "data": {"block_size": 16},
                 "tokenizer": {"tokenizer_algorithm": "bpe"},
                 "training": {"learning_rate": 0.001, "load_best_model_at_end": True,
                              "metric_for_best_model": "loss"}},
        metrics=METRICS, pictures=("loss_curve.png",),
    )  # fmt: skip
    return replace(known, **changes)


def section(card: str, title: str) -> str:
    return card.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_metadata_and_model_index_are_as_the_hub_wants_them(tmp_path: Path) -> None:
    source = Source("some data", identifier="someone/data", on_hub=True, languages=["en", "de"])
    path = tmp_path / "README.md"
    path.write_text(model_card(facts(source=source, license="Apache-2.0")))
    data = ModelCard.load(path).data
    assert (data.library_name, data.pipeline_tag) == ("transformers", "fill-mask")
    assert (data.tags, data.datasets) == (["vanillaformer", "vanilla_encoder"], ["someone/data"])
    assert (data.language, data.license) == (["en", "de"], "apache-2.0")
    assert data.metrics == ["accuracy", "perplexity"]
    results = {(r.dataset_split, r.metric_type): r.metric_value for r in data.eval_results}
    validation = {("validation", "loss"): 1.5, ("validation", "accuracy"): 0.25, ("validation", "bits_per_byte"): 2.0}
    assert results == {**validation, ("test", "accuracy"): 0.2}
    assert {(r.dataset_type, r.dataset_name) for r in data.eval_results} == {("someone/data", "some data")}
    scores = {"eval_bleu": 30.0, "test_bleu": 29.0, "test_gen_len": 7.0}
    signatures = {"bleu": "nrefs:1|tok:13a"}
    known = facts(task="translation", config=preset("transformer-tiny", **TINY), metrics=scores, signatures=signatures)
    path = tmp_path / "README.md"
    path.write_text(model_card(known))
    header = metadata_load(path)
    name, results = model_index_to_eval_results(header["model-index"])
    assert name == "my_run"
    assert [result.metric_args for result in results] == [{"signature": "nrefs:1|tok:13a"}] * 2
    for entry in header["model-index"][0]["results"]:
        assert entry["task"] == {"type": "translation"}
        assert {"name", "type", "split"} <= entry["dataset"].keys()
        assert all(isinstance(metric["value"], float) and metric["type"] for metric in entry["metrics"])
    assert len(header["model-index"][0]["results"]) == 2  # test and validation apart
    assert ModelCard(path.read_text()).data.to_dict() == ModelCard(str(ModelCard(path.read_text()))).data.to_dict()


def test_licenses_that_the_hub_knows_and_others() -> None:
    for known in ("apache-2.0", "Apache 2.0", "mit", "CC-BY-NC-4.0"):
        assert ModelCard(model_card(facts(license=known))).data.license in LICENSES
    for other, name in (("Our House Rules, v2", "our-house-rules-v2"), ("自家", "自家")):
        data = ModelCard(model_card(facts(license=other))).data
        assert (data.license, data.license_name) == ("other", name)
    for none in (None, "", " "):
        assert ModelCard(model_card(facts(license=none))).data.license is None


@pytest.mark.parametrize("task", TASKS)
def test_pipeline_tags_are_tasks_of_the_hub_and_loading_code_is_python(task: str) -> None:
    tag = TASKS[task].pipeline_tag
    assert hasattr(InferenceClient, tag.replace("-", "_")) or tag in get_supported_tasks()
    for package in (True, False):
        separate = task == "translation"
        given = {"place": "runs/it's", "example": 'l\'exemple "[MASK]"', "separate_target": separate}
        known = facts(task=task, **given)
        known.config.prefix = "shorten: "
        code = loading_code(known, package=package)
        compile(code, "card", "exec")
        assert ("import vanillaformer" in code) == package
        assert ("trust_remote_code=True" in code) == (not package)
        assert ("target_tokenizer" in code) == ("'shorten: l" in code) == separate


def test_text_and_limits() -> None:
    card = model_card(facts())
    for text in (
        "of 12.3 k parameters (`VanillaEncoderForMaskedLM`",
        "trained from scratch on some data.",
        "| accuracy | 0.25 | 0.2 |",
        "| `learning_rate` | 0.001 |",
        "some data. Made up.\n\nLicense: not stated.",
        "| texts cut | 3 |  |",
        "| unknown tokens | 2.00% |  |",
        "Tokenizer: `bpe`, trained here; 50 tokens, of which 50 occur",
        "| tokens seen | 25 k |",
        "| time | 1.7 min, evaluation included; 250 tokens per second |",
        "| CPU | a \\| b, 2 cores |",
    ):
        assert text in card, text
    assert "runtime" not in card
    assert "label smoothing" not in card
    text = section(card, "Limits")
    for sentence in (
        "from 1,000 training rows (12.5 k tokens)",
        "rows of at most 16 tokens; more than 256 are an error.",
        "2.00% of the training tokens are unknown",
        "The validation data chose the checkpoint (by loss), which flatters their scores.",
        "4 of the 10 validation rows are in the training data too.",
    ):
        assert sentence in text, sentence


STARTED = {"model": {"model_name_or_path": "openai-community/gpt2"}, "data": {"block_size": 32}}


@pytest.mark.parametrize(
    ("changes", "present", "absent"),
    [({"metrics": {}}, [], ["\nmodel-index", "## Results"]),
     ({"config": preset("bert-tiny", **TINY, position_embedding_type="rotary")},
      ["tokens; longer ones were not tested"], []),
     ({"metrics": {"eval_loss": 1.0}}, ["and there were no test data."], []),
     ({"data": {}, "rows": {"validation": 10}, "epochs": None}, ["a stream of data"], []),
     ({"data": {}, "choices": {}, "hardware": {}, "epochs": None, "consumed": None, "pictures": ()},
      ["| rows | 1,000 | 10 |"], ["tokens seen", "!["]),
     ({"resumed": "checkpoint-7"}, ["(since checkpoint-7, from which it resumed)"], ["tokens per second"]),
     ({"task": "causal", "config": GPT2Config(n_layer=1), "choices": STARTED, "has_code": False},
      ["Weights and architecture of openai-community/gpt2. 12,345 parameters.", '"n_layer": 1',
       "of the package transformers), trained from the weights",
       "rows of at most 32 tokens; longer ones were not tested", "vaswani2017attention"],
      ["trust_remote_code", "import vanillaformer"])],
    ids=["no scores", "rotary", "no test", "a stream", "nothing known", "resumed", "of transformers"],
)  # fmt: skip
def test_text_of_other_runs(changes: dict[str, Any], present: list[str], absent: list[str]) -> None:
    card = model_card(facts(**changes))
    assert not [text for text in present if text not in card]
    assert not [text for text in absent if text in card]
    assert bool(ModelCard(card).data.eval_results) == bool(changes.get("metrics", METRICS))


def test_started_from(tmp_path: Path) -> None:
    model = {"model_name_or_path": "google/bert"}
    card = model_card(facts(choices={"model": model}))
    assert "trained from the weights of google/bert" in card
    assert "besides what google/bert had learned" in card
    source = Source("a", limits="It knows nothing.")
    assert "It knows" not in model_card(facts(choices={"model": model}, source=source))
    assert "- It knows nothing." in model_card(facts(source=Source("a", limits="It knows nothing.")))
    assert "Tokenizer: that of google/bert" in card
    assert ModelCard(card).data.base_model == "google/bert"
    local = model_card(facts(choices={"model": {"model_name_or_path": str(tmp_path)}}))
    assert ModelCard(local).data.base_model is None


def test_use_with_and_without_the_saved_code() -> None:
    assert section(model_card(facts()), "How to use it").count("```python") == 2
    assert section(model_card(facts(has_code=False)), "How to use it").count("```python") == 1
    # Jinja writes nothing for a name that it does not know
    asked = meta.find_undeclared_variables(Environment().parse((files(cards) / TEMPLATE).read_text("utf-8")))
    assert asked - {"notes", "train"} == {*card_variables(facts())}  # which the template sets itself


def test_the_card_of_a_native_form_loads_it_without_code_of_ours() -> None:
    config = preset("gpt-tiny", **TINY)
    card = model_card(facts(task="causal", config=config, model_class="VanillaDecoderForCausalLM"))
    native = native_card(card, "GPT2LMHeadModel", "gpt2")
    for gone in ("import vanillaformer", "trust_remote_code", "VanillaDecoder", "\n- vanilla_decoder\n", "Without it"):
        assert gone in card
        assert gone not in native
    for text in ("`GPT2LMHeadModel` of the package transformers", "```python\nfrom transformers import", "## Results"):
        assert text in native
    assert not is_edited(native)
    by_hand = card.replace("## Results", "## My results")
    assert native_card(by_hand, "GPT2LMHeadModel", "gpt2") == by_hand


def test_architecture() -> None:
    for option in ("norm", "norm_placement", "block_layout", "position_embedding_type", "qk_norm"):
        assert all(choice.words or name == "none" for name, choice in options.OPTIONS[option].items())

    def rows(name: str, classifies: bool = False, **changes: Any) -> dict[str, str]:
        return words.architecture(preset(name, **changes), classifies=classifies)

    gemma = rows("gemma2")
    shown = {"num_attention_heads": "8", "num_key_value_heads": "4", "head_dim": "256", "sliding_window": "4,096"}
    shown |= {"norm": "`rms_norm`: RMSNorm", "intermediate_size": "9,216", "tie_word_embeddings": "True"}
    assert {name: gemma[f"`{name}`"] for name in shown} == shown
    assert "10000" in gemma["`rope_parameters`"]
    assert "`sinusoidal_layout`" not in gemma
    assert rows("gpt-neox")["`block_layout`"] == "`parallel`: all sublayers of a block on the same input"
    classifier, bert = rows("bert-tiny", classifies=True), rows("bert-tiny")
    assert classifier["`classifier_pooling`"] == "`first`: the first token's state"
    assert "`tie_word_embeddings`" in bert
    assert "`tie_word_embeddings`" not in classifier
    assert "`classifier_pooling`" not in bert
    uneven = rows("transformer-tiny", encoder_layers=3, encoder_intermediate_size=99)
    assert [uneven[f"`{name}`"] for name in ("encoder_layers", "num_hidden_layers")] == ["3", "2"]
    assert [uneven[f"`{side}intermediate_size`"] for side in ("encoder_", "")] == ["99", "512"]
    assert words.architecture(VanillaRecurrentEncoderDecoderConfig(cell="lstm"))["`cell`"].startswith("`lstm`: long")


def test_flops_are_those_of_the_counts_and_numbers_are_short() -> None:
    config = preset("gpt-tiny", vocab_size=100)
    choices: dict[str, Any] = {"data": {"block_size": 10, "max_length": 10}}
    both = [facts(task=task, config=config, choices=choices) for task in ("causal", "classification")]
    with_head, without = (card_variables(each)["flops"] for each in both)
    assert with_head - without == 2 * 128 * 100
    # per layer and token: 4 projections and 2 maps (2 D² and 2 D 4D operations each), and 10 scores twice
    assert without == 4 * (4 * 2 * 128**2 + 2 * 2 * 128 * 512 + 4 * 128 * 10)
    assert [words.short(number) for number in (12, 1234, 5e6, 7.77e12)] == ["12", "1.23 k", "5 M", "7.77 T"]


def test_embedded_local_and_hub_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = data_source(TranslationDataArguments(target_locale="pt_BR"), "translation")
    assert (pairs.name, pairs.license) == ("Unicode CLDR formats, en to pt_BR", "Unicode License v3")
    assert pairs.languages == ["en", "pt"]
    names = data_source(DataArguments(), "classification")
    assert (names.license, len(names.languages)) == ("Unicode License v3", 20)
    assert data_source(DataArguments(), "causal").license.startswith("Python Software Foundation License")
    source = data_source(DataArguments(train_file=["d/a.csv", "b.csv"]), "causal")
    assert (source.name, source.license, source.description) == ("a.csv, b.csv", "not stated", "")
    assert not source.on_hub
    source = data_source(DataArguments(train_file=[f"d/{n}.csv" for n in range(9)]), "causal")
    assert source.name == "0.csv and 8 more files"
    source = data_source(DataArguments(train_file="a.txt", data_license="CC0", data_description="Mine."), "causal")
    assert (source.license, source.description) == ("CC0", "Mine.")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    source = data_source(DataArguments(dataset="me/data", dataset_config="de-en"), "causal")
    assert (source.name, source.license) == ("me/data de-en", "not stated")
    repo = tmp_path / "datasets--me--data"
    for folder in ("refs", "snapshots/abc", "blobs"):
        (repo / folder).mkdir(parents=True)
    (repo / "refs" / "main").write_text("abc")
    card = repo / "snapshots" / "abc" / "README.md"
    card.write_text("---\nlicense: [cc0-1.0, mit]\nlanguage: fr\n---\n")
    source = data_source(DataArguments(dataset="me/data"), "causal")
    assert (source.license, source.languages, source.on_hub) == ("cc0-1.0, mit", ["fr"], True)
    card.write_text("---\nlicense: [cc0\n---\n")
    assert data_source(DataArguments(dataset="me/data"), "causal").license == "not stated"
