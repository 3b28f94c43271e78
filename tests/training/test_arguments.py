import dataclasses
import json
import traceback

import pytest
import yaml
from transformers import Seq2SeqTrainingArguments, TrainingArguments

from vanillaformer import tokenization
from vanillaformer.console.parsing import parse, was_given
from vanillaformer.data.arguments import LanguageModelDataArguments
from vanillaformer.training.arguments import ModelArguments
from vanillaformer.training.tasks import PROGRAMS, task_of
from vanillaformer.training.tasks.translation import TranslationTokenizerArguments

OURS = (ModelArguments, LanguageModelDataArguments, TranslationTokenizerArguments)


def model(*words: str) -> ModelArguments:
    return parse(ModelArguments, words)[0]


def written(path, content) -> str:
    path.write_text(json.dumps(content) if path.suffix == ".json" else yaml.safe_dump(content))
    return str(path)


def test_command_line_fills_every_dataclass_and_what_was_given_is_known(tmp_path):
    words = ["--preset", "gpt2", "--block-size=64", "--tokenizer_algorithm", "bpe", "--no_joint_vocabulary"]
    words += ["--learning_rate", "1e-3"]
    one, data, tokenizer, training = parse((*OURS, Seq2SeqTrainingArguments), words)
    assert (one.preset, data.block_size, tokenizer.tokenizer_algorithm) == ("gpt2", 64, "bpe")
    assert tokenizer.joint_vocabulary is False
    assert training.learning_rate == 1e-3
    file = written(tmp_path / "run.yaml", {"block_size": 128, "train_file": ["a.txt", "b.txt"]})
    words = [file, "--set", "norm=rms_norm", "--no_joint_vocabulary", "--learning_rate=5e-5"]
    one, data, tokenizer, training = parse((*OURS, Seq2SeqTrainingArguments), words)
    found = [one.given, data.given, tokenizer.given, training.given]
    assert found == [{"overrides"}, {"block_size", "train_file"}, {"joint_vocabulary"}, {"learning_rate"}]
    assert was_given(training, "learning_rate")
    assert not was_given(training, "max_steps")
    assert was_given(ModelArguments(), "preset")  # made in Python


@pytest.mark.parametrize("theirs", [TrainingArguments, Seq2SeqTrainingArguments])
@pytest.mark.parametrize("program", PROGRAMS)
def test_no_field_is_also_one_of_transformers(program, theirs):
    own = [entry.name for kind in task_of(program).arguments[:-1] for entry in dataclasses.fields(kind)]
    assert len(own) == len(set(own))
    assert not set(own) & {entry.name for entry in dataclasses.fields(theirs)}


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_field_has_help(program):
    kinds = task_of(program).arguments
    missing = [entry.name for kind in kinds for entry in dataclasses.fields(kind) if not entry.metadata.get("help")]
    assert missing == []


@pytest.mark.parametrize("name", ["settings.yaml", "settings.yml", "settings.json"])
def test_file_then_command_line(tmp_path, name):
    content = {"preset": "gpt", "set": {"norm": "rms_norm", "hidden_size": 64}, "block-size": 32, "bf16": False}
    content |= {"learning_rate": "1e-3", "joint_vocabulary": False, "lr_scheduler_kwargs": {"min_lr": 0.1}}
    content["max_train_samples"] = 9
    words = [written(tmp_path / name, content), "--set", "hidden_size=128", "--max_train_samples", "7"]
    one, data, tokenizer, training = parse((*OURS, TrainingArguments), words)
    assert one.config_overrides() == {"norm": "rms_norm", "hidden_size": 128}
    assert (one.preset, data.block_size, data.max_train_samples) == ("gpt", 32, 7)
    assert tokenizer.joint_vocabulary is False
    assert (training.learning_rate, training.lr_scheduler_kwargs) == (1e-3, {"min_lr": 0.1})


def test_file_may_list_overrides_unset_a_default_say_no_or_be_empty(tmp_path):
    path = written(tmp_path / "a.yaml", {"set": ["a=1", "b=none"], "save_total_limit": None, "use_cpu": True})
    one, training = parse((ModelArguments, task_of("train-language-model").arguments[-1]), [path])
    assert one.config_overrides() == {"a": 1, "b": "none"}
    assert training.save_total_limit is None
    (tmp_path / "a.yaml").write_text("# nothing yet\n")
    assert parse(ModelArguments, [path]) == (ModelArguments(),)
    text = "save_strategy: no\neval_strategy: no\nbf16: off\nuse_cpu: on\npacking: yes\n"
    text += "set: {attention_bias: off, tie: true}\n"
    (tmp_path / "a.yaml").write_text("\ufeff" + text)
    classes = ModelArguments, LanguageModelDataArguments, TrainingArguments
    one, data, training = parse(classes, [str(tmp_path / "a.yaml")])
    assert (training.save_strategy, training.eval_strategy) == ("no", "no")
    assert (training.bf16, training.use_cpu, data.packing) == (False, True, True)
    assert one.config_overrides() == {"attention_bias": False, "tie": True}


def test_set_is_read_as_yaml_and_the_last_wins():
    one = model("--set", "a=1", "b=1e-4", "c=none", "d=true", "--set", "a=[2, 3]", "e=", "f={x: 1.5}", "g=x=y")
    expected = {"a": [2, 3], "b": 1e-4, "c": "none", "d": True, "e": None, "f": {"x": 1.5}, "g": "x=y"}
    assert one.config_overrides() == expected
    for entry in ("hidden_size", "=3", "hidden size=3", "a=[1"):
        with pytest.raises(ValueError, match="--set"):
            model("--set", entry).config_overrides()


@pytest.mark.parametrize(("name", "text", "message"), [
    ("a.yaml", "hidden: 3", "a.yaml: unknown key 'hidden'"),
    ("a.yaml", "presett: gpt", "unknown key 'presett'; did you mean 'preset'"),
    ("a.json", "{", "a.json is not valid JSON"), ("a.yaml", "a: [", "a.yaml is not valid YAML"),
    ("a.yaml", "- preset", "mapping"),
    ("a.yaml", "block_size: 8\nblock_size: 9", r"a.yaml .* 'block_size' is given twice \(line 2\)"),
    ("a.json", '{"block_size": 8, "block_size": 9}', "a.json .* 'block_size' is given twice"),
    ("a.yaml", "block_size: 8\nblock-size: 9", "a.yaml: block_size is given twice, also as 'block-size'"),
    ("a.yaml", "validation_fraction: null", "a.yaml: validation_fraction cannot be null"),
    ("a.yaml", "overrides:", "a.yaml: overrides cannot be null"),
    ("a.yaml", "validation_fraction: [1, 2]", r"validation_fraction .* \['1', '2'\]"),
    ("a.yaml", "validation_fraction: []", r"validation_fraction .* \[\]"),
    ("a.yaml", "block_size: {a: 1}", "block_size .* {'a': 1}"),
    ("a.yaml", "set: [{a: 1}]", r"overrides .* \[{'a': 1}\]"),
    ("a.yaml", "data_description: 2001-99-99", "a.yaml is not valid YAML: month"),
    ("a.json", "[" * 100_000, "a.json is not valid JSON: maximum recursion"),
    ("a.yaml", b"preset: \xff", r"a.yaml is not valid YAML: .* byte 0xff in position 8"),
    ("a.yaml", None, "a.yaml' does not exist or is not a file"),
])  # fmt: skip
def test_files_that_mean_nothing(tmp_path, name, text, message):
    if text is not None:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=message):
        parse((ModelArguments, LanguageModelDataArguments), [str(tmp_path / name)])


def test_items_of_a_list_may_begin_with_dashes_and_tokenizer_arguments_are_those_of_train(tmp_path):
    path = written(tmp_path / "a.yaml", {"extra_special_tokens": ["--x", "-y", 3], "report_to": ["none"]})
    tokenizer, training = parse((TranslationTokenizerArguments, TrainingArguments), [path])
    assert tokenizer.extra_special_tokens == ["--x", "-y", "3"]
    assert training.report_to == []
    (tokenizer,) = parse(
        TranslationTokenizerArguments,
        [written(tmp_path / "b.yaml", {"extra_special_tokens": ["--x"]}), "--extra_special_tokens", "z"],
    )
    assert tokenizer.extra_special_tokens == ["z"]
    words = ["--tokenizer_algorithm", "word", "--tokenizer_vocab_size", "40", "--lowercase"]
    (arguments,) = parse(TranslationTokenizerArguments, words)
    tokenizer = tokenization.train(["A house", "a home"] * 3, **arguments.training_options())
    assert len(tokenizer) <= 40
    assert tokenizer.tokenize("HOUSE") == ["house"]


def test_no_message_holds_a_token(tmp_path, capsys):
    token = "hf_" + "secret" * 5
    (tmp_path / "a.yaml").write_text(f"hub_token: {token}: x")
    with pytest.raises(ValueError, match="not valid YAML") as error:
        parse(ModelArguments, [str(tmp_path / "a.yaml")])
    assert token not in "".join(traceback.format_exception(error.value))
    with pytest.raises(SystemExit):
        model("--hub_tokem", token)
    said = capsys.readouterr().err
    assert "unrecognized arguments: --hub_tokem hf_..." in said
    assert token not in said


@pytest.mark.parametrize(("words", "message"), [
    (["--presett", "gpt"], "did you mean '--preset'"), (["--pre", "gpt"], "unrecognized"),
    (["--dtype", "int8"], "invalid choice: 'int8'"), (["stray"], "unrecognized arguments: stray"),
    ({"block_size": "many"}, "invalid int value: 'many'"),
])  # fmt: skip
def test_bad_command_line_or_value_in_a_file(words, message, tmp_path, capsys):
    words = [written(tmp_path / "a.yaml", words)] if isinstance(words, dict) else words
    with pytest.raises(SystemExit):
        parse((ModelArguments, LanguageModelDataArguments), words)
    assert message in capsys.readouterr().err
