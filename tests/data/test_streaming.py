"""Streams give the rows that loading gives, in parts that are disjoint and complete, again and again."""

from collections import Counter
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from refusals import refused

from vanillaformer.console.limits import BUDGETS
from vanillaformer.data import arguments, files, formats, loading
from vanillaformer.data.arguments import ClassifierDataArguments, LanguageModelDataArguments
from vanillaformer.data.arguments import LanguageModelDataArguments as LmData
from vanillaformer.data.arguments import TranslationDataArguments as PairData
from vanillaformer.data.loading import load_data
from vanillaformer.data.preprocessing.language_model import block_cutter, block_rows
from vanillaformer.data.preprocessing.tokenizing import encode_pairs, encode_texts, translation_rows
from vanillaformer.data.rows import label_names
from vanillaformer.data.splits import text_keys
from vanillaformer.data.streaming import PLACES, Lane, Place, StreamedRows, check_streaming, with_places

from .test_loading import hub, load, write

TEXTS = [f"text {n} {'and more ' * (n % 4)}" for n in range(40)]


def open_stream(task, seed=0, **options):
    options = {"streaming_buffer": 0, **options}
    data = load_data(arguments.DATA_ARGUMENTS[task](streaming=True, **options), task, seed)
    return data.splits, data.stream


def stream_rows(stream, epoch=0):
    """Return the usable rows of an epoch in the task's columns."""
    columns = list(arguments.COLUMNS[stream.task])
    return [row for _, batch in stream.batches(Place(epoch)) for row in batch.rows.select_columns(columns)]


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(files, "MAX_BATCH_ROWS", 7)


def epoch_rows(streamed, epoch):
    return Lane(streamed, 0, 1, {"row": 0, "place": Place(epoch), "held": ()}).to_end_of_epoch()


def labeled(tmp_path, name="a.jsonl", labels=("b", "a"), count=40):
    rows = [{"text": text, "label": labels[n % len(labels)]} for n, text in enumerate(TEXTS[:count])]
    return write(tmp_path / name, rows)


@pytest.mark.usefixtures("small_chunks")
def test_pairs(tmp_path, translator_tokenizer, decoder_tokenizer):
    path = write(tmp_path / "a.csv", [{"en": text, "de": text[::-1], "n": n} for n, text in enumerate(TEXTS)])
    options = {"train_file": path, "validation_file": path, "source_column": "en", "target_column": "de"}
    dataset, pair = load("translation", **options), (translator_tokenizer, decoder_tokenizer)
    lengths = PairData(max_source_length=20, max_target_length=9)
    loaded = translation_rows(dataset, pair, lengths)
    texts, stream = open_stream("translation", **options)
    assert all(list(texts[split]) == list(dataset[split]) for split in ("train", "validation"))
    assert list(epoch_rows(StreamedRows(stream, encode_pairs(pair, lengths)), 0)) == list(loaded["train"])


@pytest.mark.parametrize(
    ("block_size", "stride"), [(3, None), (16, None), (100_000, None), (3, 1), (16, 5), (16, 14), (100_000, 7)]
)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.usefixtures("small_chunks")
def test_blocks(tmp_path, masked, block_size, stride, decoder_tokenizer, encoder_tokenizer):
    path = write(tmp_path / "a.txt", [*TEXTS[:9], "", "  ", *TEXTS[9:]])
    options = {"train_file": path, "validation_file": path}
    tokenizer = encoder_tokenizer if masked else decoder_tokenizer
    cut = tokenizer, LmData(block_size=block_size, block_stride=stride), "masked" if masked else "causal"
    loaded = block_rows(load("causal", **options), *cut)
    texts, stream = open_stream("causal", **options)
    assert list(texts["validation"]["text"]) == TEXTS
    streamed = StreamedRows(stream, *block_cutter(*cut))
    assert list(epoch_rows(streamed, 0)) == list(loaded["train"])
    epochs = [row for epoch in range(3) for row in epoch_rows(streamed, epoch)]
    assert without_places(islice(streamed, len(epochs))) == epochs


def test_parallel_text_files(tmp_path):
    english, german = (write(tmp_path / f"{name}.txt", [f"{name} {n}" for n in range(5)]) for name in ("en", "de"))
    files = {"train_file": english, "train_target_file": german}
    _, stream = open_stream("translation", **files, validation_file=english, validation_target_file=german)
    wanted = [{"source": f"en {n}", "target": f"de {n}"} for n in range(5)]
    stream.buffer = 3  # shuffled they stay pairs
    for epoch in range(4):
        assert sorted(stream_rows(stream, epoch), key=str) == wanted
    write(tmp_path / "de.txt", ["de"])
    refused("en.txt has 5 lines and .*de.txt has 1: they must be parallel", stream_rows, stream)


def test_columns_inside_a_struct(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"translation": {"en": f"e{n}", "de": f"d{n}"}} for n in range(4)])
    named = {"source_column": "translation.en", "target_column": "translation.de"}
    _, stream = open_stream("translation", train_file=path, validation_file=path, **named)
    assert stream_rows(stream)[0] == {"source": "e0", "target": "d0"}
    (tmp_path / "b.jsonl").write_text('{"translation": {"en": "one", "de": "eins"}}\n{\n')
    damaged = {"train_file": str(tmp_path / "b.jsonl"), "validation_file": path, "bad_rows": "skip"}
    assert list(load("translation", **damaged, **named)["train"]) == [{"source": "one", "target": "eins"}]
    named["target_column"] = "translation.fr"
    message = r"has no column 'translation.fr' \(--target_column\); .*: trans"
    refused(message, open_stream, "translation", train_file=path, **named)


def test_hub_data(monkeypatch):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["bad", "good"])})
    rows = Dataset.from_dict({"text": TEXTS[:6], "label": [1, 1, 1, 1, 1, 0]}, features=features)
    options = hub(monkeypatch, {"train": rows, "dev": rows.select([1]), "test": rows.select([2, 3])}, streams=True)
    texts, stream = open_stream("classification", **options, tokenizer_samples=2, max_test_samples=1)
    assert {split: len(part) for split, part in texts.items()} == {"train": 2, "validation": 1, "test": 1}
    assert label_names(texts) == stream.names == ["bad", "good"]
    assert [row["label"] for row in stream_rows(stream)] == [1, 1, 1, 1, 1, 0]


def test_first_rows_are_held_out(tmp_path, capsys):
    rows = ["", *TEXTS[:4], TEXTS[2], *TEXTS[4:20]]
    path = write(tmp_path / "a.txt", rows)
    texts, stream = open_stream("causal", train_file=path, max_validation_samples=3)
    assert list(texts["validation"]["text"]) == TEXTS[:3]
    assert [row["text"] for row in stream_rows(stream)] == TEXTS[3:20]  # the third once more would leak
    assert "a.txt: the first 3 rows are held out for validation." in capsys.readouterr().out
    _, stream = open_stream("causal", train_file=path, max_validation_samples=3, max_train_samples=10)
    assert [row["text"] for row in stream_rows(stream)] == TEXTS[3:13]
    assert "a.txt: 1 of 11 rows occur in the other splits and are left out." in capsys.readouterr().out
    message = "a.txt: --streaming finds no rows for train in addition to the 21 held"
    for cap in (None, 5):
        refused(message, open_stream, "causal", train_file=path, max_train_samples=cap)


def test_leaks_among_the_first_rows_are_reported(tmp_path, capsys):
    rows = [{"text": text, "label": n % 2} for n, text in enumerate(TEXTS)]
    test = [{"text": f"{TEXTS[n].upper()}.", "label": 0} for n in (2, 30, 31)]
    test, train = write(tmp_path / "test.jsonl", [*test, test[1]]), write(tmp_path / "a.jsonl", rows)
    validation = write(tmp_path / "val.jsonl", [{"text": "Text 30 and more and more!", "label": 1}, rows[3], rows[4]])
    options = {"train_file": train, "validation_file": validation, "test_file": test, "tokenizer_samples": 10}
    data = load_data(ClassifierDataArguments(streaming=True, streaming_buffer=0, **options), "classification")
    assert data.stats["validation"] == {"also in train": 2}
    assert data.stats["test"] == {"also in train": 1, "also in validation": 2}
    out = capsys.readouterr().out
    assert "test data: the text of 1 of 4 rows also occurs in the training data (--drop_leaked_rows leaves them" in out
    assert "test data: the text of 2 of 4 rows also occurs in the validation data" in out
    options |= {"drop_leaked_rows": True, "streaming_buffer": 0}
    data = load_data(ClassifierDataArguments(streaming=True, **options), "classification")
    expected = [text for n, text in enumerate(TEXTS) if n not in (2, 3, 4, 30, 31)]
    assert [row["text"] for row in stream_rows(data.stream)] == expected
    assert len(data.splits["validation"]) == 2  # one is in the test
    assert data.stats["test"] == {}  # which has nothing that is trained on


def test_order_depends_on_seed_and_epoch(tmp_path):
    path = write(tmp_path / "a.txt", TEXTS)
    options = {"train_file": path, "validation_file": path, "streaming_buffer": 16}

    def order(seed, epoch):
        _, stream = open_stream("causal", seed=seed, **options)
        return [row["text"] for row in stream_rows(stream, epoch)]

    orders = [order(seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert all(sorted(each) == sorted(TEXTS) for each in orders)
    assert len(set(map(tuple, orders))) == 4
    assert order(1, 1) == orders[-1]


LAYOUTS = {  # sizes of the files, their form and the shuffle buffer
    "lines": ([400], "jsonl", 32), "texts": ([90, 400, 7], "txt", 500), "blocks": ([300, 100], "txt", 32),
    "row groups": ([200, 64], "parquet", 48), "whole files": ([50, 60, 70, 55, 65], "csv", 24),
    "one large file": ([300, 20, 10], "csv", 24), "in order": ([80, 80], "jsonl", 0), "Hub": ([256], "hub", 64),
}  # fmt: skip


def laid_out(layout, folder, monkeypatch):
    """Return a stream in small parts, and the numbers of its rows."""
    monkeypatch.setattr(files, "PART_BYTES", 700)
    monkeypatch.setattr(files, "MAX_BATCH_ROWS", 7)
    sizes, form, buffer = LAYOUTS[layout]
    rows, paths = [{"text": f"row {n} {'and more ' * (n % 5)}"} for n in range(sum(sizes))], []
    for number, size in enumerate(sizes):
        path, start = folder / f"{number}.{form}", sum(sizes[:number])
        part = rows[start : start + size]
        if form == "parquet":
            pq.write_table(pa.Table.from_pylist(part), path, row_group_size=20)
        elif form != "hub":
            write(path, [row["text"] for row in part] if form == "txt" else part)
        paths.append(str(path))
    validation = {"validation_file": write(folder / "validation.txt", ["other"])}
    if form == "hub":
        data = DatasetDict(train=Dataset.from_list(rows), validation=Dataset.from_dict({"text": ["other"]}))
        streams = {name: split.to_iterable_dataset(8 if len(split) > 8 else 1) for name, split in data.items()}
        monkeypatch.setattr(loading, "load_dataset", lambda *_, **__: streams)
        options = {"dataset": "some/data"}
    else:
        options = {"train_file": paths, **validation}
    return open_stream("causal", streaming_buffer=buffer, **options)[1]


def streamed_rows(layout, stream, tokenizer):
    if layout == "blocks":
        return StreamedRows(stream, *block_cutter(tokenizer, LmData(block_size=16, block_stride=11), "causal"))
    return StreamedRows(stream, lambda columns: {"text": columns["text"]})


def without_places(rows):
    return [{name: row[name] for name in row if name != PLACES} for row in rows]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_processes_read_the_same_and_resume_at_once(layout, tmp_path, monkeypatch, decoder_tokenizer):
    """Of a stream that is stopped at random rows again and again, by other numbers of processes each time."""
    stream, draw = laid_out(layout, tmp_path, monkeypatch), np.random.default_rng(5)
    assert stream.lanes == {"one large file": 1, "in order": 1, "whole files": 4, "Hub": 8}.get(layout, stream.lanes)
    assert stream.lanes > 1 or layout in ("one large file", "in order")
    count = 3 * sum(LAYOUTS[layout][0])
    whole = without_places(islice(streamed_rows(layout, stream, decoder_tokenizer), count))
    if layout != "blocks":
        read = [row["text"] for row in whole]
        each = Counter(read)
        assert set(each.values()) <= {2, 3, 4}, "no row is behind or ahead by more than what is begun of an epoch"
        assert len(each) == sum(LAYOUTS[layout][0])
    at, found, folder = 0, [], None
    while at < count - 11 * 12:
        processes = int(draw.choice([1, 2, 3, 4]))
        steps, size = int(draw.integers(1, 12)), 12 // processes  # the rows of a step stay 12
        parts, following = [], tmp_path / f"checkpoint-{at}"
        following.mkdir()
        for process in range(processes):
            rows = streamed_rows(layout, stream, decoder_tokenizer)
            rows.processes, rows.process = processes, process
            if folder is not None:
                rows.resume(folder, at)
            iterator, part = iter(rows), []
            for _ in range(steps):
                batch = with_places(list(islice(iterator, size)), lambda rows: {"rows": rows})
                rows.train_on(batch[PLACES], size * processes)
                part += batch["rows"]
            list(islice(iterator, 5))  # read ahead and lost
            rows.save(following)
            parts.append(part)
        found += [row for turn in zip(*parts, strict=True) for row in turn]  # as one process has them
        at, folder = at + steps * 12, following
    assert found == whole[: len(found)]


def test_a_process_reads_its_part_and_a_resumed_one_begins_where_it_was(tmp_path, monkeypatch):
    path, part = tmp_path / "rows.jsonl", 1 << 14
    path.write_text("".join(f'{{"text": "row {n:06} {"x" * 80}"}}\n' for n in range(40_000)))
    monkeypatch.setattr(files, "PART_BYTES", part)
    opened, open_part = [], formats.open_part
    noted = lambda path, span: opened.append(span[1] - span[0]) or open_part(path, span)  # noqa: E731
    monkeypatch.setattr(formats, "open_part", noted)
    options = {"train_file": str(path), "validation_file": str(path), "streaming_buffer": 1_000}
    stream = open_stream("causal", **options, max_validation_samples=5, tokenizer_samples=5)[1]
    assert stream.lanes == 16
    for process in range(4):
        rows = streamed_rows("", stream, None)
        rows.processes, rows.process, opened[:] = 4, process, []
        iterator = iter(rows)
        for _ in range(500):  # four fifths of an epoch
            batch = with_places(list(islice(iterator, 16)), lambda rows: {"rows": rows})
            rows.train_on(batch[PLACES], 64)
        assert sum(opened) <= 0.8 * path.stat().st_size / 4 + 4 * 3 * part  # 250 rows of each lane are read ahead
        rows.save(tmp_path)
    wanted = without_places(islice(streamed_rows("", stream, None), 32_000, 32_100))
    resumed = streamed_rows("", stream, None)
    resumed.resume(tmp_path, 32_000)
    opened[:] = []
    assert without_places(islice(resumed, 100)) == wanted
    assert sum(opened) <= 16 * 4 * part


def test_rows_in_one_of_many_parts_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PART_BYTES", 100)
    path = tmp_path / "a.txt"
    path.write_text("\n" * 1_600 + "a line\n")
    options = {"train_file": str(path), "validation_file": write(tmp_path / "b.txt", ["other"])}
    for seed in range(8):
        stream = open_stream("causal", seed=seed, **options, streaming_buffer=32)[1]
        assert stream.lanes > 1
        found = list(islice(streamed_rows("", stream, None), 10))
        assert {row["text"] for row in found} == {"a line"}


def test_files_of_other_classes_are_refused(tmp_path):
    paths = [str(tmp_path / f"{number}.parquet") for number in range(2)]
    for path, names in zip(paths, (["a", "b"], ["b", "a"])):
        features = Features({"text": Value("string"), "label": ClassLabel(names=names)})
        Dataset.from_dict({"text": ["one", "two"], "label": [0, 1]}, features=features).to_parquet(path)
    message = "0.parquet and 1 more file do not have the same types of columns"
    refused(message, open_stream, "classification", train_file=paths, validation_file=paths[:1])


def test_a_run_does_not_resume_on_other_files(tmp_path, monkeypatch):
    streamed_rows("", laid_out("lines", tmp_path, monkeypatch), None).save(tmp_path)
    with (tmp_path / "0.jsonl").open("a") as file:
        file.write('{"text": "one more"}\n')
    options = {"train_file": str(tmp_path / "0.jsonl"), "validation_file": str(tmp_path / "validation.txt")}
    other = streamed_rows("", open_stream("causal", streaming_buffer=32, **options)[1], None)
    refused("0.jsonl: these are not the files that the run has read up to", other.resume, tmp_path, 0)


def test_a_bad_row_of_a_part_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PART_BYTES", 700)
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"text": "row {n:03}"}}\n' if n != 77 else "{\n" for n in range(100)))
    options = {"train_file": str(path), "validation_file": write(tmp_path / "b.txt", ["other"])}
    stream = open_stream("causal", **options, tokenizer_samples=5)[1]
    refused("a.jsonl, row 8 of .*a.jsonl from byte 1,400: line 8 is not JSON", stream_rows, stream)


def test_label_that_comes_late(tmp_path, encoder_tokenizer):
    path = write(tmp_path / "a.jsonl", [{"text": f"t{n}", "label": label} for n, label in enumerate("abac")])
    options = {"train_file": path, "validation_file": labeled(tmp_path, "b.jsonl", count=4), "tokenizer_samples": 3}
    _, stream = open_stream("classification", **options)
    refused("row 4: label 'c' does not occur in the training data, which has a, b", stream_rows, stream)
    _, stream = open_stream("classification", **options, bad_rows="skip")
    rows = list(epoch_rows(StreamedRows(stream, encode_texts(encoder_tokenizer, 9)), 0))
    assert [row["labels"] for row in rows] == [0, 1, 0]


def test_long_texts(tmp_path, encoder_tokenizer):
    options = {"train_file": labeled(tmp_path), "validation_file": labeled(tmp_path, "b.jsonl", count=4)}
    _, stream = open_stream("classification", **options)
    encode = encode_texts(encoder_tokenizer, 12)
    kept = list(epoch_rows(StreamedRows(stream, encode, long_texts="skip"), 0))
    assert len(kept) == 10 == sum(len(text) <= 10 for text in TEXTS)
    rows = epoch_rows(StreamedRows(stream, encode, long_texts="error"), 0)
    refused("a.jsonl, row 2: the text has too many tokens", list, rows)


def test_no_rows(tmp_path, decoder_tokenizer):
    path = write(tmp_path / "a.txt", TEXTS[:2])
    texts, stream = open_stream("causal", train_file=path, validation_file=path)
    stream.left_out = text_keys(texts["validation"], "causal")
    with pytest.raises(ValueError, match="--streaming finds no rows to train on"):
        next(iter(StreamedRows(stream, *block_cutter(decoder_tokenizer, LmData(block_size=16), "causal"))))


NEED_ALL_DATA = {
    "packing": True, "split_column": "split", "test_fraction": 0.1, "hold_out": "end", "validation_fraction": 0.5,
    "split_seed": 1,
}  # fmt: skip


@pytest.mark.parametrize(("options", "changes", "message"), [
    ({}, {"max_steps": -1}, r"--streaming needs --max_steps or a budget \(--max_time"),
    ({}, {"tokens_per_batch": 100}, "--tokens_per_batch 100"),
    ({}, {"dataloader_num_workers": 2}, "--dataloader_num_workers 2"),
    *(({name: value}, {}, f"--{name} {value} needs all data at once") for name, value in NEED_ALL_DATA.items()),
])  # fmt: skip
def test_what_streams_cannot_do(options, changes, message):
    training = {"max_steps": 5, **dict.fromkeys(BUDGETS), "tokens_per_batch": None}
    training |= {"dataloader_num_workers": 0, "train_sampling_strategy": "random", **changes}
    data = LanguageModelDataArguments(streaming=True, **options)
    refused(message, check_streaming, data, SimpleNamespace(**training))
