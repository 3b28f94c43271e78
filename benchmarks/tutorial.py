"""What a pass over reviews costs: the recipe `imdb_tutorial.yaml` beside the tutorial's encoder.

python benchmarks/tutorial.py
python benchmarks/tutorial.py --rows 25000 --repeats 1

Both have 1 layer, width 32, 2 heads, an inner width of 128 and the last 200 words, and train on batches of 32 with
AdamW. Theirs: transformers' BERT and Trainer, 55,000 words, every review padded to 200, dropout 0.1. Ours: the
recipe's model (10,000 words, a vector for each pair of words) and batches. The reviews are random words, of which 40 %
are cut at 200 (IMDB: 41 %). `speed` is their time through ours.
"""

import statistics
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import yaml
from datasets import Dataset, disable_progress_bars
from epochs import our_epoch, their_epoch
from measuring import measure
from transformers import BertConfig, BertForSequenceClassification, HfArgumentParser
from weights import END, FIRST_WORD

from vanillaformer import VanillaEncoderForSequenceClassification, preset

RECIPE = Path(__file__).parents[1] / "scripts" / "recipes" / "imdb_tutorial.yaml"
LONGEST, THEIR_WORDS, BATCH = 202, 55_000, 32


@dataclass
class Options:
    """The comparison's command line."""

    rows: int = field(default=3000, metadata={"help": "Reviews of the pass."})
    repeats: int = field(default=3, metadata={"help": "Repetitions; the median of their ratios is reported."})
    threads: int = field(default=torch.get_num_threads(), metadata={"help": "CPU threads of torch."})


def reviews(rows: int, words: int) -> Dataset:
    """Return reviews of random words; 40 % of them are cut at the longest length."""
    rng = np.random.default_rng(0)
    sizes = np.exp(rng.normal(np.log(177), 0.53, rows)).round().clip(10, LONGEST).astype(int)
    texts = [[*rng.integers(FIRST_WORD, words, size - 1).tolist(), END] for size in sizes]
    return Dataset.from_dict({"input_ids": texts, "labels": rng.integers(0, 2, rows).tolist()})


def main() -> None:
    """Compare."""
    (options,) = HfArgumentParser(Options, description=__doc__).parse_args_into_dataclasses()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    disable_progress_bars()
    recipe: dict[str, Any] = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    words = recipe["tokenizer_vocab_size"]
    config = preset(recipe["preset"], **recipe["overrides"], vocab_size=words, num_labels=2)
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128}
    theirs = BertConfig(vocab_size=THEIR_WORDS, hidden_size=32, max_position_embeddings=LONGEST, **sizes)
    padded = partial(their_epoch, "classifier", longest=LONGEST, how="random")
    calls = {
        "the recipe": our_epoch(
            "classifier", VanillaEncoderForSequenceClassification(config), reviews(options.rows, words), BATCH, LONGEST
        ),
        "the tutorial": padded(BertForSequenceClassification(theirs), reviews(options.rows, THEIR_WORDS), BATCH),
    }
    samples = measure(calls, options.repeats, 1e-9, "cpu", 0.0)
    for number, name in enumerate(calls):
        ratios = [each[number].seconds / each[0].seconds for each in samples]
        seconds = statistics.median(each[number].seconds for each in samples)
        spread = f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
        print(f"{name} | {seconds:.1f} s | speed {spread}")


if __name__ == "__main__":
    main()
