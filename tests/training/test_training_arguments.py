"""Settings of the training programs that cannot work are refused at once, and those that fit each other are set."""

import re
from typing import Any

import pytest

from vanillaformer.console.parsing import parse
from vanillaformer.data import arguments
from vanillaformer.training.arguments import TokenizerArguments
from vanillaformer.training.tasks.classification import ClassifierTrainingArguments
from vanillaformer.training.tasks.language_model import LanguageModelTrainingArguments
from vanillaformer.training.tasks.translation import TranslationTrainingArguments

CLASSIFIER, TRANSLATION = ClassifierTrainingArguments, TranslationTrainingArguments
# By what has the options: command lines whose error names the options before "|" with their values.
CANNOT_WORK = {
    CLASSIFIER: (*("--save_strategy never", "--eval_strategy False", "--save_strategy epoch", "--save_total_limit 0"),
                 *("--save_steps 500 --eval_steps 0.1", "--save_steps 500 --eval_steps 200", "--save_steps -1"),
                 *("--eval_steps 0", "--eval_steps 2.5", "--eval_steps nan", "--logging_steps 0", "--seed -1"),
                 *("--per_device_train_batch_size 0", "--per_device_eval_batch_size -8",
                   "--gradient_accumulation_steps 0"),
                 *("--learning_rate -1", "--learning_rate inf", "--learning_rate nan", "--warmup_steps -1",
                   "--adam_beta2 1"),
                 *("--label_smoothing_factor 2", "--num_train_epochs 0", "--max_steps 0", "--neftune_noise_alpha -1"),
                 *("--lr_scheduler_kwargs x", "--report_to wandbb", "--report_to neptune"),
                 # Adapters
                 *("--lora_rank -1", "--lora_dropout 1.0 | --lora_rank 2", "--lora_alpha 8", "--lora_targets k_proj"),
                 *("--lora_rank 2 | --lora_alpha 0", "--lora_rank 2 --freeze norm", "--lora_rank 2 --ema_decay 0.9"),
                 "--lora_rank 2 --average_checkpoints 3",
                 # Averages and early stopping
                 *("--ema_decay 1.0", "--ema_decay 0.9 --average_checkpoints 2", "--average_checkpoints -1"),
                 *("--average_checkpoints 2 --save_strategy no", "--early_stopping_patience 2 --eval_strategy no"),
                 "--early_stopping_patience -1",
                 # Losses and optimizers
                 *("--r_drop -1", "--token_dropout 1.0", "--muon_momentum 1"),
                 *("--muon_momentum -0.1", "--muon_lr_factor 0")),
    TRANSLATION: (*("--num_beams 0", "--generation_num_beams 0", "--generation_max_length 0"),
                  *("--length_penalty 2 | --num_beams 1", "--early_stopping True | --num_beams 1"),
                  *("--guided_attention -1", "--guided_attention_sigma 0", "--scheduled_sampling_floor 1.5"),
                  "--scheduled_sampling_k 0 | --scheduled_sampling linear",
                  "--scheduled_sampling_k 2.0 | --scheduled_sampling exponential"),
    arguments.LanguageModelDataArguments: ("--block_size 0",), arguments.ClassifierDataArguments: ("--max_length -1",),
    arguments.TranslationDataArguments: ("--max_source_length 0", "--embedded_size 99"),
    arguments.DataArguments: ("--preprocessing_num_workers 0", "--validation_fraction 1.5"),
    TokenizerArguments: ("--tokenizer_vocab_size 0", "--tokenizer_min_frequency 0"),
}  # fmt: skip


def settings(*words: str, kind: Any = CLASSIFIER) -> Any:
    return parse(kind, [*words, "--use_cpu"] if kind in (CLASSIFIER, TRANSLATION) else list(words))[0]


@pytest.mark.parametrize(("kind", "line"), [(kind, line) for kind, lines in CANNOT_WORK.items() for line in lines])
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
    assert (
        *(str(found.eval_strategy.value), found.eval_steps, str(found.save_strategy.value), found.save_steps),
        found.load_best_model_at_end,
    ) == expected
    said = "--save_strategy no: without checkpoints, the last weights become the model, not the best.\n"
    assert capsys.readouterr().out == (said if words[:2] == ["--save_strategy", "no"] else "")


@pytest.mark.parametrize(("objective", "name"), [("masked", "masked"), ("mlm+nsp", "mlm_nsp")])
def test_objective_names_the_folder(objective: str, name: str) -> None:
    found = LanguageModelTrainingArguments(use_cpu=True, objective=objective)
    assert found.output_dir == f"runs/{name}_language_model"
