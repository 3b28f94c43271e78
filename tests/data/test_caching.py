"""Data is known by its content: what was tokenized once is not again, what would come out differently is."""

import multiprocessing
from functools import partial

import datasets
import numpy as np
import pyarrow as pa
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value, concatenate_datasets

from vanillaformer.data import caching
from vanillaformer.data.arguments import ClassifierDataArguments as ClassData
from vanillaformer.data.arguments import LanguageModelDataArguments as LmData
from vanillaformer.data.arguments import TranslationDataArguments as PairData
from vanillaformer.data.caching import arrow_file, cached_map, changed_splits, fingerprints, tokenizer_key
from vanillaformer.data.preprocessing.language_model import _joined_batch, block_rows
from vanillaformer.data.preprocessing.sentence_pairs import sentence_pairs
from vanillaformer.data.preprocessing.tokenizing import classification_rows, translation_rows
from vanillaformer.data.rows import select_rows
from vanillaformer.data.splits import text_keys

REVIEWS = ["the old ship", "", "café \U0001f600", "ab", "c"]


def reviews(names=("neg", "pos"), texts=REVIEWS, kind: str = "string") -> Dataset:
    features = Features({"text": Value(kind), "label": ClassLabel(names=list(names))})
    return Dataset.from_dict({"text": texts, "label": [0, 1, 0, 1, 1][: len(texts)]}, features=features)


def of(rows: Dataset) -> dict:
    return fingerprints(DatasetDict(train=rows))["train"]


def test_only_content_matters(monkeypatch):
    rows = reviews()
    same = [
        reviews(kind="large_string"),
        rows.select_columns(["label", "text"]),
        concatenate_datasets([rows.select(range(2)), rows.select(range(2, 5))]),
        rows.select([4, 3, 2, 1, 0]).select([4, 3, 2, 1, 0]),
    ]
    whole = of(rows)
    assert all(of(other) == whole for other in same)
    assert whole["rows"] == 5
    monkeypatch.setattr("vanillaformer.data.caching.batch_size", lambda rows: 2)
    assert of(reviews()) == whole


@pytest.mark.parametrize(("other", "difference"), [
    (reviews(names=("aaa", "zzz")), "label names ['neg', 'pos'] then, ['aaa', 'zzz'] now"),
    (reviews(texts=REVIEWS[:4]), "rows 5 then, 4 now"),
    (reviews(texts=[*REVIEWS[:3], "a", "bc"]), "5 rows of other content"),
    (reviews().select([1, 0, 2, 3, 4]), "5 rows of other content"),
])  # fmt: skip
def test_other_data(other: Dataset, difference: str):
    old = fingerprints(DatasetDict(train=reviews(), validation=reviews()))
    new = fingerprints(DatasetDict(train=other, validation=reviews(), test=reviews()))
    assert changed_splits(old, new) == {"train": difference, "test": "none then, 5 rows now"}


FEATURES = Features({"text": Value("string"), "label": ClassLabel(names=["a", "b", "c"])})


def rows_of(count, parts=7, name="rows"):
    rng = np.random.default_rng(count)
    texts = [f"text {number}" for number in rng.integers(count, size=count)]
    table = pa.table({"text": texts, "label": rng.integers(3, size=count)}, schema=FEATURES.arrow_schema)
    return arrow_file(name, table.schema, lambda: table.to_batches(max(1, count // parts)))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("caching", [True, False])
def test_selected_rows(seed, caching):
    rows, rng = rows_of(100, name=f"rows-{seed}"), np.random.default_rng(seed)
    numbers = np.flatnonzero(rng.random(100) < rng.random())
    if not caching:
        datasets.disable_caching()
    chosen = select_rows(rows, numbers)
    assert (list(chosen), chosen.features) == (list(rows.select(numbers)), rows.features)
    assert chosen._indices is None
    assert list(select_rows(rows, numbers[::-1])) == list(chosen)[::-1]
    if caching:  # each selection is written once
        first, again, other = (select_rows(rows, some) for some in (numbers[1:], numbers[1:], numbers[:-1]))
        assert first.cache_files == again.cache_files != other.cache_files


def test_an_interrupted_file_is_written_anew():
    def broken():
        yield pa.record_batch({"n": [1]})
        raise KeyboardInterrupt

    schema = pa.schema({"n": pa.int64()})
    with pytest.raises(KeyboardInterrupt):
        arrow_file("broken", schema, broken)
    assert arrow_file("broken", schema, lambda: [pa.record_batch({"n": [2]})])["n"][:] == [2]


@pytest.mark.parametrize("count", [1, 2, 50, 1_000])
def test_rows_have_the_same_key_where_they_have_the_same_text(count):
    rows = rows_of(count, name=f"numbered-{count}")
    texts = rows["text"][:]
    for data in (rows, Dataset.from_dict({"text": texts})):
        keys = text_keys(data, "causal").tolist()
        assert [keys.index(key) for key in keys] == [texts.index(text) for text in texts]


TEXTS = ["one. two", "three. four and more", "five"]


@pytest.fixture
def calls(monkeypatch):
    """The batches tokenized so far."""
    seen = []
    apply = caching._counted

    def counted(function, advance, batch):
        seen.append(batch)
        return apply(function, advance, batch)

    monkeypatch.setattr(caching, "_counted", counted)
    return seen


def texts(**columns):
    return DatasetDict(train=Dataset.from_dict(columns or {"text": TEXTS}))


def labeled():
    return texts(text=TEXTS, label=[0, 1, 0]).cast_column("label", ClassLabel(names=["a", "b"]))


JOBS = {
    "translation": lambda decoder, encoder: translation_rows(
        texts(source=TEXTS, target=TEXTS[::-1]), (decoder,) * 2, PairData(max_source_length=9, max_target_length=8)
    ),
    "classification": lambda decoder, encoder: classification_rows(labeled(), encoder, ClassData(max_length=6)),
    "causal": lambda decoder, encoder: block_rows(texts(), decoder, LmData(block_size=8)),
    "masked": lambda decoder, encoder: block_rows(texts(), encoder, LmData(block_size=8), "masked"),
    "mlm+nsp": lambda decoder, encoder: sentence_pairs(texts(), encoder, block_size=16, seed=0),
}


@pytest.mark.parametrize("job", JOBS)
def test_the_second_run_tokenizes_nothing(job, calls, decoder_tokenizer, encoder_tokenizer):
    first = JOBS[job](decoder_tokenizer, encoder_tokenizer)
    count = len(calls)
    assert count
    second = JOBS[job](decoder_tokenizer, encoder_tokenizer)  # after calls that cut texts
    assert len(calls) == count
    assert (list(second["train"]), second["train"].features) == (list(first["train"]), first["train"].features)


@pytest.mark.parametrize("change", ["text", "length", "tokenizer", "special token"])
def test_what_changes_the_rows_is_noticed(change, calls, encoder_tokenizer):
    classification_rows(labeled(), encoder_tokenizer, ClassData(max_length=6))
    count, dataset, length = len(calls), labeled(), 6
    if change == "text":
        dataset["train"] = dataset["train"].map(lambda row: {"text": row["text"] + "!"})
    elif change == "length":
        length = 7
    elif change == "tokenizer":
        encoder_tokenizer.add_tokens(["three"])
    else:
        encoder_tokenizer.unk_token = "[MASK]"
    rows = classification_rows(dataset, encoder_tokenizer, ClassData(max_length=length))
    assert len(calls) > count
    wanted = encoder_tokenizer(list(dataset["train"]["text"]), truncation=True, max_length=length)["input_ids"]
    assert list(rows["train"]["input_ids"]) == wanted


def test_rows_of_a_selection_are_its_own(calls, decoder_tokenizer):
    rows = Dataset.from_dict({"text": [f"text {n}" for n in range(10)]})
    function = partial(_joined_batch, tokenizer=decoder_tokenizer, start=[2], end=[3])
    chosen = [
        cached_map(rows.select(some), function, remove_columns=["text"], desc="test")
        for some in ([1, 5], [5, 1], [1, 5])
    ]
    assert len(calls) == 2
    assert list(chosen[0]) == list(chosen[1])[::-1] == list(chosen[2])


def test_several_workers_make_the_same_rows_and_keep_them(calls, decoder_tokenizer):
    many = texts(text=[f"text number {n}" for n in range(100)])
    alone = block_rows(many, decoder_tokenizer, LmData(block_size=16))
    assert calls
    datasets.config.HF_DATASETS_CACHE = datasets.config.HF_DATASETS_CACHE.with_name("other")
    together = block_rows(many, decoder_tokenizer, LmData(block_size=16, preprocessing_num_workers=2))
    assert list(together["train"]) == list(alone["train"])
    count = len(calls)
    for workers in (2, None):
        rows = block_rows(many, decoder_tokenizer, LmData(block_size=16, preprocessing_num_workers=workers))["train"]
        assert list(rows) == list(alone["train"])
    assert len(calls) == count


def test_key_of_a_tokenizer(decoder_tokenizer, encoder_tokenizer, tmp_path):
    key = tokenizer_key(decoder_tokenizer)
    decoder_tokenizer(["a", "bcd"], padding=True, truncation=True, max_length=2)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert tokenizer_key(decoder_tokenizer) == key == pool.apply(tokenizer_key, (decoder_tokenizer,))
    assert tokenizer_key(encoder_tokenizer) != key


def test_kept_with_what_datasets_keeps_and_not_where_caching_is_off(calls, decoder_tokenizer, tmp_path):
    folder = tmp_path / "cache" / "vanillaformer"
    datasets.disable_caching()
    for _ in range(2):
        block_rows(texts(), decoder_tokenizer, LmData(block_size=8))
    assert len(calls) == 2
    assert not folder.exists()
    datasets.enable_caching()
    block_rows(texts(), decoder_tokenizer, LmData(block_size=8))
    assert [path.suffix for path in folder.iterdir()] == [".arrow", ".arrow"]  # tokens and blocks


def lengths(batch):
    return {"length": [len(text) for text in batch["text"]]}


def test_long_texts_are_mapped_a_few_at_a_time(calls):
    """What a tokenizer makes of a batch takes many times the memory of its text."""
    found = cached_map(Dataset.from_dict({"text": ["a" * 400_000] * 5}), lengths, desc="")
    assert [len(batch["text"]) for batch in calls] == [2, 2, 1]
    assert found["length"][:] == [400_000] * 5
    calls.clear()
    cached_map(Dataset.from_dict({"text": ["a"] * 1_500}), lengths, desc="")
    assert [len(batch["text"]) for batch in calls] == [1_000, 500]
