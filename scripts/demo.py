"""The whole path in a few minutes on a CPU: train a translator, score it, load it again, use it, look inside.

Trains an encoder-decoder on the embedded corpus (English to German dates, times, numbers, amounts), with the same
program and options as any other training. An interrupted demo is resumed; a finished one uses the model it finds.
Options of `train-translation` can be given too, and take precedence.
"""

import sys
from collections.abc import Sequence
from typing import Any

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.utils import logging

from vanillaformer.console.program import program
from vanillaformer.console.reporting import report
from vanillaformer.data.cldr import cldr_translation
from vanillaformer.exploration.attention import draw_attention
from vanillaformer.training.run import parse_arguments
from vanillaformer.training.run_folder.run import Run
from vanillaformer.training.trainer.callbacks import scores_text

from . import train_translation

FOLDER = "runs/demo"
# Small enough for two cores, but with the paper's design: post-LN, sinusoidal positions, embeddings times √D.
RECIPE = f"""
    --output_dir {FOLDER}
    --preset transformer-tiny --set dropout=0
    --tokenizer_algorithm bpe --tokenizer_vocab_size 500 --split_digits True
    --max_source_length 64 --max_target_length 64
    --per_device_train_batch_size 64 --per_device_eval_batch_size 250 --learning_rate 2e-3 --num_train_epochs 6
    --max_validation_samples 300 --eval_steps 0.125 --logging_steps 0.05 --metric_for_best_model exact_match
""".split()
EXAMPLES = 10


def show(run: Run) -> None:
    """Load the saved model with transformers, translate sentences of the test split, and draw its attention."""
    logging.disable_progress_bar()
    model = AutoModelForSeq2SeqLM.from_pretrained(run.folder)
    tokenizer = AutoTokenizer.from_pretrained(run.folder)
    data = run.settings["data"]
    locales = data["source_locale"], data["target_locale"]
    corpus = cldr_translation(*locales, size=data["embedded_size"], seed=data["split_seed"])
    rows = corpus["test"].to_list()[:EXAMPLES]
    report(f"\nLoaded again with AutoModelForSeq2SeqLM.from_pretrained; {len(rows)} sources not in the training data:")
    inputs: Any = tokenizer([row["source"] for row in rows], return_tensors="pt", padding=True)
    translations = tokenizer.batch_decode(model.generate(**inputs, num_beams=4), skip_special_tokens=True)
    rights = [translation == row["target"] for row, translation in zip(rows, translations)]
    for row, translation, right in zip(rows, translations, rights):
        report(f"  {'✓' if right else '✗'} {row['source']}")
        report(f"    {translation}" if right else f"    {translation}   (reference: {row['target']})")
    report(f"  {sum(rights)} of {len(rows)} right")
    draw_attention(model, tokenizer, rows[0]["source"], run.folder / "cross_attention.png")


@program
def main(argv: Sequence[str] | None = None) -> None:
    words = [*RECIPE, *(sys.argv[1:] if argv is None else argv)]
    parse_arguments("train-translation", words)  # a mistake in them comes first
    report(
        "vanillaformer demo: a Transformer (Vaswani et al. 2017), shrunk, learns to translate English dates, times,\n"
        "numbers and amounts to German. The data comes from the Unicode CLDR on this machine; nothing is downloaded.\n"
    )
    run = train_translation.train(words)
    show(run)
    report(f"\nOn {run.details['rows']['test']:,} held-out pairs: {scores_text(run.metrics, 'test')}")
    report(
        f"""
In {run.folder}:
  loss_curve.png        training and validation loss
  cross_attention.png   the source tokens that each translated token attends to
  README.md             the model card: data, settings, scores, how to load it

Next:
  vanillaformer generate --model {run.folder} --text 'May 6, 2031 at 5:04 PM'
  vanillaformer demo --output_dir runs/demo_pre --set norm_placement=pre   # another design
  vanillaformer train-language-model    # a GPT on the source text of Python
  vanillaformer train-translation --help"""
    )


if __name__ == "__main__":
    main()
