"""Scores and predictions of a finished model on held-out data, and samples of what a causal language model writes."""

import json
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import Any

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from transformers import PreTrainedTokenizerBase, set_seed
from transformers.trainer_utils import PredictionOutput

from vanillaformer.console.reporting import optional, report
from vanillaformer.data.preprocessing.batching import evaluation_order
from vanillaformer.data.tasks import TASKS, TaskName
from vanillaformer.modeling.heads import IGNORE_INDEX

from ..run_folder.files import SAMPLES, write_lines
from ..run_folder.run import Run
from ..trainer.trainer import RunTrainer
from .classes import PREFIXES, class_scores, confusion_counts, part_in_words, pictured_classes
from .plots import confused_picture, confusion_picture, write_reconstructions

COUNT, TOKENS = 8, 64
"""Samples, and the tokens of each."""
SHOWN, PROMPT_END = 3, 60
"""Samples that are printed, and characters of the text before each."""
Tokenizers = tuple[PreTrainedTokenizerBase, ...]


def score_and_predict(
    run: Run, task: TaskName, trainer: RunTrainer, rows: DatasetDict, tokenizers: Tokenizers, **options: Any
) -> None:
    """Score validation and test data into `run.metrics`, and write what was predicted for the last of them.

    That is `predictions_test.jsonl` (`predictions_validation.jsonl` without test data): a line for each row, in the
    order of the data, with texts and references as they stand in the data. A classifier's errors are in
    `run.details` (`classes`; up to `PICTURED` classes `confusion_matrix`) and `confusion_matrix.png` too, those of a
    classifier of images also in `confused_images.png`. A causal language model continues some rows, in
    `samples.jsonl`; what a masked image model makes of some is in `reconstructions.png`. Where nothing is predicted
    (`--predict_with_generate False`) there is no file. `options` are for the test split only (`num_beams`).
    """
    splits = [split for split in PREFIXES if split in rows]
    predicts = TASKS[task].predicts
    for split in splits:
        prefix, given = PREFIXES[split], options if split == "test" else {}
        if split != splits[-1] or trainer.compute_metrics is None:
            known = trainer.scored(rows[split])
            run.metrics |= (  # those of the weights that were kept
                trainer.evaluate(rows[split], metric_key_prefix=prefix, **given)  # type: ignore[arg-type]
                if known is None
                else known.metrics or {}
            )
            continue
        output = trainer.predict(rows[split], metric_key_prefix=prefix, **given)  # type: ignore[arg-type]
        run.metrics |= output.metrics or {}
        trainer.log(output.metrics or {})
        if trainer.is_world_process_zero() and "next_tokens" not in predicts:
            order = np.argsort(evaluation_order(rows[split]), kind="stable")
            output = PredictionOutput(_reordered(output.predictions, order), _reordered(output.label_ids, order), {})
            with optional(f"predictions_{split}.jsonl", run.failed):
                if "texts" in predicts:
                    records = _translations(rows[split], output, tokenizers[1])
                elif "classes" in predicts:
                    records = _classes(run, trainer, rows[split], output, split)
                else:
                    records = _filled(output, tokenizers[0])
                write_lines(run.folder / f"predictions_{split}.jsonl", records)
    if "next_tokens" in predicts and "validation" in rows:
        with optional(SAMPLES, run.failed):
            write_samples(run.folder, trainer, rows["validation"], tokenizers[0])
    if "pixels" in predicts and splits:
        with optional("reconstructions.png", run.failed):
            write_reconstructions(run.folder, trainer, rows[splits[-1]])


def labels_and_predictions(output: PredictionOutput) -> tuple[Any, Any]:
    """Return the labels and predictions of an output, for a classifier the logits, without what else it has."""
    predictions: Any = output.predictions
    return output.label_ids, predictions[0] if isinstance(predictions, tuple) else predictions


def _translations(
    rows: Dataset, output: PredictionOutput, tokenizer: PreTrainedTokenizerBase
) -> Iterator[dict[str, Any]]:
    ids = labels_and_predictions(output)[1]
    ids = np.where(ids == IGNORE_INDEX, tokenizer.pad_token_id, ids)
    predictions = tokenizer.batch_decode(list(ids), skip_special_tokens=True)
    for source, reference, prediction in zip(rows["source"], rows["target"], predictions):
        yield {"source": source, "reference": reference, "prediction": prediction}


def _classes(
    run: Run, trainer: RunTrainer, rows: Dataset, output: PredictionOutput, split: str
) -> Iterator[dict[str, Any]]:
    labels, logits = labels_and_predictions(output)
    model: Any = trainer.model
    names = [model.config.id2label[number] for number in range(logits.shape[-1])]
    probabilities = torch.as_tensor(logits).float().softmax(dim=-1)
    chosen = logits.argmax(axis=-1)
    run.details["classes"] = class_scores(labels, chosen, names)
    drawn = pictured_classes(labels, chosen, len(names))
    matrix = confusion_counts(labels, chosen, drawn)
    if len(drawn) == len(names):
        run.details["confusion_matrix"] = matrix.tolist()
    with optional("confusion_matrix.png", run.failed):
        confusion_picture(
            matrix,
            [names[number] for number in drawn],
            run.folder / "confusion_matrix.png",
            numbers=drawn.tolist(),
            totals=np.bincount(labels, minlength=len(names))[drawn],
            title=": ".join(filter(None, [f"{split} data", part_in_words(len(names))])),
        )
    if "pixel_values" in rows.column_names:
        collator: Any = trainer.data_collator
        with optional("confused_images.png", run.failed):
            confused_picture(run.folder, rows, collator.size, labels, probabilities.numpy(), names)
    column, key = ("name", "image") if "name" in rows.column_names else ("text", "text")
    best = probabilities.max(dim=-1).values.tolist()
    for text, label, predicted, value in zip(rows[column], labels, chosen, best):
        yield {key: text, "reference": names[label], "prediction": names[predicted], "probability": round(value, 6)}


def _filled(output: PredictionOutput, tokenizer: PreTrainedTokenizerBase) -> Iterator[dict[str, Any]]:
    """Yield, for rows with masked tokens, the tokens wanted and those predicted, position by position."""
    scores: Any = output.predictions
    labels: Any = output.label_ids
    labels = labels[0] if isinstance(labels, tuple) else labels
    for wanted, predicted in zip(labels, scores[0]):
        kept = wanted != IGNORE_INDEX
        pieces = [tokenizer.convert_ids_to_tokens(ids[kept].tolist()) for ids in (wanted, predicted)]
        yield {"positions": np.flatnonzero(kept).tolist(), "reference": pieces[0], "prediction": pieces[1]}


def _reordered(values: Any, order: np.ndarray) -> Any:
    """Return collected arrays in another order."""
    return tuple(_reordered(each, order) for each in values) if isinstance(values, tuple) else values[order]


def write_samples(folder: Path, trainer: RunTrainer, rows: Dataset, tokenizer: PreTrainedTokenizerBase) -> None:
    """Continue the first half of some rows as the saved model samples; one process cannot with a sharded model."""
    if not trainer.is_world_process_zero() or trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        return
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    model.eval()
    set_seed(trainer.args.seed)
    records = []
    for row in rows.select(range(min(COUNT, len(rows)))):
        starts = [index for index, number in enumerate(row.get("position_ids", [])) if index and not number]
        ids = row["input_ids"][: starts[0] if starts else None]  # of texts packed into a row the first
        prompt, rest = ids[: (len(ids) + 1) // 2], ids[(len(ids) + 1) // 2 :][:TOKENS]
        if not rest:
            continue
        inputs = torch.tensor([prompt], device=model.device)
        with torch.inference_mode():
            options = {"max_new_tokens": len(rest), "max_length": None}
            new = model.generate(inputs, attention_mask=torch.ones_like(inputs), **options)[0, len(prompt) :].tolist()
        texts = [tokenizer.decode(part, skip_special_tokens=True) for part in (prompt, rest, new)]
        records.append(dict(zip(("prompt", "reference", "prediction"), texts)))
    write_lines(folder / SAMPLES, records)


def read_samples(folder: Path) -> list[dict[str, str]]:
    """Return the samples of a run to show, with `prompt` and `prediction`: none blank, without control characters."""
    path = folder / SAMPLES
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    records = list(map(json.loads, lines))
    for record in records:
        signs = (sign if sign.isprintable() or sign in "\n\t" else "\ufffd" for sign in record["prediction"])
        record["prediction"] = "".join(signs).strip()
    return [record for record in records if record["prediction"]][:SHOWN]


def print_samples(folder: Path) -> None:
    """Print what the model of a run wrote after the beginnings of some held-out texts."""
    for sample in read_samples(folder):
        before = sample["prompt"][-PROMPT_END:]
        report(f"Sample, after {before!r}:\n{indent(sample['prediction'], '  | ', lambda line: True)}")
