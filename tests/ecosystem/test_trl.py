"""TRL's SFTTrainer trains a decoder on texts and on dialogues; its commands start from folders of ours."""

import json
import subprocess
import sys
from itertools import pairwise

import pytest
import torch
from datasets import Dataset
from modeling.toys import assert_close
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

from vanillaformer import VanillaDecoderConfig, VanillaDecoderForCausalLM

from .tiny import SIZES, sentences, tokenizer_of

STEPS = 10


def texts() -> Dataset:
    return Dataset.from_dict({"text": sentences(80)})


def dialogues() -> Dataset:
    """Each sentence in two turns: what it is about, and what that does."""
    made = []
    for text in sentences(80):
        *subject, rest = text.split(" ", 3)
        made.append([{"role": "user", "content": " ".join(subject)}, {"role": "assistant", "content": rest}])
    return Dataset.from_dict({"messages": made})


@pytest.mark.parametrize("data", [texts, dialogues])
def test_ten_steps(data, tmp_path):
    tokenizer = tokenizer_of("decoder")
    model = VanillaDecoderForCausalLM(VanillaDecoderConfig(vocab_size=len(tokenizer), **SIZES))
    settings = SFTConfig(
        output_dir=str(tmp_path / "run"), max_steps=STEPS, per_device_train_batch_size=8, learning_rate=1e-2,
        lr_scheduler_type="constant", max_length=48, logging_steps=1, report_to=[], use_cpu=True, bf16=False,
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = SFTTrainer(model=model, args=settings, train_dataset=data(), processing_class=tokenizer)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == STEPS
    assert losses[-1] < 0.7 * losses[0]

    trainer.save_model(str(tmp_path / "saved"))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved").eval()
    inputs = AutoTokenizer.from_pretrained(tmp_path / "saved")(sentences(1), return_tensors="pt")
    with torch.no_grad():
        assert_close(loaded(**inputs).logits, trainer.model.eval()(**inputs).logits, "logits of the saved model")
        assert loaded(**inputs, labels=inputs["input_ids"]).loss < losses[0]


def test_its_commands_start_from_a_folder_of_ours(saved, tmp_path):
    """What `trl sft` starts, then `trl dpo` on what that saved: no line of either imports this package."""
    texts = sentences(40)
    rows = {
        "sft": [{"text": text} for text in texts],
        "dpo": [{"prompt": text[:12], "chosen": text[12:], "rejected": other[12:]} for text, other in pairwise(texts)],
    }
    model = saved(VanillaDecoderForCausalLM)
    for command, made in rows.items():
        data, output = tmp_path / f"{command}_data", tmp_path / command
        data.mkdir()
        (data / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")
        words = ["--model_name_or_path", model, "--trust_remote_code", "--dataset_name", data, "--output_dir", output]
        words += ["--max_steps", "4", "--per_device_train_batch_size", "8", "--learning_rate", "1e-2"]
        words += ["--max_length", "48", "--logging_steps", "1", "--report_to", "none", "--use_cpu", "--bf16", "False"]
        program = [sys.executable, "-m", f"trl.scripts.{command}", *map(str, words)]
        done = subprocess.run(program, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        state = json.loads((output / "checkpoint-4" / "trainer_state.json").read_text(encoding="utf-8"))
        losses = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
        assert len(losses) == 4
        assert losses[-1] < losses[0]
        model = output
    loaded, info = AutoModelForCausalLM.from_pretrained(model, output_loading_info=True)
    assert type(loaded) is VanillaDecoderForCausalLM
    assert not info["missing_keys"]
