"""Model cards: what a model was trained on, how, how good it is, and how to load it."""

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers import PreTrainedModel

from .models import HEADS, Job

PIPELINES: dict[Job, str] = {
    "translation": "translation",
    "causal": "text-generation",
    "masked": "fill-mask",
    "mlm+nsp": "fill-mask",
    "classification": "text-classification",
}
# The lines after tokenizer and model, by what the model does.
USES: dict[Job, str] = {
    "translation": """inputs = tokenizer([{example!r}], return_tensors="pt")
print({decoder}.batch_decode(model.generate(**inputs), skip_special_tokens=True))""",
    "causal": """inputs = tokenizer([{example!r}], return_tensors="pt")
print(tokenizer.batch_decode(model.generate(**inputs, max_new_tokens=32), skip_special_tokens=True))""",
    "masked": """text = {example!r}
inputs = tokenizer(text.replace("[MASK]", tokenizer.mask_token), return_tensors="pt")
logits = model(**inputs).logits[inputs["input_ids"] == tokenizer.mask_token_id]
print(tokenizer.batch_decode(logits.topk(5).indices.T))""",
    "mlm+nsp": """text, second = {example!r}, "the next sentence"
inputs = tokenizer(text.replace("[MASK]", tokenizer.mask_token), second, return_tensors="pt")
outputs = model(**inputs)
logits = outputs.prediction_logits[inputs["input_ids"] == tokenizer.mask_token_id]
print(tokenizer.batch_decode(logits.topk(5).indices.T))
print("probability that it follows:", outputs.seq_relationship_logits.softmax(-1)[0, 0].item())""",
    "classification": """inputs = tokenizer([{example!r}], return_tensors="pt")
print(model.config.id2label[model(**inputs).logits.argmax(-1).item()])""",
}
LOAD = """import vanillaformer  # makes the Auto classes know the model
from transformers import {auto_class}, AutoTokenizer

folder = {folder!r}
tokenizer = AutoTokenizer.from_pretrained(folder)
{target}model = {auto_class}.from_pretrained(folder)
{use}
"""
TARGET = 'target_tokenizer = AutoTokenizer.from_pretrained(folder, subfolder="target_tokenizer")\n'


def loading_code(job: Job, folder: str | Path, example: str, *, separate_target: bool = False) -> str:
    """Return a program that loads a saved model and uses it once.

    Args:
        job: What the model does.
        folder: Where it is saved (a folder or a Hub id).
        example: An input for it.
        separate_target: Whether the target has a tokenizer of its own.
    """
    decoder = "target_tokenizer" if separate_target else "tokenizer"
    return LOAD.format(
        auto_class=HEADS[job].auto_class.__name__,
        folder=str(folder),
        target=TARGET if separate_target else "",
        use=USES[job].format(example=example, decoder=decoder),
    )


def model_card(
    job: Job,
    model: PreTrainedModel,
    *,
    name: str,
    code: str,
    command: str,
    data: Mapping[str, Any],
    metrics: Mapping[str, float],
    training: Mapping[str, Any],
    started_from: str | None = None,
    dataset: str | None = None,
    language: list[str] | None = None,
) -> ModelCard:
    """Return the card of a trained model.

    Args:
        job: What the model does.
        model: The model.
        name: What to call it.
        code: How to load it, from `loading_code`.
        command: The command line that made it.
        data: What it was trained on, by heading.
        metrics: Its scores, named as the Trainer names them (`eval_bleu`, `test_accuracy`).
        training: Settings of the training worth knowing, by name.
        started_from: The saved model that training began with, if any.
        dataset: Id of the data set on the Hub, if it is from there.
        language: Codes of the languages, if known.
    """
    scores = {key: value for key, value in metrics.items() if _is_score(key)}
    source = dataset or str(data.get("source", "local data"))
    header = ModelCardData(
        library_name="transformers",
        pipeline_tag=PIPELINES[job],
        tags=["vanillaformer", model.config.model_type],
        datasets=[dataset] if dataset else None,
        language=language,
        metrics=sorted({key.split("_", 1)[1] for key in scores} - {"loss", "gen_len"}),
        model_name=name,
        eval_results=[_result(job, source, key, value) for key, value in scores.items()],
    )
    origin = f"the weights of {started_from}" if started_from else "scratch"
    sections = (
        f"# {name}",
        f"`{type(model).__name__}` with {model.num_parameters():,} parameters, trained from {origin}.",
        f"## How to load it\n\n```python\n{code}```",
        f"## Results\n\n{_scores_table(scores)}",
        f"## Data\n\n{_table(('', ''), *data.items())}",
        f"## Training\n\n```bash\n{command}\n```\n\n{_table(('setting', 'value'), *training.items())}",
        f"Made with {_versions()}.",
        f"## Configuration\n\n```json\n{_config_text(model)}\n```",
    )
    return ModelCard(f"---\n{header.to_yaml()}\n---\n\n" + "\n\n".join(sections) + "\n")


def _versions() -> str:
    return ", ".join(f"{package} {version(package)}" for package in ("vanillaformer", "transformers", "torch"))


def _config_text(model: PreTrainedModel) -> str:
    left_out = ("id2label", "label2id")  # as long as there are classes
    config = {key: value for key, value in model.config.to_diff_dict().items() if key not in left_out}
    return json.dumps(config, indent=2, ensure_ascii=False, default=str)


def _is_score(key: str) -> bool:
    speed = ("runtime", "per_second", "preparation_time", "epoch")
    return key.startswith(("eval_", "test_")) and not any(word in key for word in speed)


def _result(job: Job, dataset: str, key: str, value: float) -> EvalResult:
    split, metric = key.split("_", 1)
    return EvalResult(
        task_type=PIPELINES[job],
        dataset_type=dataset,
        dataset_name=dataset,
        dataset_split="validation" if split == "eval" else "test",
        metric_type=metric,
        metric_value=value,
    )


def _scores_table(scores: Mapping[str, float]) -> str:
    names = list(dict.fromkeys(key.split("_", 1)[1] for key in scores))
    cells = {key: f"{value:.4g}" for key, value in scores.items()}
    rows = ((name, cells.get(f"eval_{name}", ""), cells.get(f"test_{name}", "")) for name in names)
    return _table(("score", "validation", "test"), *rows)


def _table(heading: tuple[str, ...], *rows: tuple[Any, ...]) -> str:
    lines = [heading, ("---",) * len(heading), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)
