"""Every option of transformers' training arguments works or is refused by name, before anything is done."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
from transformers import Seq2SeqTrainingArguments
from transformers.trainer_utils import SchedulerType

from vanillaformer.scripts import train_classifier, train_language_model, train_translation
from vanillaformer.training.trainer.optimizers import OPTIMIZERS
from vanillaformer.training.training_arguments import REFUSED

FIELDS = {entry.name: entry for entry in dataclasses.fields(Seq2SeqTrainingArguments)}
DOCS = Path(__file__).parents[2] / "docs" / "training.md"
# Those that do what transformers' documentation says
WORKS = """
    output_dir per_device_train_batch_size num_train_epochs max_steps learning_rate warmup_steps weight_decay
    adam_beta1 adam_beta2 adam_epsilon gradient_accumulation_steps average_tokens_across_devices max_grad_norm bf16
    tf32 activation_checkpointing activation_checkpointing_kwargs gradient_checkpointing gradient_checkpointing_kwargs
    torch_compile torch_compile_backend torch_compile_mode neftune_noise_alpha torch_empty_cache_steps logging_strategy
    logging_steps logging_first_step log_on_each_node logging_nan_inf_filter include_num_input_tokens_seen log_level
    log_level_replica disable_tqdm report_to run_name project trackio_space_id trackio_bucket_id
    trackio_static_space_id eval_strategy eval_delay per_device_eval_batch_size eval_on_start eval_use_gather_object
    eval_accumulation_steps save_on_each_node save_total_limit push_to_hub hub_token hub_private_repo hub_model_id
    hub_revision load_best_model_at_end full_determinism seed data_seed dataloader_drop_last dataloader_pin_memory
    dataloader_prefetch_factor dataloader_multiprocessing_context ddp_find_unused_parameters ddp_bucket_cap_mb
    ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout resume_from_checkpoint generation_max_length
    generation_num_beams
"""
OF_TRANSLATION = ("sortish_sampler", "generation_config")
VALUES = {
    "include_for_metrics": "inputs", "label_names": "text", "length_column_name": "size", "parallelism_config": "2",
    "liger_kernel_config": '{"rope": true}', "fsdp_config": '{"version": 2}', "generation_config": "folder",
    "accelerator_config": '{"split_batches": true}', **dict.fromkeys(("do_train", "do_eval", "do_predict"), "False"),
}  # fmt: skip
"""Values of refused options, of others the opposite of their default."""


def refusal(words: list[str], capsys, program=train_classifier) -> str:
    """Return the line that a program ends with; its data does not exist, which it would say if it came to it."""
    with pytest.raises(SystemExit) as ended:
        program.main([*words, "--train_file", "nowhere.csv", "--use_cpu", "--max_steps", "2"])
    return ended.value.code if isinstance(ended.value.code, str) else capsys.readouterr().err.splitlines()[-1]


def test_every_option_works_is_explained_in_the_documentation_or_refused_there() -> None:
    table = DOCS.read_text(encoding="utf-8").partition("| option | in the programs |")[2]
    documented = dict(re.findall(r"^\| `--(\w+)` \| (.*) \|$", table, flags=re.MULTILINE))
    assert sorted([*WORKS.split(), *documented]) == sorted(FIELDS)
    refused = {name: text for name, text in documented.items() if text.startswith("refused: ")}
    assert refused == {name: f"refused: {text}" for name, text in REFUSED.items()}
    named = re.findall(r"`--(\w+)", DOCS.read_text(encoding="utf-8"))
    helps = {name: entry.metadata.get("help", "") for name, entry in FIELDS.items()}
    assert not [name for name in named if helps.get(name, "").startswith("Deprecated")]


@pytest.mark.parametrize("name", REFUSED)
def test_refused_options(name: str, capsys) -> None:
    value = VALUES.get(name) or str(not FIELDS[name].default)
    line = refusal([f"--{name}", value], capsys, train_translation if name in OF_TRANSLATION else train_classifier)
    assert f"--{name}" in line
    if name not in ("parallelism_config", "liger_kernel_config"):  # whose values the parser cannot read
        assert line.endswith(f"is not supported: {REFUSED[name]}")
        assert str(next(iter(json.loads(value))) if value[0] == "{" else value) in line


@pytest.mark.parametrize(("words", "said"), [
    ("--dataloader_persistent_workers true", "--dataloader_persistent_workers True needs --dataloader_num_w"),
    ("--dataloader_prefetch_factor 2", "--dataloader_prefetch_factor 2 needs --dataloader_num_workers"),
    ("--dataloader_multiprocessing_context spawn", "--dataloader_multiprocessing_context spawn needs --data"),
    ("--hub_strategy all_checkpoints", "--hub_strategy all_checkpoints is not supported"),
    ("--debug tpu_metrics_debug", "is not supported: choose underflow_overflow"),
    ("--torch_compile_mode fast", "--torch_compile_mode fast: choose from default, "),
    ("--torch_compile_backend best", "--torch_compile_backend best: choose from no, eager, "),
    ("--ddp_backend gloo", "--ddp_backend gloo: torchrun --nproc_per_node 2 ... starts the processes that it is for"),
    ("--optim adamw_8bit", "--optim adamw_8bit: You need to install `bitsandbytes`"),
    ("--optim galore_adamw", "--optim galore_adamw needs --optim_target_modules, such as all-linear"),
    ("--optim_target_modules q_proj", "it is for the optimizers GaLore and APOLLO, not for --optim adamw_torch"),
    ("--optim muon --optim_args a=1", "--optim_args a=1: --optim muon takes no options"),
    ("--attn_implementation flex_attention", "--attn_implementation flex_attention cannot train on a CPU"),
    ("--lr_scheduler_type cosine_with_min_lr", "--lr_scheduler_type cosine_with_min_lr: "),
    ('--lr_scheduler_kwargs {"cycles":2}', '--lr_scheduler_type linear --lr_scheduler_kwargs {"cycles": 2}: '),
    ("--num-hidden-layers=2", "the model's configuration, --set num_hidden_layers=2"),
])  # fmt: skip
def test_options_that_cannot_work_are_refused_before_data_is_read(words: str, said: str, capsys) -> None:
    assert said in refusal(words.split(), capsys)


def test_language_models_have_no_order_that_would_be_that_of_the_data(capsys) -> None:
    words = ["--train_sampling_strategy", "batch_rebalance"]
    assert "invalid choice: 'batch_rebalance'" in refusal(words, capsys, train_language_model)


NEEDS = {"cosine_with_min_lr": '{"min_lr": 1e-5}', "cosine_warmup_with_min_lr": '{"min_lr": 1e-5}'}


@pytest.mark.parametrize("name", [*(each.value for each in SchedulerType), *OPTIMIZERS])
def test_every_schedule_and_optimizers_that_transformers_does_not_have(name: str, capsys) -> None:
    options = ["--lr_scheduler_kwargs", NEEDS[name]] if name in NEEDS else []
    option = "--optim" if name in OPTIMIZERS else "--lr_scheduler_type"
    assert "nowhere.csv" in refusal([option, name, *options], capsys)
