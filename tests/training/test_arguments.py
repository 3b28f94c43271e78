"""Settings of the training programs that cannot work are refused at once, and those that fit each other are set."""

import dataclasses
import json
import re
import traceback
from typing import Any

import pytest
import yaml
from refusals import refused
from transformers import Seq2SeqTrainingArguments, TrainingArguments

from vanillaformer import tokenization
from vanillaformer.console.parsing import parse, was_given
from vanillaformer.data import arguments
from vanillaformer.data.arguments import LanguageModelDataArguments
from vanillaformer.training.arguments import PARTNERS, Arguments, ModelArguments, TokenizerArguments, report_unused
from vanillaformer.training.tasks import PROGRAMS, task_of
from vanillaformer.training.tasks.classification import ClassifierTrainingArguments
from vanillaformer.training.tasks.language_model import LanguageModelTrainingArguments
from vanillaformer.training.tasks.translation import TranslationTokenizerArguments, TranslationTrainingArguments

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


MASKED, SAMPLED, MUON, WARMUP, EMA, PIECES, STREAMED = (list(names) for names in PARTNERS)


@pytest.mark.parametrize(("more", "unused"), [
    ("--tokenizer_algorithm unigram", MASKED + SAMPLED + MUON + WARMUP + EMA + PIECES + STREAMED),
    ("--objective masked --optim muon --ema_decay 0.9 --lr_scheduler_type linear", SAMPLED + STREAMED),
    ("--scheduled_sampling linear --scheduled_sampling_k 5 --streaming --max_steps 9", MASKED + MUON + WARMUP + EMA),
])  # fmt: skip
def test_an_option_without_the_one_that_it_belongs_to_is_named(more, unused, capsys):
    given = "--mlm_probability 0.2 --scheduled_sampling_k 5 --scheduled_sampling_floor 0.1 --muon_momentum 0.9 "
    given += "--muon_lr_factor 2 --ema_warmup False --streaming_buffer 9 --tokenizer_samples 9 "
    given += "--warmup_steps 9 --lr_scheduler_type constant --tokenizer_min_frequency 3"
    kinds = (*OURS, LanguageModelTrainingArguments)
    report_unused(Arguments(*parse(kinds, f"{given} {more}".split())))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [f"--{name}" for name in unused]
    assert all(" is not used without --" in line for line in lines)
    report_unused(Arguments(*parse(kinds, more.split())))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_field_has_help_and_none_is_also_one_of_transformers(program):
    *kinds, training = (dataclasses.fields(kind) for kind in task_of(program).arguments)
    own = [entry.name for fields in kinds for entry in fields]
    assert len(own) == len(set(own))
    assert not set(own) & {entry.name for entry in dataclasses.fields(Seq2SeqTrainingArguments)}
    assert not [entry.name for fields in (*kinds, training) for entry in fields if not entry.metadata.get("help")]


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
        refused("--set", model("--set", entry).config_overrides)


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
def test_settings_files_that_cannot_be_read(tmp_path, name, text, message):
    if text is not None:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(message, parse, (ModelArguments, LanguageModelDataArguments), [str(tmp_path / name)])


def test_items_of_a_list_may_begin_with_dashes_and_tokenizer_arguments_are_those_of_train(tmp_path):
    path = written(tmp_path / "a.yaml", {"extra_special_tokens": ["--x", "-y", 3], "report_to": ["none"]})
    tokenizer, training = parse((TranslationTokenizerArguments, TrainingArguments), [path])
    assert tokenizer.extra_special_tokens == ["--x", "-y", "3"]
    assert training.report_to == []
    file = written(tmp_path / "b.yaml", {"extra_special_tokens": ["--x"]})
    (tokenizer,) = parse(TranslationTokenizerArguments, [file, "--extra_special_tokens", "z"])
    assert tokenizer.extra_special_tokens == ["z"]
    again = [file, "--extra_special_tokens", "z", "y", "--extra_special_tokens=x"]
    assert parse(TranslationTokenizerArguments, again)[0].extra_special_tokens == ["x"]
    words = ["--tokenizer_algorithm", "word", "--tokenizer_vocab_size", "40", "--lowercase"]
    (arguments,) = parse(TranslationTokenizerArguments, words)
    tokenizer = tokenization.train(["A house", "a home"] * 3, **arguments.training_options())
    assert len(tokenizer) <= 40
    assert tokenizer.tokenize("HOUSE") == ["house"]


def test_no_message_holds_a_token(tmp_path):
    token = "hf_" + "secret" * 5
    (tmp_path / "a.yaml").write_text(f"hub_token: {token}: x")
    with pytest.raises(ValueError, match="not valid YAML") as error:
        parse(ModelArguments, [str(tmp_path / "a.yaml")])
    assert token not in "".join(traceback.format_exception(error.value))


@pytest.mark.parametrize(("words", "message"), [
    (["--pre", "gpt"], "unrecognized"), (["stray"], "unrecognized arguments: stray"),
    ({"block_size": "many"}, "invalid int value: 'many'"),
])  # fmt: skip
def test_bad_command_line_or_value_in_a_file(words, message, tmp_path, capsys):
    words = [written(tmp_path / "a.yaml", words)] if isinstance(words, dict) else words
    with pytest.raises(SystemExit):
        parse((ModelArguments, LanguageModelDataArguments), words)
    assert message in capsys.readouterr().err


CLASSIFIER, TRANSLATION = ClassifierTrainingArguments, TranslationTrainingArguments
# By what has the options: command lines whose error names the options before "|" with their values.
CANNOT_WORK = {
    CLASSIFIER: """
        --save_strategy never; --eval_strategy False; --save_strategy epoch; --save_total_limit 0; --save_steps -1
        --save_steps 500 --eval_steps 0.1; --save_steps 500 --eval_steps 200; --eval_steps 0; --eval_steps 2.5
        --eval_steps nan; --logging_steps 0; --per_device_train_batch_size 0; --per_device_eval_batch_size -8
        --gradient_accumulation_steps 0; --learning_rate -1; --learning_rate inf; --learning_rate nan
        --adam_beta2 1; --label_smoothing_factor 2; --num_train_epochs 0; --max_steps 0; --neftune_noise_alpha -1
        --lr_scheduler_kwargs x; --warmup_steps -1; --seed -1; --report_to wandbb; --report_to neptune
        --lora_rank -1; --lora_dropout 1.0 | --lora_rank 2; --lora_alpha 8; --lora_targets k_proj
        --lora_rank 2 | --lora_alpha 0; --lora_rank 2 --freeze norm; --lora_rank 2 --ema_decay 0.9
        --lora_rank 2 --average_checkpoints 3; --ema_decay 1.0; --ema_decay 0.9 --average_checkpoints 2
        --average_checkpoints -1; --average_checkpoints 2 --save_strategy no; --early_stopping_patience -1
        --early_stopping_patience 2 --eval_strategy no; --r_drop -1; --token_dropout 1.0; --muon_momentum 1
        --muon_momentum -0.1; --muon_lr_factor 0""",
    TRANSLATION: """
        --num_beams 0; --generation_num_beams 0; --generation_max_length 0; --length_penalty 2 | --num_beams 1
        --early_stopping True | --num_beams 1; --guided_attention -1; --guided_attention_sigma 0
        --scheduled_sampling_floor 1.5; --scheduled_sampling_k 0 | --scheduled_sampling linear
        --scheduled_sampling_k 2.0 | --scheduled_sampling exponential""",
    arguments.LanguageModelDataArguments: "--block_size 0; --tokenizer_samples 0",
    arguments.ClassifierDataArguments: "--max_length -1",
    arguments.TranslationDataArguments: "--max_source_length 0; --embedded_size 99",
    arguments.DataArguments: """
        --preprocessing_num_workers 0; --validation_fraction 1.0; --max_test_samples 0; --test_fraction 1.0
        --test_fraction -0.1; --streaming_buffer -1""",
    TokenizerArguments: "--tokenizer_vocab_size 0; --tokenizer_min_frequency 0",
}
LINES = [(kind, line) for kind, lines in CANNOT_WORK.items() for line in re.split(r"; |\n\s*", lines.strip())]


def settings(*words: str, kind: Any = CLASSIFIER) -> Any:
    return parse(kind, [*words, "--use_cpu"] if kind in (CLASSIFIER, TRANSLATION) else list(words))[0]


@pytest.mark.parametrize(("kind", "line"), LINES)
def test_settings_that_cannot_work(kind: type, line: str) -> None:
    words = line.replace(" | ", " ").split()
    named = re.findall(r"(--\w+) (\S+)", line.partition("|")[0])
    with pytest.raises(ValueError, match="|".join(name for name, _ in named)) as error:
        settings(*words, kind=kind)
    for name, value in named:  # a number may be written as a fraction, and a word as a list
        assert re.search(rf"{name} (\[')?{re.escape(value)}(\.0)?('\])?(?![\w.]\S)", str(error.value)), name


@pytest.mark.parametrize(("words", "expected"), [
    ([], ("steps", 0.1, "steps", 0.1, True)),
    (["--save_steps", "500"], ("steps", 500, "steps", 500, True)),
    (["--eval_steps", "200"], ("steps", 200, "steps", 200, True)),
    (["--save_steps", "400", "--eval_steps", "200"], ("steps", 200, "steps", 400, True)),
    (["--save_steps", "0.3", "--eval_steps", "0.1"], ("steps", 0.1, "steps", 0.3, True)),
    (["--save_strategy", "no"], ("steps", 0.1, "no", 0.1, False)),
    (["--eval_strategy", "no"], ("no", 0.1, "steps", 0.1, False)),
    (["--eval_strategy", "no", "--save_steps", "7"], ("no", 7, "steps", 7, False)),
    (["--eval_strategy", "epoch"], ("epoch", 0.1, "epoch", 0.1, True)),
])  # fmt: skip
def test_saving_and_evaluating_follow_each_other(words, expected, capsys) -> None:
    found = settings(*words)
    evaluating = str(found.eval_strategy.value), found.eval_steps
    saving = str(found.save_strategy.value), found.save_steps
    assert (*evaluating, *saving, found.load_best_model_at_end) == expected
    said = "--save_strategy no: without checkpoints, the last weights become the model, not the best.\n"
    assert capsys.readouterr().out == (said if words[:2] == ["--save_strategy", "no"] else "")


def test_objective_names_the_folder() -> None:
    for objective, name in (("masked", "masked"), ("mlm+nsp", "mlm_nsp")):
        found = LanguageModelTrainingArguments(use_cpu=True, objective=objective)
        assert found.output_dir == f"runs/{name}_language_model"
