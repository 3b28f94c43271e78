import datetime
import os
import re
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from babel import Locale
from refusals import refused

from vanillaformer.data import cldr
from vanillaformer.data.cldr import KINDS, cldr_translation
from vanillaformer.data.embedded import LANGUAGES, language_names, standard_library

EN, DE = Locale.parse("en"), Locale.parse("de")
SMALL_LIBRARY = partial(standard_library, max_characters=100_000)


@pytest.fixture(scope="module")
def corpus():
    return cldr_translation(size=6_000)


@pytest.fixture(scope="module")
def rows(corpus):
    return [row for split in corpus.values() for row in split]


def of_kind(rows, kind):
    found = [(row["source"], row["target"]) for row in rows if row["kind"] == kind]
    assert len(found) > 100
    return found


def test_sizes_columns_and_kinds_of_disjoint_splits(corpus, rows):
    assert {name: len(part) for name, part in corpus.items()} == {"train": 5_600, "validation": 200, "test": 200}
    for part in corpus.values():
        assert (part.column_names, set(part["kind"])) == (["source", "target", "kind"], set(KINDS))
    assert len({row["source"] for row in rows}) == len(rows) == 6_000  # a function of the source
    assert {c for row in rows for c in row["source"] + row["target"] if c.isspace()} == {" "}


@pytest.mark.parametrize("make", [partial(cldr_translation, size=200), language_names, SMALL_LIBRARY])
def test_another_seed_makes_another_corpus(make):
    first, other = (make(seed=seed)["test"].to_list() for seed in (0, 1))
    assert first != other


MAKE = """if True:
    from typing import get_args
    from vanillaformer.data.embedded import cldr_translation, language_names, standard_library
    from vanillaformer.tokenization import TokenizerAlgorithm, train
    pairs = cldr_translation(size=200)
    for data in (pairs, language_names(), standard_library(max_characters=100_000)):
        print(data["test"].to_list(), data["train"][-1])
    for name in get_args(TokenizerAlgorithm):
        made = train(pairs["train"]["target"], algorithm=name, vocab_size=400)
        print(name, made.backend_tokenizer.to_str())
"""


def test_another_process_makes_the_same_corpora_and_tokenizers(capsys):
    other = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", MAKE], env=other, capture_output=True, text=True, check=True)
    exec(MAKE, {})
    assert done.stdout == capsys.readouterr().out
    assert done.stdout.count("\n") == 10


def written(kind, *value):
    """All pairs that the formats of a kind make of one value."""
    sides = [[write(*value, locale=locale) for write in KINDS[kind](EN, DE).formats] for locale in (EN, DE)]
    return set(zip(*([re.sub(r"\s", " ", text) for text in side] for side in sides)))


def test_known_dates_times_and_amounts():
    moment = datetime.datetime(1991, 6, 6, 21, 5, 7, tzinfo=datetime.UTC)
    assert {
        ("Thursday, June 6, 1991", "Donnerstag, 6. Juni 1991"),
        ("June 6, 1991", "6. Juni 1991"), ("Jun 6, 1991", "06.06.1991"), ("6/6/91", "06.06.91"),
        ("2nd quarter 1991", "2. Quartal 1991"),
    } <= written("date", moment)  # fmt: skip
    assert {("9:05 PM", "21:05"), ("9:05:07 PM", "21:05:07")} <= written("time", moment)
    assert ("Thursday, June 6, 1991, 9:05 PM", "Donnerstag, 6. Juni 1991, 21:05") in written("datetime", moment)
    assert ("€1,234.50", "1.234,50 €") in written("currency", 1234.5, "EUR")
    assert ("1,234.50 US dollars", "1.234,50 US-Dollar") in written("currency", 1234.5, "USD")
    assert written("unit", 12, "length-foot") == {("12 feet", "12 Fuß"), ("12 ft", "12 ft")}
    assert written("relative", -3, "day") == {("3 days ago", "vor 3 Tagen")}
    assert written("compact", 2_500_000_000) == {("2.5 billion", "2,5 Milliarden")}


def test_german_numbers_swap_point_and_comma_and_amounts_are_never_singular(rows):
    swap = str.maketrans(",.", ".,")
    assert all(target == source.translate(swap) for source, target in of_kind(rows, "number"))
    assert all(target == source[:-1].translate(swap) + " %" for source, target in of_kind(rows, "percent"))
    single = re.compile(r"(in 1 |-?1 ?[A-Za-z])")
    few = [row["source"] for row in rows if row["kind"] in ("relative", "unit", "compact")]
    assert not [source for source in few if single.match(source)]


def test_no_date_has_two_translations(rows):
    """Over all days of three years and all formats, whatever was drawn."""
    kind = KINDS["date"](EN, DE)
    translations = {}
    for number in range(3 * 366):
        moment = datetime.datetime(1990, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(days=number)
        for write in kind.formats:
            translations.setdefault(write(moment, locale=EN), set()).add(write(moment, locale=DE))
    ambiguous = {source for source, targets in translations.items() if len(targets) > 1}
    assert "May 6, 1991" in ambiguous  # "6. Mai 1991" and "06.05.1991"
    assert all(re.fullmatch(r"May \d+, \d{4}", source) for source in ambiguous)
    assert not any(re.fullmatch(r"May \d+, \d{4}", row["source"]) for row in rows)
    assert not ambiguous & {row["source"] for row in rows}


def test_a_source_met_with_two_translations_is_left_out(monkeypatch):
    """Two values that the source locale writes alike, the target locale not: neither is kept."""

    def numbers(source, target):
        def write(value, locale):
            return f"{value // 2 if value < 20 else value}" if locale == source else f"{value}"

        return cldr.Kind(lambda rng: (rng.randrange(2, 20 if rng.random() < 0.5 else 400),), [write])

    monkeypatch.setitem(KINDS, "halves", numbers)
    sources = {row["source"] for rows in cldr_translation(size=350, kinds=["halves"]).values() for row in rows}
    assert not sources & {str(number) for number in range(1, 10)}


def test_compact_numbers_are_not_rounded():
    """Japanese counts in ten thousands: 11.1 thousand must not be written like 11 thousand."""
    japan = Locale.parse("ja")
    (write,) = KINDS["compact"](japan, EN).formats
    values = [thousands * 100 for thousands in range(20, 300)]
    assert all(len({write(value, locale=locale) for value in values}) == 280 for locale in (japan, EN))


def test_units_written_alike_are_left_out():
    """Mexican Spanish shortens both metres and months to "25 m"."""
    mexico = Locale.parse("es_MX")
    names = ("length-meter", "duration-month")
    assert {cldr.units.format_unit(25, name, "short", locale=mexico) for name in names} == {"25 m"}
    found = cldr_translation("es_MX", "de", size=1_000, kinds=["unit"])
    sources = [row["source"] for rows in found.values() for row in rows]
    assert not any(re.search(r"\d m$", source) for source in sources)
    assert any(re.search(r"\d km$", source) for source in sources)


@pytest.mark.parametrize(
    ("source", "target"), [("de", "en"), ("en", "ru"), ("pt-BR", "zh_Hans"), ("ja", "ar"), ("fr", "hi"), ("sv", "fi")]
)
def test_other_locale_pairs(source, target):
    rows = [row for split in cldr_translation(source, target, size=450).values() for row in split]
    assert len({row["source"] for row in rows}) == 450
    assert {row["kind"] for row in rows} == set(KINDS)
    identifiers = re.compile(r"(length|duration|mass|area|volume|speed|power|energy|digital)-")
    assert not any(identifiers.search(row["source"] + row["target"]) for row in rows)


@pytest.mark.parametrize(("options", "message"), [
    ({"source": "klingon"}, r"source locale 'klingon' is not one that Babel knows"),
    ({"target": "e"}, r"target locale 'e'"), ({"target": ""}, r"target locale ''"),
    ({"target": None}, r"target locale None"), ({"target": "en"}, r"same locale, 'en'"),
    ({"size": 99}, r"size=99: a corpus has at least 100 pairs"),
    ({"size": 1e4}, r"size=10000.0"),
    ({"kinds": ["date", "colour"]}, r"kinds=.*'colour'.*choose from date, time"),
    ({"kinds": []}, r"kinds=\[\]"),
])  # fmt: skip
def test_bad_options(options, message):
    refused(message, cldr_translation, **options)


def test_more_pairs_than_there_are(monkeypatch):
    few = cldr.Kind(lambda rng: (rng.randrange(9),), [lambda value, locale: str(value)])
    monkeypatch.setitem(KINDS, "few", lambda source, target: few)
    refused("size=100: the kinds few have no more than 9 pairs", cldr_translation, size=100, kinds=["few"])


def test_names_are_in_the_one_language_they_are_labeled_with_and_split_within_each():
    names = language_names()
    feature = names["train"].features["label"]
    assert tuple(feature.names) == LANGUAGES
    assert len(LANGUAGES) == 20
    rows = [(row["text"], feature.int2str(row["label"])) for split in names.values() for row in split]
    known = {"Deutschland": "de", "Vereinigtes Königreich": "de", "Rosja": "pl", "日本": "ja", "Испания": "ru"}
    assert known.items() <= dict(rows).items()
    distinct = {text.casefold() for text, _ in rows}
    assert len(distinct) == len(rows) > 10_000
    assert not {"euro", "angola", "september"} & distinct  # words of two languages
    train, validation, test = (Counter(names[split]["label"]) for split in ("train", "validation", "test"))
    for label in range(20):
        assert validation[label] == test[label] == (train + validation + test)[label] // 10 > 20


def test_standard_library_is_source_text_split_by_file():
    corpus = standard_library(max_characters=600_000)
    paths = [path for rows in corpus.values() for path in rows["path"]]
    assert len(set(paths)) == len(paths)
    assert not any(re.search(r"(^|/)(test|tests|idlelib|site-packages|__pycache__)/", path) for path in paths)
    assert sum(len(text) for rows in corpus.values() for text in rows["text"]) <= 600_000
    row = corpus["validation"][0]
    assert (Path(os.__file__).parent / row["path"]).read_text(encoding="utf-8") == row["text"]
    assert len(corpus["validation"]) == len(corpus["test"]) >= 1


def test_standard_library_that_is_too_small_or_missing(monkeypatch, tmp_path):
    refused("max_characters=10 leaves", standard_library, max_characters=10)
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    refused("holds no", standard_library, error=FileNotFoundError)
