"""What one text of a .txt file is, by option and by default."""

from pathlib import Path

import pytest

from vanillaformer.data import formats
from vanillaformer.data.arguments import LanguageModelDataArguments
from vanillaformer.data.files import load_files
from vanillaformer.data.formats import ReadOptions
from vanillaformer.data.loading import load_data

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


def test_a_language_model_sees_the_line_breaks_of_a_file(tmp_path: Path, capsys) -> None:
    (tmp_path / "a.txt").write_text(POEM * 10)
    arguments = LanguageModelDataArguments(train_file=str(tmp_path / "a.txt"), validation_fraction=0.1)
    arguments.choose_sampling("causal")
    data = load_data(arguments, "causal").splits
    assert {split: len(rows) for split, rows in data.items()} == {"train": 1, "validation": 1}
    assert data["train"]["text"][0] + data["validation"]["text"][0] == POEM * 10
    assert "its last characters are held out (validation)" in capsys.readouterr().out


def test_a_stream_sees_them_too(tmp_path: Path) -> None:
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
