"""Trained translators beside each other: how much is right, and sentences per second, by steps and batch size.

    vanillaformer train-translation --output_dir runs/greedy
    vanillaformer train-translation --set decoding=mask_predict --output_dir runs/parallel
    python benchmarks/decodings.py runs/greedy runs/parallel
    python benchmarks/decodings.py runs/teacher runs/distilled --rows test.parquet --source en --target de --beams 1 5

A translator that writes token by token is run with each number of beams, one that predicts all tokens at once
(`decoding=mask_predict`) with each number of steps, `ctc` once. Rows are the test part of the embedded corpus unless a
file is given. Every way is timed on the same sentences, the longest first, in turns.
"""

from argparse import ArgumentParser, Namespace
from functools import partial
from typing import Any

import sacrebleu
import torch
from datasets import load_dataset
from measuring import measure
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel

from vanillaformer.data.embedded.cldr_translation import cldr_translation


def translate(model: PreTrainedModel, batches: list[Any], settings: dict[str, Any]) -> list[list[int]]:
    """Return the generated ids of every batch's rows."""
    with torch.inference_mode():
        return [ids for batch in batches for ids in model.generate(**batch, **settings).tolist()]


def ways(model: PreTrainedModel, options: Namespace) -> dict[str, dict[str, Any]]:
    """Return the names and arguments of the ways in which a model can decode."""
    decoding = getattr(model.config, "decoding", "autoregressive")
    if decoding == "mask_predict":
        return {f"{steps} steps": {"refinement_steps": steps, "num_beams": options.lengths} for steps in options.steps}
    if decoding == "ctc":
        return {"one step": {}}
    return {f"{beams} beams" if beams > 1 else "greedy": {"num_beams": beams} for beams in options.beams}


def parsed() -> Namespace:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", help="Folders of trained translators.")
    parser.add_argument("--rows", help="A file with the columns of --source and --target.")
    parser.add_argument("--source", default="source", help="Column of the sources.")
    parser.add_argument("--target", default="target", help="Column of the references.")
    parser.add_argument("--bleu_tokenize", default="13a", help="sacrebleu's tokenization: none for tokenized texts.")
    parser.add_argument("--count", type=int, default=256, help="Rows that are timed; all are scored.")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32], help="Batch sizes.")
    parser.add_argument("--beams", type=int, nargs="+", default=[1], help="Beams of token by token.")
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 2, 4, 10], help="Steps of mask_predict.")
    parser.add_argument("--lengths", type=int, default=1, help="Lengths that mask_predict tries.")
    parser.add_argument("--repeats", type=int, default=3, help="Repetitions of each timing.")
    return parser.parse_args()


def main() -> None:
    """Score and time every way of every model."""
    options = parsed()
    extension = (options.rows or "").rsplit(".", 1)[-1]
    rows: Any = (
        load_dataset({"jsonl": "json", "tsv": "csv"}.get(extension, extension), data_files=options.rows, split="train")
        if options.rows
        else cldr_translation()["test"]
    )
    sources, references = list(rows[options.source]), list(rows[options.target])
    calls, scores = {}, {}
    for folder in options.models:
        model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
        order = sorted(range(len(sources)), key=lambda row: -len(tokenizer(sources[row])["input_ids"]))
        some = order[:: max(1, len(order) // options.count)]
        for name, settings in ways(model, options).items():
            settings = {"do_sample": False, **settings}
            ids = translate(model, batched(tokenizer, sources, order, 64), settings)
            texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
            wanted = [references[row] for row in order]
            exact = sum(text == reference for text, reference in zip(texts, wanted)) / len(wanted)
            bleu = sacrebleu.corpus_bleu(texts, [wanted], tokenize=options.bleu_tokenize, force=True).score
            scores[folder, name] = f"{exact:.1%} exact, {bleu:.1f} BLEU"
            for size in options.batches:
                inputs = batched(tokenizer, sources, some, size)
                calls[folder, name, size] = partial(translate, model, inputs, settings)
    samples = measure({str(key): call for key, call in calls.items()}, options.repeats, 1e-9, "cpu", 0.0)
    for number, (folder, name, size) in enumerate(calls):
        seconds = sorted(repetition[number].seconds for repetition in samples)[len(samples) // 2]
        rate = len(some) / seconds
        print(f"{folder} | {name} | {scores[folder, name]} | batch {size} | {rate:.1f} sentences/s", flush=True)


def batched(tokenizer: Any, sources: list[str], order: list[int], size: int) -> list[Any]:
    """Return the inputs of batches of `size` sources."""
    parts = [order[start : start + size] for start in range(0, len(order), size)]
    return [tokenizer([sources[row] for row in part], return_tensors="pt", padding=True) for part in parts]


if __name__ == "__main__":
    main()
