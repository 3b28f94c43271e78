"""Classifiers of tokens, of pairs, by several labels and by numbers: files, losses, scores and runs."""

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from data.test_loading import write
from datasets import ClassLabel, Dataset, DatasetDict, Features, Sequence, Value
from refusals import refused
from scipy import stats
from seqeval.metrics import classification_report, f1_score
from seqeval.metrics.sequence_labeling import get_entities
from sklearn import metrics as sklearn_metrics
from torch.nn import functional
from transformers import AutoModelForSequenceClassification, AutoTokenizer, EvalPrediction, pipeline

from vanillaformer.data.arguments import ClassifierDataArguments, TokenDataArguments
from vanillaformer.data.embedded import tagged_phrases
from vanillaformer.data.loading import load_data
from vanillaformer.data.preprocessing.tokenizing import classification_rows, handle_long_texts
from vanillaformer.inference.tasks import find_entities
from vanillaformer.scripts import generate, train_classifier
from vanillaformer.tokenization import train as train_tokenizer
from vanillaformer.tokenization.passages import PAIR
from vanillaformer.training.report.baselines import BaselineData
from vanillaformer.training.tasks import token_classification as task
from vanillaformer.training.tasks.problems import Numbers, Several

TEXTS = ["Angela Merkel visited New-York .", "in 1999 , Łódź grew", "IBM"]
TAGS = ["B-PER I-PER O B-LOC O", "O O O B-LOC O", "B-ORG"]
NAMES = ["O", "B-LOC", "B-ORG", "B-PER", "I-PER"]
ROWS = [(text.split(), tags.split()) for text, tags in zip(TEXTS, TAGS)]


def conll(rows: Any) -> str:
    return "\n\n".join("\n".join(f"{token} X {tag}" for token, tag in zip(*row)) for row in rows)


def tagged_file(folder: Path, name: str) -> str:
    """Write `ROWS` into a file, in the format of its name."""
    path, columns = folder / name, {"tokens": [row[0] for row in ROWS], "tags": [row[1] for row in ROWS]}
    if name.endswith(".parquet"):
        numbers = [[NAMES.index(tag) for tag in tags] for tags in columns["tags"]]
        features = Features({"tokens": Sequence(Value("string")), "tags": Sequence(ClassLabel(names=NAMES))})
        Dataset.from_dict({**columns, "tags": numbers}, features=features).to_parquet(path)
    elif name.endswith(".jsonl"):
        write(path, [dict(zip(columns, row)) for row in ROWS])
    else:
        start = "-DOCSTART- -X- O\n"
        path.write_text(f"{start}\n{conll(ROWS)}\n \n\n{start}", newline="\r\n")
    return str(path)


@pytest.mark.parametrize("name", ["a.conll", "a.txt", "a.jsonl", "a.parquet"])
def test_every_format_has_the_same_rows(name: str, tmp_path: Path) -> None:
    file = tagged_file(tmp_path, name)
    splits = load_data(TokenDataArguments(train_file=[file], validation_file=[file]), "token_classification").splits
    assert splits["train"].to_dict() == {"tokens": TEXTS, "tags": TAGS}


GOOD = '{"tokens": ["a", "b"], "tags": ["B-X", "O"]}\n'


@pytest.mark.parametrize(("name", "content", "message"), [
    ("a.jsonl", f'{GOOD}{{"tokens": ["a", "b"], "tags": ["O"]}}', "a.jsonl, row 2: it has 2 tokens and 1 tags"),
    ("a.jsonl", f'{GOOD}{{"tokens": [], "tags": []}}', "row 2: the tokens is empty"),
    ("a.jsonl", f'{GOOD}{{"tokens": ["a b"], "tags": ["O"]}}', "row 2: --tokens_column .* lists of tokens without"),
    ("a.jsonl", f'{GOOD}{{"tokens": "a b", "tags": ["O", "O"]}}', "row 2: --tokens_column must name lists .*'a b'"),
    ("a.jsonl", f'{GOOD}{{"tokens": ["a"], "tags": [null]}}', "row 2: --tags_column must name lists"),
    ("a.conll", "a O\n\nb\nc O\n", "a.conll, row 2: line 3 has one column"),
    ("a.csv", "tokens,tags\na,O\n", "a.csv: --tokens_column needs lists"),
])  # fmt: skip
def test_bad_rows_are_refused_or_skipped(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    options: dict[str, Any] = {"train_file": [str(tmp_path / name)], "validation_file": [str(tmp_path / name)]}
    refused(message, load_data, TokenDataArguments(**options), "token_classification")
    if name != "a.csv":
        found = load_data(TokenDataArguments(**options, bad_rows="skip"), "token_classification")
        assert len(found.splits["train"]) == 1


@pytest.mark.parametrize(
    ("train", "validation", "message"),
    [("O B-X", "O B-Y", "validation data: the tag 'B-Y' does not occur"), ("O O", "O O", "all tags .* are 'O'")],
)
def test_tags_are_those_of_the_training_data(train: str, validation: str, message: str) -> None:
    splits = {"train": Dataset.from_dict({"tags": [train]}), "validation": Dataset.from_dict({"tags": [validation]})}
    refused(message, task.TokenClassification.labels, None, SimpleNamespace(splits=splits))


def test_embedded_splits_share_no_name_and_no_phrase() -> None:
    splits = tagged_phrases(size=400)
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 320, "validation": 40, "test": 40}
    names: list[set[str]] = []
    for rows in splits.values():
        assert [len(text.split(" ")) for text in rows["tokens"]] == [len(tags.split(" ")) for tags in rows["tags"]]
        found = ((row["tokens"].split(" "), get_entities(row["tags"].split(" "))) for row in rows)
        spans = [(words[first : last + 1], kind) for words, entities in found for kind, first, last in entities]
        names.append({" ".join(words) for words, kind in spans if kind in ("PLACE", "LANGUAGE")})
    assert not names[0] & names[1]
    assert not names[0] & names[2]
    assert not set(splits["train"]["tokens"]) & set(splits["test"]["tokens"])
    assert tagged_phrases(size=400)["test"].to_dict() == splits["test"].to_dict()


@pytest.mark.parametrize("algorithm", ["wordpiece", "byte_level_bpe", "bpe", "unigram", "character"])
def test_labels_are_those_of_transformers_example(algorithm: Any) -> None:
    """`run_ner.py` gives the tokenizer lists of words, and a label to the first piece of each `word_ids`."""
    tokenizer = train_tokenizer(TEXTS * 3, kind="encoder", algorithm=algorithm, vocab_size=300)
    found = task.tagged_pieces({"tokens": TEXTS, "tags": TAGS}, tokenizer=tokenizer, names=NAMES, length=64)
    for index, (words, tags) in enumerate(ROWS):
        alone = tokenizer([words], is_split_into_words=True)
        ids = alone.word_ids(0)
        firsts = [word is not None and word != before for word, before in zip(ids, [None, *ids])]
        labels = [NAMES.index(tags[word]) if first else -100 for word, first in zip(ids, firsts)]
        ours = found[task.TAG_IDS][index]
        assert [label for label in ours if label >= 0] == [label for label in labels if label >= 0]
        if algorithm == "wordpiece":
            assert (found["input_ids"][index], ours) == (alone["input_ids"][0], labels)
        first = ours.index(next(label for label in ours if label >= 0))
        piece = tokenizer.decode(found["input_ids"][index][first])
        assert words[0].casefold().startswith(piece.strip().casefold())


def test_scores_and_baseline_are_seqevals() -> None:
    assert task.tag_scores([["NOUN", "NOUN", "B-X"]], [["NOUN", "NOUN", "O"]])["entity_recall"] == 1
    train = Dataset.from_dict({"tokens": [*TEXTS, "Paris"], "tags": [*TAGS, "B-LOC"]})
    baseline = task.TAG_OF_THE_WORD
    held_out = Dataset.from_dict({"tokens": ["Merkel left IBM", "Paris"], "tags": ["B-PER O B-ORG", "B-LOC"]})
    predicted = [["I-PER", "O", "B-ORG"], ["B-LOC"]]
    wanted = [["B-PER", "O", "B-ORG"], ["B-LOC"]]
    scores = baseline.fit(BaselineData(train))(held_out)
    assert scores["entity_f1"] == f1_score(wanted, predicted) == 1.0  # as conlleval, which takes I- after O for B-
    assert scores["accuracy"] == 3 / 4
    words = task.tag_scores([["NOUN", "VERB"]], [["NOUN", "NOUN"]])
    assert words == {"entity_f1": 0.5, "entity_precision": 0.5, "entity_recall": 0.5, "accuracy": 0.5}
    bilou = task.tag_scores([["U-PER", "U-PER", "B-LOC", "L-LOC"]], [["U-PER", "U-PER", "U-LOC", "U-LOC"]])
    assert (bilou["entity_precision"], bilou["entity_recall"]) == (pytest.approx(2 / 3), 2 / 4)
    nothing = task.tag_scores([["O"]], [["O"]])
    assert (nothing["entity_f1"], nothing["accuracy"]) == (0.0, 1.0)


def test_cut_texts_have_no_tags_for_what_is_cut(encoder_tokenizer) -> None:
    columns = {"tokens": ["a b c d e f"], "tags": ["O O O O O B-X"]}
    found = task.tagged_pieces(columns, tokenizer=encoder_tokenizer, names=["O", "B-X"], length=5)
    assert (found["tokens_cut"], len(found[task.TAG_IDS][0])) == ([True], 5)
    assert 1 not in found[task.TAG_IDS][0]
    rows = DatasetDict(train=Dataset.from_dict({"tokens_cut": [True, False]}))
    assert handle_long_texts(rows, rows, {"tokens": 5}, "cut").stats["train"] == {"texts cut": 1}


@pytest.mark.parametrize(("tags", "printed"), [
    ("U-PER U-PER B-LOC L-LOC", "PER: a\tPER: b\tLOC: c d"),
    ("S-PER O B-LOC E-LOC", "PER: a\tLOC: c d"), ("B-PER I-PER O B-PER", "PER: a b\tPER: d"),
    ("NOUN VERB NOUN NOUN", "a/NOUN b/VERB c/NOUN d/NOUN"),
])  # fmt: skip
def test_entities_are_found_by_the_prefixes_of_training(tags: str, printed: str) -> None:
    names = sorted(set(tags.split()))
    tokenizer = train_tokenizer(["a b c d"] * 3, kind="encoder", algorithm="wordpiece", vocab_size=300)

    def model(input_ids: torch.Tensor, **_: Any) -> Any:
        ids = [0, *(names.index(tag) for tag in tags.split()), 0]
        assert input_ids.shape == (1, len(ids))
        return SimpleNamespace(logits=functional.one_hot(torch.tensor([ids]), len(names)))

    model.config = SimpleNamespace(id2label=dict(enumerate(names)))  # type: ignore[attr-defined]
    loaded: Any = SimpleNamespace(model=model, encode=lambda texts: tokenizer(texts, return_tensors="pt"))
    assert find_entities(loaded, ["a b c d"]) == [printed]


def test_a_run_leaves_entities_by_kind(tmp_path: Path) -> None:
    names = SimpleNamespace(names=np.array(NAMES))
    output = SimpleNamespace(predictions=np.array([[0, 3, 0, 1]]), label_ids=np.array([[-100, 3, 4, 1]]))
    names.tags_of = lambda prediction: task.TokenClassification.tags_of(names, prediction)
    run: Any = SimpleNamespace(details={})
    rows = {"tokens": ["Angela Merkel Paris"]}
    records = list(task.TokenClassification.records(names, run, None, rows, output, "test"))  # type: ignore
    wanted, predicted = ["B-PER", "I-PER", "B-LOC"], ["B-PER", "O", "B-LOC"]
    assert records == [{"text": rows["tokens"][0], "reference": wanted, "prediction": predicted}]
    report = classification_report([wanted], [predicted], output_dict=True, zero_division=0)
    assert {name: found["f1"] for name, found in run.details["classes"].items()} == {
        name: report[name]["f1-score"] for name in ("LOC", "PER")
    }


RUN = """--set hidden_size=16 num_hidden_layers=1 num_attention_heads=2 --tokenizer_vocab_size 300 --use_cpu
    --max_steps 8 --eval_steps 4 --max_length 32 --baseline true --learning_rate 0.01"""
WORDS = ("red", "green", "blue", "small", "large", "old", "new")


def test_scores_are_scipys_and_scikit_learns_and_baselines_by_hand() -> None:
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(2, 40)).astype(np.float32)
    scores = Numbers("x").metrics()(EvalPrediction(numbers[0][:, None], numbers[1]))
    assert scores == {
        "pearson": pytest.approx(stats.pearsonr(*numbers).statistic),
        "spearman": pytest.approx(stats.spearmanr(*numbers).statistic),
        "mse": pytest.approx(np.mean((numbers[0] - numbers[1]) ** 2), rel=1e-5),
    }
    assert Numbers("x").metrics()(EvalPrediction(np.ones((40, 1)), numbers[1]))["pearson"] == 0
    logits, wanted = rng.normal(size=(40, 5)), rng.integers(0, 2, (40, 5))
    found = Several().metrics()(EvalPrediction(logits, wanted.astype(np.float32)))
    micro, macro = (sklearn_metrics.f1_score(wanted, logits > 0, average=each) for each in ("micro", "macro"))
    assert found == {"micro_f1": micro, "macro_f1": macro, "accuracy": np.mean((wanted == (logits > 0)).all(axis=1))}
    train = Dataset.from_dict({"text": ["a", "b", "c"], "score": ["1", "2", "6"]})
    held_out = Dataset.from_dict({"label_ids": [3.0, 5.0]})
    scores = Numbers("x").baselines[0].fit(BaselineData(train, train))(held_out)
    assert scores == {"pearson": 0, "spearman": 0, "mse": 2}
    several = Several()
    train = Dataset.from_dict({"text": ["a"] * 3, "labels": ['["x"]', '["x", "y"]', '["z"]']})
    scores = several.baselines[0].fit(BaselineData(train, train))(Dataset.from_dict({"labels": ['["x"]', "[]"]}))
    assert scores == {"micro_f1": pytest.approx(2 / 3), "macro_f1": pytest.approx(2 / 9), "accuracy": 0.5}


def test_pairs_are_what_the_tokenizer_makes_of_them() -> None:
    tokenizer = train_tokenizer(["a b c d"], kind="encoder", vocab_size=300)
    pairs = [("a b c", "d"), ("a " * 40, "b"), ("c", "d " * 40), ("a " * 30, "b " * 30)]
    rows = Dataset.from_dict({"text": [PAIR.join(pair) for pair in pairs], "label_ids": [0.0] * 4})
    found = classification_rows(DatasetDict(train=rows, test=rows), tokenizer, ClassifierDataArguments(max_length=20))
    expected = tokenizer(*map(list, zip(*pairs)), truncation="longest_first", max_length=20)
    for name in expected:
        assert found["train"][name][:] == expected[name]
    assert found.stats["train"] == {"texts cut": 3}
    assert max(expected["token_type_ids"][0]) == 1


ROW = {"text": "a", "pair": "b", "topics": ["x", "y"], "score": 0.5, "label": "l"}


@pytest.mark.parametrize(("change", "columns", "message"), [
    ({"score": "half"}, {"score_column": "score"}, "row 2: the score 'half' is not a number"),
    ({"score": "nan"}, {"score_column": "score"}, "row 2: the score 'nan' is not a number"),
    ({"topics": "x"}, {"labels_column": "topics"}, "row 2: --labels_column must name lists of labels"),
    ({"topics": ["x", " "]}, {"labels_column": "topics"}, "row 2: --labels_column must name lists of labels"),
    ({"pair": " "}, {"text_pair_column": "pair"}, "row 2: the column 'pair' is empty"),
    ({"pair": 7}, {"text_pair_column": "pair"}, "row 2: the text_pair is not text"),
])  # fmt: skip
def test_rows_that_cannot_be(change: dict, columns: dict, message: str, tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", [ROW, ROW | change, ROW])
    options: dict[str, Any] = {"train_file": file, "validation_file": file}
    names = {"score_column": "regression", "labels_column": "multi_label_classification"}
    task: Any = names.get(*columns, "classification")
    refused(message, load_data, ClassifierDataArguments(**options, **columns), task)


def test_white_space_around_labels_in_lists_is_removed(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", [ROW, ROW | {"topics": [" x", "y "]}])
    options: dict[str, Any] = {"train_file": file, "validation_file": file, "labels_column": "topics"}
    data = load_data(ClassifierDataArguments(**options), "multi_label_classification")
    assert data.splits["train"]["labels"][:] == ['["x", "y"]'] * 2


@pytest.mark.parametrize(("options", "message"), [
    ("--score_column s --labels_column t", "--labels_column and --score_column"),
    ("--score_column s --r_drop 1", "--r_drop 1.* not for --score_column"),
    ("--score_column s --metric_for_best_model f1", "choose from loss, pearson, spearman, mse"),
    ("--labels_column s --streaming", "--streaming does not go with --labels_column s"),
    ("--text_pair_column s --packing true", "--packing does not go with --text_pair_column s"),
    ("--text_pair_column s --dataset embedded", "--text_pair_column s needs --train_file"),
    ("--text_pair_column pair --preset gpt-tiny", "no token to put between"),
    ("--text_pair_column pair --set type_vocab_size=1", "the model has type_vocab_size=1"),
])  # fmt: skip
def test_options_that_do_not_go_together(options: str, message: str, tmp_path: Path, capsys) -> None:
    rows = [ROW | {"text": f"a {n}", "label": "lm"[n % 2]} for n in range(40)]
    file = [] if "embedded" in options else ["--train_file", write(tmp_path / "a.jsonl", rows)]
    words = [*RUN.split(), *file, *options.split(), "--output_dir", str(tmp_path / "run")]
    refused(message, train_classifier.train, words)


def rows_of(count: int, seed: int) -> list[dict[str, Any]]:
    rng, rows = random.Random(seed), []
    for number in range(count):
        words = rng.sample(WORDS, 3)
        second = words[0] if number % 2 else rng.choice([word for word in WORDS if word not in words])
        rows.append(
            {"text": f"{' '.join(words)} {number}", "second": second, "in": "yes" if second in words else "no",
             "topics": sorted(set(words) & {"red", "old"}), "number": words.count("red") + 0.5}
        )  # fmt: skip
    return rows


RUNS = {
    "pairs": ("--text_pair_column second --label_column in", "majority class", "accuracy"),
    "several": ("--labels_column topics", "usual labels", "micro_f1"),
    "number": ("--score_column number", "mean", "pearson"),
}


@pytest.mark.parametrize("kind", RUNS)
def test_a_run(kind: str, tmp_path: Path, capsys) -> None:
    options, baseline, score = RUNS[kind]
    counts = {"train": 120, "validation": 30, "test": 30}
    rows = {name: rows_of(count, count + len(name)) for name, count in counts.items()}
    files = [f"--{name}_file={write(tmp_path / f'{name}.jsonl', part)}" for name, part in rows.items()]
    folder = tmp_path / "run"
    run = train_classifier.train([*RUN.split(), *files, *options.split(), "--output_dir", str(folder)])
    assert f"test_{score}" in run.metrics
    first, linear = run.details["baselines"]
    assert first == baseline
    starts = "Test: loss ", f"Test, {baseline}: ", f"Test, {linear}: ", run.details["diagnosis"][0], "Try it: "
    lines = capsys.readouterr().out.splitlines()
    places = [next(place for place, line in enumerate(lines) if line.startswith(start)) for start in starts]
    assert places == sorted(places)
    records = [json.loads(line) for line in (folder / "predictions_test.jsonl").read_text("utf-8").splitlines()]
    assert len(records) == 30
    if kind == "number":
        both = [[record[side] for record in records] for side in ("prediction", "reference")]
        assert run.metrics["test_pearson"] == pytest.approx(stats.pearsonr(*both).statistic, abs=1e-3)
    model, tokenizer = (auto.from_pretrained(folder) for auto in (AutoModelForSequenceClassification, AutoTokenizer))
    text, second = "red small old", ("new",) if kind == "pairs" else ()
    logits = model(**tokenizer(text, *second, return_tensors="pt")).logits[0].detach()
    capsys.readouterr()
    pair = ["--text_pair", *second] if second else []
    generate.main(["--model", str(folder), "--text", text, *pair])
    printed = capsys.readouterr().out.strip("\n")
    names = model.config.id2label
    expected = {
        "pairs": f"{names[logits.argmax().item()]}\t{logits.softmax(0).max():.4f}",
        "several": "\t".join(f"{names[n]}\t{value:.4f}" for n, value in enumerate(logits.sigmoid()) if value > 0.5),
        "number": f"{logits.item():.4f}" if kind == "number" else "",
    }
    assert printed == expected[kind]
    classify = pipeline("text-classification", str(folder), device="cpu")
    asked = {"text": text, "text_pair": second[0]} if second else text
    found = classify(asked, top_k=None, **({"function_to_apply": "none"} if kind == "number" else {}))
    wanted = {"pairs": logits.softmax(0), "several": logits.sigmoid(), "number": logits}[kind]
    assert {each["label"]: each["score"] for each in found} == {
        names[n]: pytest.approx(value.item(), abs=1e-4) for n, value in enumerate(wanted)
    }
    card = (folder / "README.md").read_text("utf-8")
    assert f"of the baseline ({baseline}) |" in card
    exec(card.split("```python\n")[1].split("```")[0], {})
    assert capsys.readouterr().out.strip()
