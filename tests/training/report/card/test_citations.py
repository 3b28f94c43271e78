"""Every option that comes from a paper cites it, and the entries are BibTeX."""

import re
import shlex
from typing import get_args

import pytest
from datasets import Dataset
from refusals import refused

from vanillaformer import PRESETS, VanillaRecurrentEncoderDecoderConfig, preset
from vanillaformer.configuration import options
from vanillaformer.configuration.names import ACTIVATIONS
from vanillaformer.console.parsing import parse
from vanillaformer.data.arguments import DataArguments, LanguageModelDataArguments
from vanillaformer.data.tasks import MASK, TASKS
from vanillaformer.inference.arguments import GenerateArguments
from vanillaformer.tokenization import TokenizerAlgorithm
from vanillaformer.training.finishing import input_option
from vanillaformer.training.report.card import writing as cite
from vanillaformer.training.report.card.writing import OBJECTIVES, OPTIMIZERS, SCHEDULES, techniques
from vanillaformer.training.report.facts import card_example, example_row, first_words, terminal_example

EVERYTHING_ON = {
    **{"label_smoothing_factor": 0.1, "r_drop": 1.0, "guided_attention": 1.0, "guided_attention_sigma": 0.2},
    **{"scheduled_sampling": "linear", "token_dropout": 0.1, "lora_rank": 4},
    **{"freeze": ["norm"], "average_checkpoints": 3, "ema_decay": 0.99},
    **{"flip": "both", "shift": 2, "random_erasing": 0.1},
    **{"bf16": True, "fp16": True, "max_grad_norm": 1.0, "temperature": 1.5},
}
TECHNIQUES = techniques(EVERYTHING_ON, {"packing": True, "reverse_turns": True, "block_stride": 8})
CHOICES = [choice for choices in options.OPTIONS.values() for choice in choices.values()]
DESCRIBED = [*CHOICES, *ACTIVATIONS.values(), *PRESETS.values()]


def field(entry: str, name: str) -> str | None:
    match = re.search(rf"^  {name} = \{{(.*)\}},$", entry, re.MULTILINE)
    return match[1] if match else None


def test_what_is_cited_is_there_and_what_is_there_is_cited() -> None:
    described = *(known.papers for known in DESCRIBED), *cite.TOKENIZERS.values()
    papers = {paper for entry in described for paper in entry}
    entries = [entry for table in (OPTIMIZERS, SCHEDULES, OBJECTIVES) for entry in table.values()]
    papers |= {paper for entry in entries for paper in entry.papers}
    papers |= {paper for technique in TECHNIQUES for paper in technique.papers}
    papers |= {paper for score in cite.SCORES.values() for paper in score.papers} | {"wolf2020transformers"}
    grouped = {"num_key_value_heads": 2, "attn_logit_softcapping": 5.0, "layer_drop": 0.1, "dropout": 0.1}
    grouped |= {"drop_path_rate": 0.1, "layer_scale_init_value": 0.1, "value_residual": True}
    for changes in (grouped, {"num_key_value_heads": 1}):
        papers |= set(cite.part_papers(preset("gpt-tiny", **changes)))
    papers |= set(cite.part_papers(preset("bert-tiny", wide_max_ngram=1), classifies=True))
    papers |= set(cite.part_papers(VanillaRecurrentEncoderDecoderConfig()))
    papers |= set(cite.part_papers(preset("bert-tiny", max_ngram=2)))
    assert papers == set(cite.references())
    assert set(cite.TOKENIZERS) == set(get_args(TokenizerAlgorithm))
    sources = (path.read_text(encoding="utf-8") for path in cite.files("vanillaformer.training").rglob("*.py"))
    assert set(cite.BASELINES) == {name for text in sources for name in re.findall(r'Baseline\(\s*"([^"]+)"', text)}


def test_entries_are_bibtex_and_each_is_written_once() -> None:
    text = (cite.files(cite.__package__) / "references.bib").read_text(encoding="utf-8")
    starts = re.findall(r"^@(\w+)\{([^,]*),$", text, re.MULTILINE)
    keys = [key for _, key in starts]
    assert len(set(keys)) == len(keys) == len(cite.references()) == text.count("\n@")
    kinds = {"inproceedings": "booktitle", "article": "journal", "techreport": "institution", "misc": None}
    for (kind, key), entry in zip(starts, cite.references().values()):
        assert entry.count("{") == entry.count("}"), key
        assert field(entry, "title"), key
        authors = (field(entry, "author") or "").split(" and ")
        assert all("," in author or author.startswith("{") or author == "others" for author in authors), key
        year = field(entry, "year") or ""
        assert re.fullmatch(r"(19|20)\d\d", year), key
        assert year in key, key
        first = re.sub(r"\\.|[^a-z]", "", authors[0].split(",")[0].lower())
        assert first.startswith(re.match(r"[a-z]+", key)[0][:4]) or authors[0].startswith("{"), key
        source = kinds[kind]
        if source:
            assert field(entry, source), key
        else:
            arxiv = field(entry, "eprint")
            assert re.fullmatch(r"\d{4}\.\d{5}", arxiv or "") or field(entry, "howpublished"), key
            assert arxiv is None or abs(int("20" + arxiv[:2]) - int(year)) <= 1, key
    text = cite.bibtex(["zhang2019root", "ba2016layer", "zhang2019root"])
    assert re.findall(r"@\w+\{(\w+)", text) == ["zhang2019root", "ba2016layer"]
    with pytest.raises(KeyError):
        cite.bibtex(["nobody1900nothing"])


def test_papers_of_a_config_and_of_a_recurrent_one() -> None:
    config = preset(
        "transformer-tiny", norm="rms_norm", norm_placement="pre", feed_forward="gated",
        position_embedding_type="rotary",
    )  # fmt: skip
    papers = cite.part_papers(config)
    assert {"zhang2019root", "xiong2020layer", "shazeer2020glu", "su2021roformer"} <= set(papers)
    assert "ba2016layer" not in papers
    assert "press2017using" in papers
    assert "press2017using" not in cite.part_papers(config, classifies=True)
    assert cite.part_papers(preset("bloom")).count("press2022train") == 1
    assert "beltagy2020longformer" in cite.part_papers(preset("gemma2"))
    papers = cite.part_papers(VanillaRecurrentEncoderDecoderConfig(cell="lstm", cross_attention="additive"))
    assert {"hochreiter1997long", "bahdanau2015neural", "schuster1997bidirectional"} <= set(papers)
    assert not {"vaswani2017attention", "cho2014learning", "srivastava2014dropout"} & set(papers)


def test_techniques() -> None:
    assert "guided attention, weight 1.0, width 0.2" in [technique.words for technique in TECHNIQUES]
    off = dict.fromkeys(EVERYTHING_ON, 0) | {"scheduled_sampling": "none", "freeze": [], "optim": "muon"}
    off |= {"lr_scheduler_type": "inverse_sqrt", "warmup_steps": 4000, "objective": "causal"}
    assert [technique.words for technique in techniques(off, {})] == [
        "Muon for matrices, AdamW for the rest",
        "learning rate ∝ 1/√step after a warm-up over 4,000 steps",
    ]
    warm = techniques({"warmup_steps": 0.05, "optim": "sgd", "objective": "masked", "mlm_probability": 0.3}, {})
    assert [technique.words for technique in warm] == [
        "masked language modeling, 30% of the tokens hidden",
        "optimizer sgd",
        "learning rate linearly to 0 after a warm-up over 5% of the steps",
    ]


OWN = {"train_file": "own.csv"}
ROW = "a secret   of\nthe data that goes on for longer than is good for a command line, " * 3


@pytest.mark.parametrize("task", TASKS)
def test_own_rows_stay_out_of_the_card(task: str) -> None:
    example = card_example(DataArguments(**OWN), task, ROW)
    assert "secret" not in example
    assert (MASK in example) == (task in ("masked", "mlm+nsp"))
    assert card_example(DataArguments(dataset="imdb"), task, ROW) == example
    assert card_example(DataArguments(**OWN, card_example=f"my {MASK} text"), task, ROW) == f"my {MASK} text"


def test_examples_of_embedded_data_own_rows_and_dialogues() -> None:
    data = DataArguments()
    assert card_example(data, "translation", "May 3") == terminal_example(data, "translation", "May 3") == "May 3"
    assert card_example(data, "causal") == terminal_example(data, "causal", "import os") == "def "
    data = DataArguments(**OWN)
    assert terminal_example(data, "causal", ROW) == "a secret of the data that goes on for"
    assert terminal_example(data, "masked", "the old ship") == "the old [MASK]"
    assert terminal_example(data, "masked", "") == TASKS["masked"].example
    translation = terminal_example(data, "translation", ROW)
    assert translation is not None
    assert translation.startswith("a secret of the data")
    assert "\n" not in translation
    assert len(translation) <= 100
    data = LanguageModelDataArguments(**OWN, turns_column="turns")
    assert terminal_example(data, "causal", ROW) is None
    assert card_example(data, "causal", ROW) == "Hello, how are you?"
    texts = "汉字" * 60, "one two three", "one"
    assert [first_words(text, 10) for text in texts] == ["汉字" * 5, "one two", "one"]


@pytest.mark.parametrize(("task", "text", "message"), [("masked", "no mask", "needs a"), ("causal", " ", "is empty")])
def test_examples_that_cannot_be(task: str, text: str, message: str) -> None:
    refused(f"--card_example.*{message}", card_example, DataArguments(card_example=text), task)


LINE = "a line of the usual length"


@pytest.mark.parametrize(("texts", "wanted"), [
    ([ROW, "", "two\nlines", " ", "ah", f" {LINE}\n", f"{LINE}, but longer"], LINE),
    (["", ROW, "two\nlines"], ROW.strip()), (["", " "], ""),
])  # fmt: skip
def test_an_example_is_a_short_line_where_there_is_one(texts: list[str], wanted: str) -> None:
    assert example_row(Dataset.from_dict({"source": texts}), "source") == wanted


@pytest.mark.parametrize("text", ["it's $HOME", "-5 degrees", "--text", "plain"])
def test_an_example_survives_the_shell(text: str) -> None:
    (arguments,) = parse(GenerateArguments, ["--model", "m", *shlex.split(input_option(text))])
    assert arguments.text == [text]
