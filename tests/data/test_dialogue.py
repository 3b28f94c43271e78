"""Dialogues as training rows, their chat template, and the reply that a backward model prefers."""

import pytest
import torch
from datasets import Dataset, DatasetDict
from refusals import refused

from vanillaformer import VanillaDecoderForCausalLM, preset
from vanillaformer.data import dialogue
from vanillaformer.data.arguments import LanguageModelDataArguments as LmData
from vanillaformer.data.caching import TextColumn
from vanillaformer.data.dialogue import SEPARATOR, dialogue_text, reverse_dialogues, separator_id
from vanillaformer.data.loading import load_data
from vanillaformer.data.preprocessing.language_model import packed_rows
from vanillaformer.inference.chat import Chat
from vanillaformer.tokenization import train

DIALOGUES = [["你好", "你好呀", "再见"], ["吃了吗", "吃了 ok"], ["在吗", "不在"], ["一", "二", "三"]]


@pytest.fixture(scope="module")
def tokenizer():
    column = TextColumn(Dataset.from_dict({"text": [dialogue_text(turns) for turns in DIALOGUES]}), "text", SEPARATOR)
    options = {"vocab_size": 100, "extra_special_tokens": [SEPARATOR]}
    made = train(column, algorithm="chinese_character", kind="decoder", **options)
    dialogue.set_chat_template(made)
    return made


def model(tokenizer, seed: int = 0) -> VanillaDecoderForCausalLM:
    torch.manual_seed(seed)
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")}
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 32}
    made = VanillaDecoderForCausalLM(preset("gpt-tiny", vocab_size=len(tokenizer), **sizes, **ids)).eval()
    with torch.no_grad():
        made.model.embed_tokens.weight.mul_(20)
    return made


def messages(turns):
    return [{"role": ("user", "assistant")[place % 2], "content": turn} for place, turn in enumerate(turns)]


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize("kind", ["turns", "messages"])
def test_dialogues_from_files(form, kind, tmp_path):
    cells = [messages(turns) for turns in DIALOGUES] if kind == "messages" else DIALOGUES
    rows, path = Dataset.from_dict({kind: cells}), tmp_path / f"d.{form}"
    rows.to_json(path, force_ascii=False) if form == "jsonl" else rows.to_parquet(path)
    files = {f"{split}_file": str(path) for split in ("train", "validation")}
    found = load_data(LmData(**files, turns_column=kind), "causal").splits
    assert list(found["train"]["text"]) == ["[SEP]".join([*turns, ""]) for turns in DIALOGUES]
    assert reverse_dialogues(found)["train"][0]["text"] == "再见[SEP]你好呀[SEP]你好[SEP]"


def test_malformed_dialogues_and_a_single_one_which_is_not_cut(tmp_path):
    Dataset.from_dict({"turns": ["a", "b"]}).to_json(tmp_path / "d.jsonl")
    arguments = LmData(train_file=str(tmp_path / "d.jsonl"), turns_column="turns")
    refused("d.jsonl, row 1: --turns_column must name lists of strings .* not 'a'", load_data, arguments, "causal")
    refused("--reverse_turns needs --turns_column", LmData, reverse_turns=True)
    (tmp_path / "d.jsonl").write_text('{"turns": ["how are you", "well, and you", "I am fine"]}')
    for hold_out in ("end", "random"):
        arguments = {"train_file": str(tmp_path / "d.jsonl"), "turns_column": "turns", "hold_out": hold_out}
        message = "1 rows: too few for train, validation|split from 1 distinct text"
        refused(message, load_data, LmData(**arguments), "causal")


def test_the_template_is_the_training_form(tokenizer):
    dataset = DatasetDict({"train": Dataset.from_dict({"text": [dialogue_text(turns) for turns in DIALOGUES]})})
    rows = packed_rows(dataset, tokenizer, LmData(block_size=64))["train"]
    trained = [token for row in rows for token in row["input_ids"]]
    rendered = [tokenizer.apply_chat_template(messages(turns))["input_ids"] for turns in DIALOGUES]
    assert sorted(trained) == sorted(token for ids in rendered for token in ids)
    assert rendered[0] == trained[: len(rendered[0])]
    names = tokenizer.convert_ids_to_tokens(rendered[0])
    assert names == ["<s>", *"你好", "[SEP]", *"你好呀", "[SEP]", *"再见", "[SEP]", "</s>"]
    assert tokenizer.unk_token_id not in trained
    assert dialogue_text(["a [SEP] b", " ", "c "]) == "a   b[SEP]c[SEP]"  # a separator within a turn is none


def test_a_prompt_is_the_beginning_of_a_dialogue_or_what_of_it_has_room(tokenizer):
    chat = Chat(model(tokenizer), tokenizer, options={"max_new_tokens": 4}, history=DIALOGUES[0][:2])
    asked = messages(DIALOGUES[0][:2])
    assert chat.prompt() == tokenizer.apply_chat_template(asked, add_generation_prompt=True)["input_ids"]

    def told(**options):
        options |= {"options": {"max_new_tokens": 4}, "history": ["一一", "二" * 12, "三" * 13]}
        return "".join(tokenizer.convert_ids_to_tokens(Chat(model(tokenizer), tokenizer, **options).prompt()))

    assert told() == "<s>" + "二" * 12 + "[SEP]" + "三" * 13 + "[SEP]"  # 28 positions: the oldest turn does not fit
    assert told(max_history=1) == "<s>" + "三" * 13 + "[SEP]"
    long = Chat(model(tokenizer), tokenizer, options={"max_new_tokens": 4}, history=["二" + "三" * 40])
    assert "".join(tokenizer.convert_ids_to_tokens(long.prompt())) == "<s>" + "三" * 26 + "[SEP]"
    message = "--max_new_tokens 30 leaves no room for a turn in 32 positions"
    refused(message, Chat, model(tokenizer), tokenizer, options={"max_new_tokens": 30})


@pytest.mark.parametrize("end", ["separator", "saved"])
def test_a_reply_ends_at_the_separator_or_an_end_of_the_generation_settings(end, tokenizer, monkeypatch):
    made, (you, other) = model(tokenizer), tokenizer.convert_tokens_to_ids(["你", "好"])
    made.generation_config.eos_token_id = [tokenizer.eos_token_id, other]
    chat = Chat(made, tokenizer)
    last = separator_id(tokenizer) if end == "separator" else other

    def generate(inputs, **options):
        assert last in options["eos_token_id"]
        return torch.cat([inputs, torch.tensor([[you, you, last, you]])], dim=1)

    monkeypatch.setattr(chat.model, "generate", generate)
    assert (chat.reply("在吗"), chat.history) == ("你你", ["在吗", "你你"])


def test_the_backward_model_chooses(tokenizer, monkeypatch):
    chat = Chat(model(tokenizer), tokenizer, candidates=4, reranker=model(tokenizer, 1), history=["你好", "再见"])
    replies = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("一", "二三", "在不在", "吃了吗")]
    chat.history.append("吃了吗")
    expected = []
    for reply in replies:  # by probabilities, token after token, of the reversed training text
        text = tokenizer.decode(reply) + "[SEP]吃了吗[SEP]再见[SEP]你好[SEP]"
        ids = tokenizer("<s>" + text, add_special_tokens=False)["input_ids"]
        total = 0.0
        for place in range(len(reply) + 2, len(ids)):
            logits = chat.reranker(torch.tensor([ids[:place]])).logits[0, -1]
            total -= logits.softmax(-1)[ids[place]].log().item()
        expected.append(total)
    assert chat.backward_losses(replies) == pytest.approx(expected, rel=1e-4)
    assert max(expected) - min(expected) > 1e-2
    chat.history.pop()
    monkeypatch.setattr(chat, "draw", lambda: replies)
    best = replies[expected.index(min(expected))]
    assert chat.reply("吃了吗") == tokenizer.decode(best)
    assert best != replies[0]
