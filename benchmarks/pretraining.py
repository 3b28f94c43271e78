"""What pre-training is worth to a translator of 1,000 pairs: from a span-corruption model, and from scratch.

The sentences to pre-train on are 10 MB of English and French, shuffled: Tatoeba's, and of the other captions of
Multi30k the English ones of one half and the French ones of the other. Both translators have the same size, tokenizer
and number of steps.

    python benchmarks/pretraining.py --multi30k FOLDER --tatoeba FILE.parquet --output_dir runs/pretraining
"""

import argparse
import random
import subprocess
import sys
from pathlib import Path

import pandas as pd
import yaml

PAIRS = 1_000
ROOT = Path(__file__).resolve().parents[1]


def write_data(multi30k: Path, tatoeba: Path, folder: Path) -> None:
    """Write the sentences of one language each, and the pairs."""
    captions = pd.read_parquet(multi30k / "train.parquet")
    captions[:PAIRS].to_parquet(folder / "pairs.parquet")
    others, half = captions[PAIRS:], (len(captions) - PAIRS) // 2
    pairs = pd.read_parquet(tatoeba)
    sides = [others.en[:half], others.fr[half:], pairs.en.drop_duplicates(), pairs.fr.drop_duplicates()]
    sentences = [sentence for side in sides for sentence in side]
    random.Random(0).shuffle(sentences)
    print(f"{len(sentences):,} sentences, {sum(len(text.encode()) for text in sentences) / 1e6:.1f} MB")
    pd.DataFrame({"text": sentences}).to_parquet(folder / "sentences.parquet")


def plan(folder: Path, multi30k: Path, pretrained: Path) -> dict:
    """Return the plan of `compare`: the same options but for where the weights come from."""
    recipe = yaml.safe_load((ROOT / "scripts/recipes/span_english_french.yaml").read_text())
    return {
        "program": "train-translation",
        "arguments": {
            "train_file": str(folder / "pairs.parquet"),
            "validation_file": str(multi30k / "val.parquet"),
            "test_file": str(multi30k / "test_2016_flickr.parquet"),
            "source_column": "en",
            "target_column": "fr",
            "max_source_length": 64,
            "max_target_length": 64,
            "tokens_per_batch": 2048,
            "label_smoothing_factor": 0.1,
            "learning_rate": 1.0e-3,
            "warmup_steps": 50,
            "lr_scheduler_type": "cosine",
        },
        "budget": {"steps": 500},
        "score": "bleu",
        "seeds": [1, 2, 3],
        "variants": {
            "pretrained": {"model_name_or_path": str(pretrained)},
            "scratch": {
                "preset": recipe["preset"],
                "overrides": {**recipe["overrides"], "dropout": 0.3},
                "tokenizer_name_or_path": str(pretrained),
            },
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--multi30k", type=Path, required=True, help="Folder with train, val and test_2016_flickr.parquet"
    )
    parser.add_argument("--tatoeba", type=Path, required=True, help="Parquet file with columns en and fr")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/pretraining"), help="Folder of data and runs")
    args = parser.parse_args()
    folder, pretrained = args.output_dir, args.output_dir / "span"
    folder.mkdir(parents=True, exist_ok=True)
    write_data(args.multi30k, args.tatoeba, folder)
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan(folder, args.multi30k, pretrained)))
    program = [sys.executable, "-m", "vanillaformer_cli"]
    recipe = [
        str(ROOT / "scripts/recipes/span_english_french.yaml"),
        "--train_file",
        str(folder / "sentences.parquet"),
    ]
    subprocess.run([*program, "train-language-model", *recipe, "--output_dir", str(pretrained)], check=True)
    subprocess.run(
        [*program, "compare", str(folder / "plan.yaml"), "--output_dir", str(folder / "compare")], check=True
    )


if __name__ == "__main__":
    main()
