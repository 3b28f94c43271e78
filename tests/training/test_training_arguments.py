"""Settings of the training programs that cannot work are refused at once, and those that fit each other are set."""

import pytest

from vanillaformer.console.parsing import parse
from vanillaformer.data.arguments import (
    ClassifierDataArguments,
    DataArguments,
    LanguageModelDataArguments,
    TranslationDataArguments,
)
from vanillaformer.training.arguments import TokenizerArguments
from vanillaformer.training.tasks.classification import ClassifierTrainingArguments
from vanillaformer.training.tasks.translation import TranslationTrainingArguments


def settings(*words: str) -> ClassifierTrainingArguments:
    return parse(ClassifierTrainingArguments, ["--use_cpu", *words])[0]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ("steps", 0.1, "steps", 0.1, True)),
        (["--save_steps", "500"], ("steps", 500, "steps", 500, True)),
        (["--eval_steps", "200"], ("steps", 200, "steps", 200, True)),
        (["--save_steps", "400", "--eval_steps", "200"], ("steps", 200, "steps", 400, True)),
        (["--save_steps", "0.3", "--eval_steps", "0.1"], ("steps", 0.1, "steps", 0.3, True)),
        (["--save_strategy", "no"], ("steps", 0.1, "no", 0.1, False)),
        (["--eval_strategy", "no"], ("no", 0.1, "steps", 0.1, False)),
        (["--eval_strategy", "no", "--save_steps", "7"], ("no", 7, "steps", 7, False)),
        (["--eval_strategy", "epoch"], ("epoch", 0.1, "epoch", 0.1, True)),
    ],
)
def test_saving_and_evaluating_follow_each_other(words, expected, capsys) -> None:
    found = settings(*words)
    assert (
        *(str(found.eval_strategy.value), found.eval_steps, str(found.save_strategy.value), found.save_steps),
        found.load_best_model_at_end,
    ) == expected
    said = "--save_strategy no: without checkpoints, the last weights become the model, not the best.\n"
    assert capsys.readouterr().out == (said if words[:2] == ["--save_strategy", "no"] else "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--save_strategy never", "--save_strategy never: choose from steps, epoch, best, no"),
        ("--eval_strategy False", "--eval_strategy False: choose from steps, epoch, no"),
        (
            "--save_strategy epoch",
            "--save_strategy epoch and --eval_strategy steps: .* make them equal, or give --load",
        ),
        ("--save_steps 500 --eval_steps 0.1", "--save_steps 500 and --eval_steps 0.1: give both in steps or both as"),
        ("--save_steps 500 --eval_steps 200", "--save_steps 500 and --eval_steps 200: the first must be a multiple"),
        ("--eval_steps 0", "--eval_steps 0.0: it must be a whole number of steps, or a fraction of the run"),
        ("--eval_steps 2.5", "--eval_steps 2.5: it must be a whole number"),
        ("--eval_steps nan", "--eval_steps nan: it must be a whole number"),
        ("--save_steps -1", "--save_steps -1.0: it must be a whole number"),
        ("--logging_steps 0", "--logging_steps 0.0: it must be a whole number"),
        ("--per_device_train_batch_size 0", "--per_device_train_batch_size 0: it must be at least 1"),
        ("--per_device_eval_batch_size -8", "--per_device_eval_batch_size -8: it must be at least 1"),
        ("--gradient_accumulation_steps 0", "--gradient_accumulation_steps 0: it must be at least 1"),
        ("--learning_rate -1", "--learning_rate -1.0: it must be 0 or more"),
        ("--learning_rate inf", "--learning_rate inf: it must be 0 or more"),
        ("--learning_rate nan", "--learning_rate nan: it must be 0 or more"),
        ("--warmup_steps -1", "--warmup_steps -1.0: it must be 0 or more"),
        ("--adam_beta2 1", "--adam_beta2 1.0: it must be at least 0 and less than 1"),
        ("--label_smoothing_factor 2", "--label_smoothing_factor 2.0: it must be at least 0 and less than 1"),
        ("--num_train_epochs 0", "--num_train_epochs 0.0: it must be greater than 0"),
        ("--max_steps 0", "--max_steps 0: it must be at least 1, or -1 for as many as --num_train_epochs has"),
        ("--save_total_limit 0", "--save_total_limit 0: it must be at least 1"),
        ("--seed -1", "--seed -1: it must be from 0 to 4294967295"),
        ("--lr_scheduler_kwargs x", "--lr_scheduler_kwargs x: it must be a JSON object, such as"),
        ("--fsdp_config {", "--fsdp_config {: it must be a JSON object, such as"),
        ("--neftune_noise_alpha -1", "--neftune_noise_alpha -1.0: it must be 0 or more"),
        ("--report_to wandbb", "--report_to wandbb: choose from none, all, azure_ml, .*wandb"),
        ("--report_to neptune", r"--report_to neptune: it is not installed \(pip install neptune\)"),
    ],
)
def test_settings_that_cannot_work(words, message) -> None:
    with pytest.raises(ValueError, match=message):
        settings(*words.split())


@pytest.mark.parametrize("name", ["num_beams", "generation_num_beams", "generation_max_length"])
def test_beams_of_a_translator(name) -> None:
    with pytest.raises(ValueError, match=f"--{name} 0: it must be at least 1"):
        parse(TranslationTrainingArguments, ["--use_cpu", f"--{name}", "0"])


@pytest.mark.parametrize(
    ("kind", "words", "message"),
    [
        (LanguageModelDataArguments, "--block_size 0", "--block_size 0: it must be at least 1"),
        (ClassifierDataArguments, "--max_length -1", "--max_length -1: it must be at least 1"),
        (TranslationDataArguments, "--max_source_length 0", "--max_source_length 0: it must be at least 1"),
        (TranslationDataArguments, "--embedded_size 99", "--embedded_size 99: it must be at least 100"),
        (DataArguments, "--preprocessing_num_workers 0", "--preprocessing_num_workers 0: it must be at least 1"),
        (DataArguments, "--validation_fraction 1.5", "--validation_fraction 1.5: it must lie between 0 and 1"),
    ],
)
def test_numbers_about_data(kind, words, message) -> None:
    with pytest.raises(ValueError, match=message):
        parse(kind, words.split())


@pytest.mark.parametrize("name", ["tokenizer_vocab_size", "tokenizer_min_frequency"])
def test_numbers_about_tokenizers(name) -> None:
    with pytest.raises(ValueError, match=f"--{name} 0: it must be at least 1"):
        parse(TokenizerArguments, [f"--{name}", "0"])
