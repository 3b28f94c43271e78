"""`generate` on every kind of model, and conversations."""

import io
import re
import shutil
from functools import partial
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from refusals import ends, refused
from script_runs import answers, generated, json_lines, train
from transformers import AutoModelForSeq2SeqLM, AutoModelForTokenClassification, AutoTokenizer, pipeline

from vanillaformer.acceleration import int8
from vanillaformer.console import reporting
from vanillaformer.inference import generation, tasks
from vanillaformer.inference.arguments import GenerateArguments
from vanillaformer.inference.chat import Chat
from vanillaformer.scripts import export, generate

LINES = ["May 6, 2031", "5:04 PM", "", "12,345.6"]


@pytest.mark.parametrize("kind", ["translation", "separate"])
def test_translates_a_file_line_by_line_as_the_options_say(kind: str, trained, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "in.txt").write_text("\n".join(LINES))
    search = {"max_new_tokens": 8, "num_beams": 2, "length_penalty": 2.0, "early_stopping": True}
    options = [word for name, value in search.items() for word in (f"--{name}", str(value))]
    files = ["--input_file", str(tmp_path / "in.txt"), "--output_file", str(tmp_path / "out.txt")]
    model = AutoModelForSeq2SeqLM.from_pretrained(trained(kind))
    seen, original = {}, type(model).generate
    with monkeypatch.context() as patch:
        noted = lambda self, **given: seen.update(given) or original(self, **given)  # noqa: E731
        patch.setattr(type(model), "generate", noted)
        generate.main(["--model", str(trained(kind)), "--batch_size", "3", *files, *options])
    assert search.items() <= seen.items()
    source = AutoTokenizer.from_pretrained(trained(kind))
    other = {"subfolder": "target_tokenizer"} if kind == "separate" else {}
    target = AutoTokenizer.from_pretrained(trained(kind), **other)
    expected = []
    for line in LINES:
        output = model.generate(**source([line], return_tensors="pt"), **search)
        expected.append(target.decode(output[0], skip_special_tokens=True).replace("\n", "\\n") if line else "")
    assert (tmp_path / "out.txt").read_text(encoding="utf-8").split("\n") == [*expected, ""]


def test_a_file_is_worked_on_in_parts_and_resumes_after_each_stop(trained, tmp_path: Path, monkeypatch, capfd) -> None:
    """With the tokens of one run, drawn ones too; a bad line harms no other, and what was there stays until then.

    What is written stands beside the model, which stays the same for it.
    """
    monkeypatch.setattr(generation, "SORTED", 2)
    shutil.copytree(trained("causal"), tmp_path, dirs_exist_ok=True)
    before = {path.name for path in tmp_path.iterdir()}
    continued, calls = tasks.FUNCTIONS["causal"], []
    lines = [f"def f{number}(" for number in range(30)]
    lines[3:5] = ["", "\udcff"]
    text = "\n".join(lines).encode(errors="surrogateescape")
    (tmp_path / "in.txt").write_bytes(text)
    (tmp_path / "out.txt").write_text("an earlier result")
    options = ["--do_sample", "--max_new_tokens", "4", "--batch_size", "3", "--seed", "5"]
    command = ["--model", str(tmp_path), "--input_file", str(tmp_path / "in.txt"), *options]

    def working(loaded, texts, stop=None, **given):
        calls.extend(texts)
        if stop in texts:
            raise RuntimeError("killed")
        if any(text.startswith("def f8(") for text in texts):
            raise ValueError("not this one")
        return continued(loaded, texts, **given)

    monkeypatch.setitem(tasks.FUNCTIONS, "causal", working)
    generate.main([*command, "--output_file", str(tmp_path / "whole.txt")])
    said = capfd.readouterr().err
    assert "in.txt, line 5: byte 0xff is not UTF-8: no result\n" in said
    assert "no result for 'def f8(': not this one\n" in said
    whole = (tmp_path / "whole.txt").read_text().split("\n")
    assert [whole[number] for number in (3, 4, 8, 30)] == [""] * 4
    assert all(result.startswith(line) for line, result in zip(lines, whole) if result)
    assert sum(map(bool, whole)) == 27
    assert {path.name for path in tmp_path.iterdir()} - before == {"in.txt", "out.txt", "whole.txt"}

    command += ["--output_file", str(tmp_path / "out.txt")]
    for stop in ("def f14(", "def f26("):
        monkeypatch.setitem(tasks.FUNCTIONS, "causal", partial(working, stop=stop))
        refused("killed", generate.main, command, error=RuntimeError)
        assert (tmp_path / "out.txt").read_text() == "an earlier result"
        with (tmp_path / "out.txt.part").open("a") as stream:
            stream.write("a line of a part that was not wh")
    monkeypatch.setitem(tasks.FUNCTIONS, "causal", working)
    calls.clear()
    capfd.readouterr()
    generate.main(command)
    assert "24 of 30 lines are there already." in capfd.readouterr().err
    assert set(calls) == {*lines[24:]}
    assert (tmp_path / "out.txt").read_text().split("\n") == whole
    monkeypatch.setitem(tasks.FUNCTIONS, "causal", partial(working, stop="def f14("))
    refused("killed", generate.main, command, error=RuntimeError)
    monkeypatch.setitem(tasks.FUNCTIONS, "causal", working)
    generate.main([*command, "--seed", "6"])  # another job: from the beginning
    assert (tmp_path / "out.txt").read_text().split("\n")[1] != whole[1]


@pytest.mark.parametrize(
    ("job", "encoding", "said"),
    [("masked", "utf-8", "a masked language model fills in"), ("causal", "utf-16", "is UTF-16: it must be"),
     ("causal", "latin-1", "has no text in it")],
)  # fmt: skip
def test_a_file_that_cannot_be_worked_on_is_an_error(job: str, encoding: str, said: str, trained, tmp_path) -> None:
    (tmp_path / "in.txt").write_text("Übermut tut\n\nselten gut, ä\n", encoding=encoding)
    files = "--input_file", tmp_path / "in.txt", "--output_file", tmp_path / "out.txt"
    ends(said, generate.main, "--model", trained(job), *files)
    assert not (tmp_path / "out.txt").exists()


@pytest.mark.parametrize("source", ["in.txt", "out.txt.part", "out.txt.part.json"])
def test_a_file_of_the_users_is_not_taken_for_the_beginning_of_the_output(source: str, trained, tmp_path) -> None:
    for name in ("in.txt", *({source} if "json" in source else {"out.txt.part"})):
        (tmp_path / name).write_text("import os\nimport re\n")
    files = "--input_file", tmp_path / source, "--output_file", tmp_path / "out.txt"
    ends(r"out.txt is first written as .*out.txt.part", generate.main, "--model", trained("causal"), *files)
    assert {path.read_text() for path in tmp_path.iterdir()} == {"import os\nimport re\n"}


def test_lines_of_another_job_are_gone_before_the_record_of_this_one_is_there(tmp_path: Path) -> None:
    (tmp_path / "part").write_text("old\n" * 4)
    (tmp_path / "record").mkdir()  # which cannot be written
    refused("record", generation.resumed, tmp_path / "part", tmp_path / "record", {}, error=OSError, size=2)
    assert (tmp_path / "part").read_text() == ""


def test_an_engine_has_the_seed_of_each_part(tmp_path: Path, monkeypatch) -> None:
    """Or a command that was stopped would draw other tokens than one that was not."""
    (tmp_path / "in.txt").write_text("a\nb\nc\n")
    model = SimpleNamespace(engine=None)
    loaded: Any = SimpleNamespace(model=model, tokenizer=SimpleNamespace(name_or_path=str(tmp_path)))
    paths = {"input_file": str(tmp_path / "in.txt"), "output_file": str(tmp_path / "out.txt")}
    arguments = GenerateArguments(model_name_or_path="-", seed=5, batch_size=1, **paths)
    monkeypatch.setattr(generation, "SORTED", 1)
    generation.generate_file(arguments, lambda _: (loaded, lambda *_: [str(model.seed)], {}))
    assert (tmp_path / "out.txt").read_text() == "5\n6\n7\n"


def test_a_file_shows_its_progress_off_a_terminal(trained, tmp_path: Path, monkeypatch, capfd) -> None:
    classify = tasks.FUNCTIONS["classification"]
    monkeypatch.setitem(tasks.FUNCTIONS, "classification", lambda *given: Event().wait(0.02) or classify(*given))
    monkeypatch.setattr(reporting, "EVERY", 0.001)
    (tmp_path / "in.txt").write_text("Deutschland\n\nFrance\nItalia\n")
    words = ["--model", trained("classification"), "--batch_size", "1"]
    captured = generated(capfd, *words, "--input_file", tmp_path / "in.txt", "--output_file", tmp_path / "out.txt")
    pattern = r"Working: [12] of 3 lines in \d+ s, [\d,.]+ a second, \d+ s left"
    assert any(re.fullmatch(pattern, line) for line in captured.err.splitlines())
    assert captured.out == ""
    assert generated(capfd, *words, "--text", "Deutschland").err == ""


@pytest.mark.parametrize("kind", ["translation", "classification"])
def test_the_fastest_engine_gives_the_same_output(kind: str, trained, tmp_path: Path, monkeypatch, capfd) -> None:
    pytest.importorskip("ctranslate2")
    monkeypatch.setattr(generation, "CACHE", tmp_path / "exports")
    search = ["--num_beams", "1", "--max_new_tokens", "8"] if kind == "translation" else []
    words = ["--model", trained(kind), "--text", "May 6, 2031", "", "in 12 days", *search]
    outputs = [generated(capfd, *words, "--engine", engine) for engine in ("torch", "auto", "auto")]
    assert outputs[0].out == outputs[1].out == outputs[2].out
    assert outputs[0].err == ""
    said = "--engine auto: ctranslate2; the first 2 outputs are the same as those of torch\n"
    assert {output.err for output in outputs[1:]} == {said}
    assert len(list((tmp_path / "exports").iterdir())) == 1


@pytest.mark.parametrize("kind", ["translation", "classification"])
def test_layers_rounded_to_int8_are_compared_with_the_exact_ones(kind: str, trained, monkeypatch, capfd) -> None:
    monkeypatch.setattr(int8, "MIN_WEIGHTS", 0)
    calls, forward = [], int8.Int8Linear.forward
    monkeypatch.setattr(int8.Int8Linear, "forward", lambda self, x: calls.append(self) or forward(self, x))
    search = ["--max_new_tokens", "8"] if kind == "translation" else []
    words = ["--model", trained(kind), "--text", *(f"May {day}, 2031" for day in range(1, 10)), *search]
    exact, rounded = (generated(capfd, *words, *option) for option in ([], ["--quantization", "int8"]))
    lines = [[line.split("\t")[0] for line in output.out.splitlines()[:8]] for output in (exact, rounded)]
    same = sum(one == other for one, other in zip(*lines))
    assert rounded.err == f"--quantization int8: {same} of the first 8 results are as without it\n"
    assert len(set(calls)) > 4
    few = generated(capfd, *words[:4], *search, "--quantization", "int8")
    assert (few.out, few.err) == (f"{rounded.out.splitlines()[0]}\n", "")


def test_torch_where_another_engine_would_give_other_output(trained, tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.setattr(generation, "CACHE", tmp_path / "exports")
    words = ["--model", trained("translation"), "--text", "May 6, 2031", "--max_new_tokens", "8", "--engine", "auto"]
    captured = generated(capfd, *words, "--num_beams", "2")
    assert captured.err.startswith("--engine auto: torch, not ctranslate2: its beam search stops early")
    assert not (tmp_path / "exports").exists()
    monkeypatch.setattr(generation, "on_engine", lambda model, folder: None)
    monkeypatch.setattr(generation, "load", lambda arguments: (tasks.load(arguments)[0], differing, True))
    differing = lambda loaded, texts, **options: [f"{loaded.model is None}"] * len(texts)  # noqa: E731
    captured = generated(capfd, *words, "--num_beams", "1")
    assert captured.err == "--engine auto: torch, not ctranslate2: its output differs from that of torch\n"
    assert captured.out == "False\n"


def test_only_line_feeds_separate_lines(trained, tmp_path: Path, monkeypatch) -> None:
    """A byte order mark and the carriage returns of Windows are no text; one within a line separates nothing."""
    seen: list[str] = []
    monkeypatch.setitem(tasks.FUNCTIONS, "classification", lambda _, texts: seen.extend(texts) or texts)
    (tmp_path / "in.txt").write_bytes("\ufefffirst\r\n\nthe old\rship\nlast\u2028one".encode())
    files = ["--input_file", str(tmp_path / "in.txt"), "--output_file", str(tmp_path / "out.txt")]
    generate.main(["--model", str(trained("classification")), *files])
    assert sorted(seen) == ["first", "last\u2028one", "the old\rship"]
    assert (tmp_path / "out.txt").read_bytes() == "first\n\nthe old\rship\nlast\u2028one\n".encode()


@pytest.mark.parametrize("option", [["--temperature", "1.5"], ["--top_k", "20"], ["--top_p", "0.9"]])
def test_options_of_sampling_imply_it(option: list[str]) -> None:
    (arguments,) = generate.parse(generate.GenerateArguments, ["--model", "x", *option])
    assert arguments.options() == {"num_beams": 1, "do_sample": True, option[0][2:]: float(option[1])}
    (arguments,) = generate.parse(generate.GenerateArguments, ["--model", "x", "--chat", "--do_sample", "false"])
    assert arguments.options() == {"do_sample": False}


def test_a_person_at_a_terminal_is_told_what_to_do(trained, capsys, monkeypatch) -> None:
    keyboard = io.StringIO("Deutsch\u2028land\nFrance\n")
    monkeypatch.setattr(keyboard, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", keyboard)
    captured = generated(capsys, "--model", trained("classification"))
    assert captured.err == "Type texts, one per line; Ctrl-D on an empty line ends the input.\n"
    assert len(captured.out.splitlines()) == 2


def test_prompts_are_continued_in_a_batch_as_one_by_one_and_from_the_end_of_long_ones(trained, capsys) -> None:
    prompts = ["def f(x", "import"]
    common = ["--model", trained("causal"), "--max_new_tokens", "6", "--num_beams", "1"]
    for prompt, text in zip(prompts, answers(capsys, *common, "--text", *prompts), strict=True):
        alone = generated(capsys, *common, "--text", prompt).out
        assert alone.rstrip("\n").replace("\n", "\\n") == text.rstrip()
        assert text.startswith(prompt)
    prompt = "x = 1; " * 60 + "the end"
    captured = generated(capsys, "--model", trained("causal"), "--text", prompt, "--max_new_tokens", "4")
    assert "the end" in captured.out
    assert "cut to 60 tokens" in captured.err


def test_an_unfinished_run_is_not_a_model_and_a_mistake_is_corrected_in_its_folder(tmp_path: Path) -> None:
    run, stopped = tmp_path, tmp_path / "stopped"
    refused("vocab_size=9", train, "causal", run, "--max_steps", "1", "--set", "vocab_size=9")
    ends("has no config.json: it contains no finished model", generate.main, "--model", run, "--text", "x")
    assert train("causal", run, "--max_steps", "1").finished
    for step in (4, 12):
        (stopped / f"checkpoint-{step}").mkdir(parents=True)
        (stopped / f"checkpoint-{step}" / "config.json").write_text("{}")
    message = f"the last checkpoint of an unfinished run is {stopped}/checkpoint-12$"
    ends(message, generate.main, "--model", stopped, "--text", "x")


def test_results_have_the_order_of_the_texts_whatever_their_lengths(trained, monkeypatch, capsys) -> None:
    texts = ["May 6, 2031", "5 PM", "Monday, March 3, 2031", "7", "12,345.6", "June 1", "8:15 AM"]
    common = ["--model", trained("translation"), "--max_new_tokens", "6"]
    alone = [answers(capsys, *common, "--text", text)[0] for text in texts]
    monkeypatch.setattr(tasks, "SORTED", 2)
    assert answers(capsys, *common, "--batch_size", "2", "--text", *texts) == alone


def test_classifier_keeps_the_end_that_it_was_trained_on_and_its_tokenizer_the_types(
    tmp_path, trained, capsys
) -> None:
    options = "--truncation_side left --max_length 8 --max_steps 1 --set type_vocab_size=0"
    train("classification", tmp_path, *options.split())
    assert pipeline("text-classification", str(tmp_path))("May")
    assert "token_type_ids" not in AutoTokenizer.from_pretrained(tmp_path)("May")
    assert AutoTokenizer.from_pretrained(tmp_path).truncation_side == "left"
    assert AutoTokenizer.from_pretrained(trained("classification")).truncation_side == "right"
    ends = [answers(capsys, "--model", tmp_path, "--text", f"{start * 200} abc") for start in "xyz"]
    assert ends[0] == ends[1] == ends[2]  # nothing before the last 64 tokens counts


def test_entities_are_those_of_the_pipeline(trained, tmp_path: Path, capsys) -> None:
    folder, text = trained("token_classification"), "on Oct 19  Qatar paid 88 for  987 tons of wheat"
    model = AutoModelForTokenClassification.from_pretrained(folder)
    torch.nn.init.normal_(model.classifier.weight, std=3.0, generator=torch.Generator().manual_seed(0))
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    printed = answers(capsys, "--model", tmp_path, "--text", text)[0]
    text = " ".join(text.split())
    found = pipeline("token-classification", str(tmp_path), device="cpu", aggregation_strategy="first")(text)
    assert len(found) > 2
    assert printed.split("\t") == [f"{each['entity_group']}: {text[each['start'] : each['end']]}" for each in found]


DIALOGUES = [["你好", "你好呀", "再见"], ["吃了吗", "吃了"], ["在吗", "不在"], ["一", "二", "三"]] * 8


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("chat")
    Dataset.from_dict({"turns": DIALOGUES}).to_json(folder / "d.jsonl", force_ascii=False)
    more = ["--train_file", str(folder / "d.jsonl"), "--validation_file", str(folder / "d.jsonl")]
    more += ["--turns_column", "turns", "--tokenizer_algorithm", "chinese_character"]
    more += ["--max_train_samples", "20", "--max_steps", "3"]
    train("causal", folder / "forward", *more)
    backward = [*more, "--reverse_turns", "--tokenizer_name_or_path", str(folder / "forward")]
    train("causal", folder / "backward", *backward)
    return folder / "forward", folder / "backward"


def test_the_saved_folder_is_that_of_dialogues(models, capsys) -> None:
    assert AutoTokenizer.from_pretrained(models[1]).get_vocab() == AutoTokenizer.from_pretrained(models[0]).get_vocab()
    rows = json_lines(models[0] / "samples.jsonl")
    texts = {"".join(turns) for turns in DIALOGUES}
    assert rows
    assert all(row["prompt"] + row["reference"] in texts for row in rows)
    card = (models[0] / "README.md").read_text(encoding="utf-8")
    assert f"generate --model {models[0]} --chat`" in card
    assert 'pipe([{"role": "user", "content": ' in card
    names: dict = {}
    exec(card.split("```python\n")[1].split("```")[0], names)
    assert names["tokenizer"].decode(names["inputs"]["input_ids"][0, -1]) == "[SEP]"
    assert names["inputs"]["input_ids"][0, -1] in names["model"].generation_config.eos_token_id  # a reply is a turn
    assert capsys.readouterr().out


def test_a_continued_dialogue_is_the_same_on_every_engine(models, tmp_path: Path, capsys) -> None:
    export.main([str(models[0]), str(tmp_path / "exported"), "--engine", "ctranslate2"])
    prompts = [turns[0] + "[SEP]" for turns in DIALOGUES[:4]]
    options = ["--do_sample", "false", "--text", *prompts]
    found = [answers(capsys, "--model", folder, *options) for folder in (models[0], tmp_path / "exported")]
    assert found[0] == found[1]


def test_the_seed_decides(models, capsys) -> None:
    common = ["--model", models[0], "--chat", "--max_new_tokens", "8", "--top_k", "20", "--temperature", "1.2"]
    first, again, other = (answers(capsys, *common, "--text", "你好", "在吗", "--seed", seed) for seed in (1, 1, 2))
    assert len(first) == len(other) == 2
    assert first == again != other
    assert not any("[SEP]" in line or line == "你好" for line in first)


def test_standard_input_and_reset(models, capsys, monkeypatch) -> None:
    # The likeliest token, by one beam: the same history gives the same answer, a longer one is seen.
    prompts = []
    draw = Chat.draw
    monkeypatch.setattr(Chat, "draw", lambda chat: (prompts.append(chat.prompt()), draw(chat))[1])
    monkeypatch.setattr("sys.stdin", io.StringIO("你好\n再见\n\n/reset\n你好\n"))
    lines = answers(capsys, "--model", models[0], "--chat", "--num_beams", "1", "--max_new_tokens", "4")
    assert len(lines) == 3
    assert lines[0] == lines[2]
    assert (prompts[0], prompts[1][: len(prompts[0])]) == (prompts[2], prompts[0])
    assert len(prompts[1]) > len(prompts[0])


def test_a_person_at_a_terminal_is_greeted_and_answers_can_be_reranked(models, capsys, monkeypatch) -> None:
    keyboard = io.StringIO("你好\n/quit\n再见\n")
    monkeypatch.setattr(keyboard, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", keyboard)
    captured = generated(capsys, "--model", models[0], "--chat", "--max_new_tokens", "4")
    assert len(captured.out.splitlines()) == 1
    greeting = f"Chatting with {models[0]}: /reset forgets the dialogue, /quit or Ctrl-D ends it.\n"
    assert captured.err == f"{greeting}> > "
    common = ["--model", models[0], "--chat", "--text", "你好", "--max_new_tokens", "6"]
    more = ["--candidates", "5", "--rerank_model", models[1]]
    assert answers(capsys, *common, *more) == answers(capsys, *common, *more)
