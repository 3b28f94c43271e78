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


def log_probability(logits: torch.Tensor, targets: list[int]) -> float:
    """Of tokens, given the logits (T, V) that predict them."""
    return logits.log_softmax(-1)[range(len(targets)), targets].sum().item()


def of_decoder(model: Any, tokenizer: Any, question: str, choice: str) -> float:
    """The log-likelihood of a choice after a question, as the model gives it."""
    prompt, ids = (tokenizer(text)["input_ids"] for text in (question, f"{question} {choice}"))
    assert ids[: len(prompt)] == prompt
    return log_probability(model(torch.tensor([ids])).logits[0, len(prompt) - 1 : -1], ids[len(prompt) :])


def of_encoder_decoder(model: Any, tokenizer: Any, question: str, choice: str) -> float:
    """Its source is the question with its end token, its target the choice without one."""
    source = tokenizer(question, return_tensors="pt")["input_ids"]
    ids = tokenizer(f" {choice}", add_special_tokens=False)["input_ids"]
    return log_probability(model(source, labels=torch.tensor([ids])).logits[0], ids)


@pytest.mark.parametrize(("model_class", "backend", "likelihood"), [
    (VanillaDecoderForCausalLM, "causal", of_decoder),
    (VanillaEncoderDecoderForConditionalGeneration, "seq2seq", of_encoder_decoder),
])  # fmt: skip
@torch.no_grad()
def test_scores_are_those_of_the_model(model_class, backend, likelihood, saved, task):
    folder = saved(model_class)
    accuracy, scores = evaluated(folder, task, backend)
    model, tokenizer = tiny(model_class), AutoTokenizer.from_pretrained(folder)
    expected = [[likelihood(model, tokenizer, row["question"], choice) for choice in row["choices"]] for row in ROWS]
    assert torch.allclose(torch.tensor(scores), torch.tensor(expected), rtol=1e-4)
    right = [row.index(max(row)) == number % 3 for number, row in enumerate(expected)]
    assert accuracy == sum(right) / len(right)
