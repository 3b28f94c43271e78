"""Copying of names that no training pair has: with and without the copy mechanism (See et al. 2017).

    python benchmarks/copying.py                       # about five minutes on two cores
    python benchmarks/copying.py --steps 2000 --seeds 1 2 3

The corpus is made here: English sentences with two made-up names and their German translations, in another order of
words. A name is one token, its table is drawn at random like all others, and of the names in the test no training pair
has one. Each model is trained by train-translation with the same settings. Printed are the share of test sentences
that are translated exactly and of the names that stand in their place, for names seen in training and for unseen ones.
"""

import json
import random
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, HfArgumentParser

from vanillaformer.scripts.train_translation import train as train_translation
from vanillaformer.tokenization import train as train_tokenizer

SENTENCES = (
    ("yesterday {0} met {1} in the garden", "gestern traf {0} im garten {1}"),
    ("{0} was born in the town of {1}", "in der stadt {1} wurde {0} geboren"),
    ("nobody knew that {1} had written to {0}", "dass {1} an {0} geschrieben hatte wusste niemand"),
    ("the sister of {0} has married {1}", "{1} hat die schwester von {0} geheiratet"),
    ("please give this letter to {0} or to {1}", "bitte gib {0} oder {1} diesen brief"),
    ("from {0} to {1} it is a long way", "es ist ein weiter weg von {0} nach {1}"),
    ("{0} says that {1} comes tomorrow", "morgen kommt {1} sagt {0}"),
    ("who is older {0} or {1}", "wer ist älter {0} oder {1}"),
)
SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in ("a", "e", "i", "o", "u")]
MODELS = {
    "softmax": ["output_distribution=softmax"],
    "copying": ["output_distribution=pointer_generator"],
    "softmax, output layer of its own": ["output_distribution=softmax", "tie_word_embeddings=false"],
    "copying, output layer of its own": ["output_distribution=pointer_generator", "tie_word_embeddings=false"],
}


@dataclass
class Options:
    """The benchmark's command line."""

    steps: int = field(default=600, metadata={"help": "Steps of 64 pairs."})
    pairs: int = field(default=20_000, metadata={"help": "Training pairs."})
    names: int = field(default=3_000, metadata={"help": "Names; a tenth of them are not in the training pairs."})
    seeds: list[int] = field(default_factory=lambda: [1], metadata={"help": "Seeds of the training."})


def made_up_names(count: int, draw: random.Random) -> list[str]:
    names: dict[str, None] = {}
    while len(names) < count:
        names["".join(draw.choices(SYLLABLES, k=3))] = None
    return list(names)


def sentence_pairs(count: int, names: list[str], draw: random.Random) -> Dataset:
    rows = []
    for _ in range(count):
        chosen = draw.sample(names, 2)
        source, target = (text.format(*chosen) for text in draw.choice(SENTENCES))
        rows.append({"source": source, "target": target, "names": chosen})
    return Dataset.from_list(rows)


def shares(folder: str, rows: Dataset) -> tuple[float, float]:
    """Return the shares of rows that are translated exactly, and of names in their place."""
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(list(rows["source"]), return_tensors="pt", padding=True)
    with torch.inference_mode():
        written = model.generate(**inputs, max_new_tokens=20, num_beams=1)
    outputs = [text.split() for text in tokenizer.batch_decode(written, skip_special_tokens=True)]
    wanted = [text.split() for text in rows["target"]]
    places = [
        (output, target, target.index(name))
        for output, target, pair in zip(outputs, wanted, rows["names"])
        for name in pair
    ]
    right = sum(output[place : place + 1] == [target[place]] for output, target, place in places)
    return sum(map(list.__eq__, outputs, wanted)) / len(wanted), right / len(places)


def measured(overrides: list[str], seed: int, steps: int, data: Path, tests: dict[str, Dataset]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        files = [f"--{part}_file={data / part}.parquet" for part in ("train", "validation")]
        size = ["hidden_size=128", "num_hidden_layers=1", "encoder_layers=1", "num_attention_heads=4"]
        size += ["intermediate_size=512", "norm_placement=pre", "position_embedding_type=rotary", "dropout=0.0"]
        settings = {
            **{"output_dir": folder, "seed": seed, "max_steps": steps, "per_device_train_batch_size": 64},
            **{"tokenizer_name_or_path": data / "tokenizer", "learning_rate": 3e-3, "warmup_steps": 0.1},
            **{"optim": "adamw_torch", "lr_scheduler_type": "cosine", "predict_with_generate": False},
        }
        given = [f"--{name}={value}" for name, value in settings.items()]
        train_translation([*files, *given, "--set", *size, *overrides])
        found = {name: shares(folder, rows) for name, rows in tests.items()}
    return {f"{name} {what}": value for name, pair in found.items() for what, value in zip(("exact", "names"), pair)}


def main() -> None:
    """Make the corpus, train every model and print a line for each."""
    (options,) = HfArgumentParser(Options, description=__doc__).parse_args_into_dataclasses()
    draw = random.Random(0)
    names = made_up_names(options.names, draw)
    unseen, seen = names[: len(names) // 10], names[len(names) // 10 :]
    tests = {"seen": sentence_pairs(500, seen, draw), "unseen": sentence_pairs(500, unseen, draw)}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        parts = {"train": sentence_pairs(options.pairs, seen, draw), "validation": sentence_pairs(200, seen, draw)}
        for name, rows in parts.items():
            rows.remove_columns("names").to_parquet(data / f"{name}.parquet")
        words = [word for pair in SENTENCES for text in pair for word in text.split() if word.isalpha()]
        tokenizer = train_tokenizer([*names, *words], algorithm="word", vocab_size=10_000, min_frequency=1)
        tokenizer.save_pretrained(data / "tokenizer")
        for model, overrides in MODELS.items():
            for seed in options.seeds:
                found = measured(overrides, seed, options.steps, data, tests)
                print(
                    json.dumps({"model": model, "seed": seed, **{k: round(v, 3) for k, v in found.items()}}),
                    flush=True,
                )


if __name__ == "__main__":
    main()
