"""What is fitted to logits, how it is stored and what is said of it: a temperature, and a linear classifier."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.svm import LinearSVC
from torch import nn
from transformers import AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification, pipeline

from vanillaformer import VanillaDecoderForSequenceClassification, VanillaEncoderForSequenceClassification, preset
from vanillaformer.scripts import generate, train_classifier
from vanillaformer.training.report import calibration
from vanillaformer.training.report.calibration import fit_scales, linear_svm, output_layer, reliability, scale_logits
from vanillaformer.training.report.classes import accepted_in_words

TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 40}


def drawn(temperature: float, rows: int = 20_000) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, and labels drawn from softmax(logits / temperature)."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(rows, 4, generator=generator)
    return logits, torch.multinomial((logits / temperature).softmax(1), 1, generator=generator)[:, 0]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_temperature_of_the_labels_is_found(temperature: float) -> None:
    logits, labels = drawn(temperature)
    found = 1 / fit_scales([logits], labels)[0]
    assert found == pytest.approx(temperature, rel=0.05)
    weight = torch.tensor(1.0, dtype=torch.double, requires_grad=True)
    nn.functional.cross_entropy(logits.double() / found * weight, labels).backward()
    assert abs(weight.grad.item()) < 1e-3  # but for the doubt of the targets


def test_the_parts_of_a_sum_get_the_weights_that_its_labels_were_drawn_with() -> None:
    generator = torch.Generator().manual_seed(0)
    useful, noise = (torch.randn(20_000, 4, generator=generator) for _ in range(2))
    other = torch.randn(20_000, 4, generator=generator)
    labels = torch.multinomial((2 * useful + 0.5 * other).softmax(1), 1, generator=generator)[:, 0]
    assert fit_scales([useful, other, noise], labels) == pytest.approx([2, 0.5, 0], abs=0.05)
    assert fit_scales([useful, -other], labels)[1] == 0  # none counts against what it says


@pytest.mark.parametrize("rows", [50, 5_000])
def test_a_model_that_is_always_right_is_trusted_the_more_the_longer_it_was_watched(rows: int) -> None:
    labels = torch.arange(rows) % 2
    logits = nn.functional.one_hot(labels, 2).float() * 5
    probability = (logits * fit_scales([logits], labels)[0]).softmax(1).max(1).values
    assert probability.tolist() == pytest.approx([1 - 1 / (rows + 2)] * rows, abs=1e-6)
    assert 1 / fit_scales([5 - logits], labels)[0] == pytest.approx(calibration.MAX_TEMPERATURE)  # always wrong


def test_reliability_by_hand() -> None:
    probabilities = torch.tensor([[0.98, 0.02], [0.95, 0.05], [0.4, 0.6], [0.4, 0.6]])
    found = reliability(probabilities.log(), torch.tensor([0, 1, 1, 0]))
    # the bins (14/15, 1] and (8/15, 9/15]: one of two is right in each
    assert found["calibration_error"] == pytest.approx(0.5 * abs(0.5 - 0.965) + 0.5 * abs(0.5 - 0.6), abs=1e-6)
    assert found["nll"] == pytest.approx(-np.log([0.98, 0.05, 0.6, 0.4]).mean(), abs=1e-6)
    assert found["accepted"] == {
        "0.5": {"rows": 1.0, "accuracy": 0.5},
        "0.7": {"rows": 0.5, "accuracy": 0.5},
        "0.9": {"rows": 0.5, "accuracy": 0.5},
    }
    found = reliability(torch.zeros(10, 5), torch.zeros(10, dtype=torch.long))  # which accepts nothing
    assert found["accepted"]["0.9"] == {"rows": 0.0, "accuracy": None}
    assert accepted_in_words(found).endswith("at least 0.9: 0.0% of the rows")


@pytest.mark.parametrize("model", [
    VanillaEncoderForSequenceClassification(preset("bert-tiny", **TINY, num_labels=3)),
    VanillaDecoderForSequenceClassification(preset("gpt-tiny", **TINY, num_labels=3, pad_token_id=0)),
    BertForSequenceClassification(BertConfig(**TINY, intermediate_size=16, num_labels=3)),
], ids=lambda model: type(model).__name__)  # fmt: skip
def test_the_logits_are_divided_in_the_weights(model) -> None:
    ids = torch.arange(1, 13).view(2, 6)
    model.eval()
    with torch.no_grad():
        before = model(ids).logits
        scale_logits(model, output_layer(model), 1 / 1.7)
        after = model(ids).logits
    torch.testing.assert_close(after, before / 1.7)
    assert torch.equal(after.argmax(-1), before.argmax(-1))


def test_heads_that_are_not_one_linear_layer_are_not_scaled() -> None:
    model = VanillaEncoderForSequenceClassification(preset("bert-tiny", **TINY, num_labels=3))
    model.classifier = nn.Sequential(nn.Linear(16, 3), nn.Tanh())
    assert output_layer(model) is None
    assert output_layer(VanillaEncoderForSequenceClassification(preset("bert-tiny", **TINY, num_labels=1))) is None


WORDS = {"good": ("fine", "great", "lovely", "superb"), "bad": ("poor", "awful", "dull", "broken")}
OTHERS = [f"{first}{second}" for first in "bdfgklmn" for second in ("ah", "ek", "il", "ot", "us")]
OPTIONS = """
    --set hidden_size=32 num_hidden_layers=1 num_attention_heads=2 dropout=0 --tokenizer_vocab_size 400
    --max_steps 40 --eval_steps 20 --learning_rate 0.01 --load_best_model_at_end false --use_cpu
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    """A classifier of texts with one wrong label in five, trained until it is too sure of itself."""
    folder = tmp_path_factory.mktemp("calibrated")
    generator = np.random.default_rng(0)

    def rows(count: int) -> Dataset:
        labels = generator.choice(["good", "bad"], count)
        texts = [" ".join([*generator.choice(WORDS[label], 2), *generator.choice(OTHERS, 4)]) for label in labels]
        noisy = np.where(generator.random(count) < 0.2, np.where(labels == "good", "bad", "good"), labels)
        return Dataset.from_dict({"text": texts, "label": noisy})

    for split, count in (("train", 40), ("validation", 120), ("test", 40)):
        rows(count).to_json(folder / f"{split}.jsonl")
    files = [f"--{split}_file={folder / split}.jsonl" for split in ("train", "validation", "test")]
    words = [*files, *OPTIONS.split(), "--output_dir", str(folder / "run")]
    return train_classifier.train(words), words


def test_a_run_saves_calibrated_weights_and_says_so(run) -> None:
    finished, _ = run
    found = finished.details["calibration"]
    assert found["rows"] == 120
    assert found["temperature"] > 1.2  # it has memorized the noise of 40 rows
    assert found["nll"] < found["before"]["nll"]
    assert found["calibration_error"] < found["before"]["calibration_error"]
    assert finished.metrics["eval_loss"] == pytest.approx(found["nll"], abs=1e-4)  # of the saved weights
    assert json.loads((finished.folder / "run.json").read_text())["details"]["calibration"] == found
    last = finished.folder / "checkpoint-40"
    model, checkpoint = map(AutoModelForSequenceClassification.from_pretrained, (finished.folder, last))
    weights, earlier = model.state_dict(), checkpoint.state_dict()
    for name, value in weights.items():
        divisor = found["temperature"] if name.startswith("classifier.") else 1.0
        torch.testing.assert_close(value, earlier[name] / divisor)
    card = (finished.folder / "README.md").read_text()
    for text in (
        "Its probabilities are calibrated on the validation data",
        *("probabilities calibrated by temperature scaling", "expected calibration error", "guo2017calibration"),
        "labels accepted by probability: at least 0.5: 100.0% of the rows, accuracy",
    ):
        assert text in card, text


def test_a_finished_run_stays_as_it_is_and_few_validation_rows_calibrate_nothing(run, capsys, tmp_path: Path) -> None:
    finished, words = run
    before = (finished.folder / "model.safetensors").read_bytes()
    assert train_classifier.train(words).details["calibration"] == finished.details["calibration"]
    assert (finished.folder / "model.safetensors").read_bytes() == before
    assert "labels accepted by probability: at least 0.5: 100.0% of the rows" in capsys.readouterr().out
    words = [*run[1][:-1], str(tmp_path / "run"), "--max_validation_samples", "49", "--max_steps", "2"]
    finished = train_classifier.train(words)
    assert "The probabilities are not calibrated: 49 validation rows are fewer than 50." in capsys.readouterr().out
    assert "calibration" not in finished.details
    assert "Its probabilities are not calibrated." in (finished.folder / "README.md").read_text()


def test_unlikely_labels_are_rejected(run, capsys) -> None:
    texts = ["fine great bah", "fine poor kek lovely awful", "awful dull mil"]

    def lines(*more: str) -> list[list[str]]:
        generate.main(["--model", str(run[0].folder), "--text", *texts, *more])
        return [line.split("\t") for line in capsys.readouterr().out.splitlines()]

    capsys.readouterr()
    plain = lines()
    probabilities = [float(probability) for _, probability in plain]
    threshold = (min(probabilities) + max(probabilities)) / 2
    sure = [float(probability) >= threshold for _, probability in plain]
    expected = [[label if known else "(uncertain)", number] for known, (label, number) in zip(sure, plain)]
    assert lines("--reject_below", str(threshold)) == expected
    assert 0 < [label for label, _ in expected].count("(uncertain)") < len(texts)


COLORS = ("red", "green", "blue", "small", "large", "old", "new")


def texts(count: int, classes: int) -> tuple[list[str], np.ndarray]:
    """Texts of random words, each with a few more of a word that tells its class."""
    draw = np.random.default_rng(0)
    labels = np.arange(count) % classes
    rows = [" ".join([*draw.choice(COLORS, 6), *draw.choice([COLORS[label], COLORS[-1]], 3)]) for label in labels]
    return rows, labels


@pytest.mark.parametrize("classes", [2, 4])
def test_it_is_the_svm_of_scikit_learn(classes: int) -> None:
    rows, labels = texts(80, classes)
    rarity = TfidfVectorizer(binary=True, norm=None).fit_transform(rows)
    present = csr_matrix((rarity > 0).astype(float))
    sizes = np.asarray(present.sum(axis=1))
    svm = linear_svm(csr_matrix(present / np.sqrt(sizes)), labels, classes)
    assert svm is not None
    features = rarity.toarray() / np.sqrt(sizes)
    features *= np.sqrt(sizes.sum() / rarity.power(2).sum())
    expected = LinearSVC(random_state=0).fit(features, labels).decision_function(features)
    logits = (present / np.sqrt(sizes)) @ svm.table + svm.bias
    actual = logits[:, 1] - logits[:, 0] if classes == 2 else logits
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)


def test_classes_without_a_text_are_never_predicted_and_one_class_is_no_choice() -> None:
    rows, labels = texts(60, 3)
    ngrams = csr_matrix(TfidfVectorizer().fit_transform(rows))
    svm = linear_svm(ngrams, labels * 2, 6)  # 1, 3 and 5 are missing
    assert svm is not None
    assert set((ngrams @ svm.table + svm.bias).argmax(axis=1)) <= {0, 2, 4}
    assert linear_svm(ngrams, np.zeros(60, int), 2) is None


def test_a_run_adds_it_with_the_scales_of_the_validation_data(tmp_path: Path, capfd) -> None:
    rows, labels = texts(240, 2)
    for name, part in {"train": slice(120), "validation": slice(120, 240)}.items():
        lines = (json.dumps({"text": text, "label": str(label)}) for text, label in zip(rows[part], labels[part]))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    run = train_classifier.train(
        f"--train_file {tmp_path}/train.jsonl --validation_file {tmp_path}/validation.jsonl "
        f"--output_dir {tmp_path}/run "
        "--set hidden_size=16 num_hidden_layers=1 num_attention_heads=2 wide_max_ngram=1 wide_buckets=997 "
        "--max_steps 2 --use_cpu --max_length 16 --tokenizer_algorithm word".split()
    )
    scores = run.details["ngram_logits"]
    assert "A linear classifier on n-grams of up to 1 tokens is added to the logits" in capfd.readouterr().out
    assert scores["svm"] > scores["stack"]  # two steps teach nothing
    assert run.metrics["eval_accuracy"] == pytest.approx(scores["both"])
    assert scores["both"] == pytest.approx(scores["svm"], abs=0.02)
    assert 0 < run.details["calibration"]["temperature"] == pytest.approx(1, abs=1e-3)  # it is done already
    assert "cheng2016wide" in (tmp_path / "run" / "README.md").read_text("utf-8")
    classify = pipeline("text-classification", str(tmp_path / "run"), device="cpu")
    assert {classify(text)[0]["label"] for text in ("red red red", "green green green")} == {"0", "1"}
    assert torch.isfinite(classify.model.wide.ngram_logits.weight).all()
