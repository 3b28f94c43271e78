"""Training on dialogues, and `generate --chat` with the model of them."""

import io
from pathlib import Path

import pytest
from datasets import Dataset
from script_runs import answers, json_lines, train
from transformers import AutoTokenizer

from vanillaformer.inference.chat import Chat
from vanillaformer.scripts import generate

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
    tokenizer = AutoTokenizer.from_pretrained(models[0])
    text = tokenizer.apply_chat_template([{"role": "user", "content": "你好"}], tokenize=False)
    assert text == "<s>你好[SEP]</s>"
    assert AutoTokenizer.from_pretrained(models[1]).get_vocab() == tokenizer.get_vocab()
    rows = json_lines(models[0] / "samples.jsonl")
    texts = {"".join(turns) for turns in DIALOGUES}
    assert rows
    assert all(row["prompt"] + row["reference"] in texts for row in rows)
    card = (models[0] / "README.md").read_text(encoding="utf-8")
    assert not any(turn in card for dialogue in DIALOGUES[:2] for turn in dialogue)
    assert f"generate --model {models[0]} --chat`" in card
    assert 'pipe([{"role": "user", "content": ' in card
    names: dict = {}
    exec(card.split("```python\n")[1].split("```")[0], names)
    assert names["tokenizer"].decode(names["inputs"]["input_ids"][0, -1]) == "[SEP]"
    assert capsys.readouterr().out


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
    capsys.readouterr()
    generate.main(["--model", str(models[0]), "--chat", "--max_new_tokens", "4"])
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 1
    greeting = f"Chatting with {models[0]}: /reset forgets the dialogue, /quit or Ctrl-D ends it.\n"
    assert captured.err == f"{greeting}> > "
    common = ["--model", models[0], "--chat", "--text", "你好", "--max_new_tokens", "6"]
    more = ["--candidates", "5", "--rerank_model", models[1]]
    assert answers(capsys, *common, *more) == answers(capsys, *common, *more)
