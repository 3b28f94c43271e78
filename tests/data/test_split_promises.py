"""What the page on training promises of splits, for every row of random tables."""

import tempfile
from collections import Counter
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from vanillaformer.data import formats
from vanillaformer.data.arguments import LanguageModelDataArguments
from vanillaformer.data.files import load_files
from vanillaformer.data.formats import ReadOptions
from vanillaformer.data.loading import load_data

from .test_loading import load, write

FORMATS = ("%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y%m%d")
LATE = date(2018, 12, 28)
"""A day that can be no month, so that formats are told apart."""
NUMBERS = st.integers(-5, 5) | st.integers(2**60, 2**60 + 5) | st.decimals(-3, 3, places=1)
DAYS = st.integers(0, 400).map(lambda days: LATE + timedelta(days))
fractions = st.sampled_from([0.05, 0.1, 0.25, 0.4])
quick = settings(max_examples=10, deadline=None, derandomize=True, phases=[Phase.generate])


def split_files(task, rows, files=1, **options):
    """Return the splits of rows that lie in files, one part after the other."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number in range(files):
            part = rows[number * len(rows) // files : (number + 1) * len(rows) // files]
            paths.append(write(Path(folder, f"{number}.jsonl"), part))
        return {split: part[:] for split, part in load(task, train_file=paths, **options).items()}


@st.composite
def ordered(draw):
    """Values, and how each is written."""
    if draw(st.booleans()):
        values = draw(st.lists(NUMBERS, min_size=6, max_size=40, unique=True))
        written = [str(value) for value in values]
    else:
        form = draw(st.sampled_from(FORMATS))
        values = [LATE, *draw(st.lists(DAYS, min_size=6, max_size=40))]
        written = [value.strftime(form) for value in values]
    repeated = draw(st.lists(st.integers(0, len(values) - 1), max_size=40))
    return [(values[number], written[number]) for number in draw(st.permutations([*range(len(values)), *repeated]))]


@quick
@given(ordered(), fractions, st.booleans(), st.integers(1, 3))
def test_ordered_rows(cells, fraction, test, files):
    rows = [{"text": f"row {n}", "label": n % 2, "when": word} for n, (_, word) in enumerate(cells)]
    options = {"hold_out": "end", "order_column": "when", "validation_fraction": fraction}
    options["test_fraction"] = 0.2 if test else 0.0
    groups = Counter(value for value, _ in cells)
    kept = 1 - options["test_fraction"]
    targets = [int(len(rows) * part) for part in (kept - fraction, kept)]
    if len(groups) < 2 + test or len({0, *targets, len(rows)}) < 3 + test:
        return  # which is an error
    splits = split_files("classification", rows, files, **options)
    numbers = {split: [int(text.split()[1]) for text in part["text"]] for split, part in splits.items()}
    assert sorted(number for part in numbers.values() for number in part) == list(range(len(rows)))
    values = [[cells[number][0] for number in numbers[split]] for split in numbers]
    for before, after in pairwise(values):
        assert max(before) < min(after)
    assert all(part == sorted(part) for part in values)
    most = max(groups.values())
    if not test:
        assert abs(len(numbers["validation"]) - fraction * len(rows)) <= most + 1
    else:
        assert abs(len(numbers["test"]) - 0.2 * len(rows)) <= 2 * most + 1
    assert split_files("classification", rows, files, **options) == splits


VARIANTS = (
    str, str.upper, str.title, "{}.".format, "  {} !".format, '"{}"'.format, lambda text: text.replace(" ", ", "),
)  # fmt: skip
HINDI, RICE, TO_DRINK = "\u0939\u093f\u0928\u094d\u0926\u0940", "\u0e02\u0e49\u0e32\u0e27", "\u0e02\u0e32\u0e27"
BASES = (
    *(f"the {word} house of number {n} {HINDI}" for n, word in enumerate("abcdefghijklmnopqrst")),
    *(HINDI, HINDI[0] + HINDI[2:], RICE, TO_DRINK),
    *("\U0001f600", "\U0001f600 \U0001f622", "...", "?!", "3 - 5", "3 * 5", "-5 %", "5 %", "[a [b]]", "[a] [b]"),
)
"""Texts that are not alike."""


def varied(base, number):
    return VARIANTS[number % len(VARIANTS)](base) if any(map(str.isalpha, base)) and "[" not in base else base


@quick
@given(
    st.lists(st.tuples(st.integers(0, len(BASES) - 1), st.integers(0, 6), st.integers(0, 2)), min_size=40,
             max_size=90),
    st.sampled_from(["classification", "translation"]), fractions, st.integers(0, 3), st.integers(1, 3),
)  # fmt: skip
def test_texts_that_are_alike_stay_together(drawn, task, fraction, seed, files):
    drawn = [*((base, 0, base % 3) for base in range(12)), *drawn]
    column, other = ("text", "label") if task == "classification" else ("source", "target")
    rows = [
        {column: varied(BASES[base], variant), other: f"{label} {n}" if other == "target" else label}
        for n, (base, variant, label) in enumerate(drawn)
    ]
    options = {"validation_fraction": fraction, "test_fraction": 0.2, "split_seed": seed}
    splits = split_files(task, rows, files, **options)
    bases = {row[column]: base for row, (base, *_) in zip(rows, drawn)}
    sides = {split: {bases[text] for text in part[column]} for split, part in splits.items()}
    assert sum(map(len, sides.values())) == len({base for base, *_ in drawn})
    assert sorted(text for part in splits.values() for text in part[column]) == sorted(row[column] for row in rows)
    if task == "translation":
        total = len({base for base, *_ in drawn})
        assert (len(sides["test"]), len(sides["validation"])) == (round(0.2 * total), max(1, round(fraction * total)))
    else:
        assert set(splits["train"]["label"]) == {0, 1, 2}
    assert split_files(task, rows, files, **options) == splits
    assert split_files(task, rows, files, **options | {"validation_fraction": 0.3})["test"] == splits["test"]


@quick
@given(st.lists(st.integers(200, 5_000), min_size=1, max_size=30), fractions, st.booleans(), st.booleans())
def test_shares_of_the_characters_of_documents(sizes, fraction, test, at_end):
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{n}.txt") for n in range(len(sizes))]
        for n, (path, size) in enumerate(zip(paths, sizes)):
            path.write_text((f"{n:03}|" * size)[:size])
        options = {"validation_fraction": fraction, "test_fraction": 0.3 if test else 0.0}
        splits = load(
            "causal", train_file=list(map(str, paths)), sample_by="document", hold_out="end" if at_end else "random",
            **options,
        )  # fmt: skip
    lengths = {split: sum(map(len, part["text"])) for split, part in splits.items()}
    assert sum(lengths.values()) == sum(sizes)
    for split, share in (("validation", fraction), ("test", options["test_fraction"])):
        assert abs(lengths.get(split, 0) - share * sum(sizes)) <= 0.2 * share * sum(sizes) + len(sizes)


POEM = "Two roads diverged\nin a yellow wood,\n\nAnd sorry I could not\n"


def texts(path: Path, sample_by: str) -> list[str]:
    return list(load_files([(path,)], {"text_column": "text"}, ReadOptions(sample_by=sample_by))["text"])


@pytest.mark.parametrize(("objective", "options", "expected"), [
    ("causal", {}, "document"), ("causal", {"streaming": True}, "passage"), ("causal", {"packing": True}, "line"),
    ("masked", {}, "line"), ("mlm+nsp", {}, "line"), ("causal", {"sample_by": "line"}, "line"),
    ("masked", {"sample_by": "document"}, "document"), ("causal", {"train_file": "a.jsonl"}, "line"),
    ("causal", {"train_file": "part-*.txt.gz"}, "document"),
])  # fmt: skip
def test_the_default_depends_on_the_objective(objective, options, expected, capsys) -> None:
    arguments = LanguageModelDataArguments(**{"train_file": "a.txt", **options})
    arguments.choose_sampling(objective)
    assert (arguments.sample_by, arguments.read_options().sample_by) == (expected, expected)
    chosen = "sample_by" not in options and expected != "line"
    assert capsys.readouterr().out.count("--sample_by line makes each line one.\n") == chosen


def test_a_stream_of_passages_sees_the_line_breaks_of_a_file(tmp_path: Path) -> None:
    text = "".join(f"line {number}\n\n" for number in range(1000))
    (tmp_path / "a.txt").write_text(text)
    file = str(tmp_path / "a.txt")
    arguments = LanguageModelDataArguments(train_file=file, streaming=True, max_validation_samples=2)
    arguments.choose_sampling("causal")
    data = load_data(arguments, "causal").splits
    assert "".join([*data["validation"]["text"], *data["train"]["text"]]) == text
    assert len(data["validation"]) == 2
    assert [len(text) for text in data["validation"]["text"]] == pytest.approx([formats.PASSAGE] * 2, abs=30)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_passages_are_whole_lines_and_lose_nothing(end: str, tmp_path: Path, monkeypatch) -> None:
    lines = [f"line {number} of the text" for number in range(300)]
    (tmp_path / "a.txt").write_bytes(end.join(lines).encode())
    found = texts(tmp_path / "a.txt", "passage")
    assert "".join(found) == "\n".join(lines)
    assert len(found) == 4
    assert all(text.endswith("\n") for text in found[:-1])
    (tmp_path / "a.txt").write_text("x" * 5000)  # without line breaks, a text is cut anywhere
    assert [len(text) for text in texts(tmp_path / "a.txt", "passage")] == [2048, 2048, 904]


def test_a_document_too_large_for_memory_has_parts(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(formats, "PART", 100)
    monkeypatch.setattr(formats, "MAX_DOCUMENT", 400)
    (tmp_path / "a.txt").write_text(POEM * 6)
    assert texts(tmp_path / "a.txt", "document") == [POEM * 6]
    (tmp_path / "a.txt").write_text(POEM * 60)
    found = texts(tmp_path / "a.txt", "document")
    assert "".join(found) == POEM * 60
    assert len(found) > 20
