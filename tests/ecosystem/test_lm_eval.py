"""EleutherAI's harness scores our models on a local task as the model, called directly, does."""

import json
from pathlib import Path
from typing import Any

import datasets
import lm_eval
import pytest
import torch
import yaml
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import AutoTokenizer

from vanillaformer import VanillaDecoderForCausalLM, VanillaEncoderDecoderForConditionalGeneration

from .tiny import tiny

ROWS = [
    {"question": "the old ship finds the", "choices": ["red dog", "quiet river", "old small house"]},
    {"question": "one small teacher", "choices": ["sees the ship", "leaves", "the the"]},
    {"question": "a quiet dog sees the", "choices": ["river", "old teacher", "red"]},
    {"question": "the red", "choices": ["house finds", "finds house", "dog"]},
]


@pytest.fixture
def task(tmp_path, monkeypatch) -> tuple[str, TaskManager]:
    """A task of a few rows with several choices, as a file beside the data."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row | {"answer": number % 3}) + "\n" for number, row in enumerate(ROWS)))
    settings = {
        "task": "tiny_choices", "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(rows)}},
        "test_split": "test", "output_type": "multiple_choice", "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}", "doc_to_target": "answer",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }  # fmt: skip
    (tmp_path / "tiny_choices.yaml").write_text(yaml.safe_dump(settings))
    return "tiny_choices", TaskManager(include_path=str(tmp_path), include_defaults=False)


def evaluated(folder: Path, task: tuple[str, TaskManager], backend: Any) -> tuple[float, list[list[float]]]:
    """The harness's accuracy, and its log-likelihood of every choice of every row."""
    model = HFLM(pretrained=str(folder), backend=backend, device="cpu", dtype="float32", batch_size=3)
    name, manager = task
    options = {"task_manager": manager, "bootstrap_iters": 0, "log_samples": True}
    found = lm_eval.simple_evaluate(model=model, tasks=[name], **options)
    samples = sorted(found["samples"][name], key=lambda sample: sample["doc_id"])
    return found["results"][name]["acc,none"], [[resp[0][0] for resp in row["resps"]] for row in samples]


def chosen(scores: list[list[float]]) -> float:
    """The accuracy of the likeliest choice."""
    right = [row.index(max(row)) == number % 3 for number, row in enumerate(scores)]
    return sum(right) / len(right)


def log_probability(logits: torch.Tensor, targets: list[int]) -> float:
    """Of tokens, given the logits (T, V) that predict them."""
    return logits.log_softmax(-1)[range(len(targets)), targets].sum().item()


@torch.no_grad()
def test_a_language_model(saved, task):
    folder = saved(VanillaDecoderForCausalLM)
    accuracy, scores = evaluated(folder, task, "causal")
    model, tokenizer = tiny(VanillaDecoderForCausalLM), AutoTokenizer.from_pretrained(folder)
    expected = []
    for row in ROWS:
        prompt = tokenizer(row["question"])["input_ids"]
        choices = [tokenizer(f"{row['question']} {choice}")["input_ids"] for choice in row["choices"]]
        assert all(ids[: len(prompt)] == prompt for ids in choices)
        logits = [model(torch.tensor([ids])).logits[0, len(prompt) - 1 : -1] for ids in choices]
        expected.append([log_probability(of, ids[len(prompt) :]) for of, ids in zip(logits, choices)])
    assert torch.allclose(torch.tensor(scores), torch.tensor(expected), rtol=1e-4)
    assert accuracy == chosen(expected)


@torch.no_grad()
def test_an_encoder_decoder(saved, task):
    """Its source is the question with its end token, its target the choice without one."""
    folder = saved(VanillaEncoderDecoderForConditionalGeneration)
    accuracy, scores = evaluated(folder, task, "seq2seq")
    model, tokenizer = tiny(VanillaEncoderDecoderForConditionalGeneration), AutoTokenizer.from_pretrained(folder)
    expected = []
    for row in ROWS:
        source = tokenizer(row["question"], return_tensors="pt")["input_ids"]
        targets = [tokenizer(f" {choice}", add_special_tokens=False)["input_ids"] for choice in row["choices"]]
        expected.append([log_probability(model(source, labels=torch.tensor([ids])).logits[0], ids) for ids in targets])
    assert torch.allclose(torch.tensor(scores), torch.tensor(expected), rtol=1e-4)
    assert accuracy == chosen(expected)
