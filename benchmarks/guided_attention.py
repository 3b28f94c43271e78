"""What guided attention is worth on a monotone task: Serbian names from Cyrillic to Latin letters, by characters.

    python benchmarks/guided_attention.py --output_dir runs/guided_attention

Names of languages, territories, scripts, currencies and cities come from the CLDR data in Babel. A small translator is
trained with guided attention (Tachibana et al. 2018) and without, from the same seeds. It prints the share of
held-out names that are right, letter for letter, at each evaluation, and the first step at which 90 % are.
"""

import argparse
import csv
import json
from pathlib import Path

from babel import Locale

from vanillaformer.scripts import train_translation

SIDES = ("sr_Cyrl", "sr_Latn")
RECIPE = [
    *("--preset", "transformer-tiny", "--tokenizer_algorithm", "character", "--bleu_tokenize", "char"),
    *("--set", "num_hidden_layers=2", "encoder_layers=2", "dropout=0.1", "norm_placement=pre"),
    *("--max_source_length", "96", "--max_target_length", "96", "--validation_fraction", "0.15"),
    *("--per_device_train_batch_size", "32", "--learning_rate", "1e-3", "--warmup_steps", "100"),
    *("--metric_for_best_model", "exact_match", "--logging_steps", "50"),
]


def names(locale: str) -> dict[tuple[str, str], str]:
    """Return all names in a language, by their kind and code."""
    found, data = {}, Locale.parse(locale)
    for kind in ("languages", "territories", "scripts", "variants", "currencies"):
        found |= {(kind, code): name for code, name in getattr(data, kind).items()}
    for zone, values in data.time_zones.items():
        if "city" in values:
            found["cities", zone] = values["city"]
    return found


def write_pairs(file: Path) -> int:
    """Write distinct pairs of names, and return how many there are."""
    source, target = map(names, SIDES)
    pairs = sorted({(source[key], target[key]) for key in source.keys() & target.keys()})
    with file.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([("source", "target"), *pairs])
    return len(pairs)


def curve(folder: Path) -> dict[int, float]:
    """Return the share of right names by step."""
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return {entry["step"]: entry["eval_exact_match"] for entry in history if "eval_exact_match" in entry}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/guided_attention"), help="folder of the runs")
    parser.add_argument("--weights", type=float, nargs="+", default=[0.0, 1.0], help="weights of guided attention")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], help="seeds")
    parser.add_argument("--steps", type=int, default=1500, help="steps of a run")
    parser.add_argument("--every", type=int, default=100, help="steps between evaluations")
    options = parser.parse_args()
    options.output_dir.mkdir(parents=True, exist_ok=True)
    file = options.output_dir / "names.csv"
    print(f"{write_pairs(file):,} pairs of names")
    curves = {}
    for seed in options.seeds:
        for weight in options.weights:
            folder = options.output_dir / f"weight_{weight:g}_seed_{seed}"
            run = ["--output_dir", str(folder), "--seed", str(seed), "--max_steps", str(options.steps)]
            run += ["--eval_steps", str(options.every), "--guided_attention", str(weight)]
            train_translation.main([*RECIPE, "--train_file", str(file), *run])
            curves[f"weight {weight:g}, seed {seed}"] = curve(folder)
    steps = sorted(set().union(*curves.values()))
    print(f"\n| right (%) after | {' | '.join(map(str, steps))} | first with 90 % |")
    print("|---|" + "---|" * (len(steps) + 1))
    for name, values in curves.items():
        first = next((str(step) for step in steps if values.get(step, 0) >= 90), "-")
        print(f"| {name} | {' | '.join(f'{values.get(step, 0):.1f}' for step in steps)} | {first} |")


if __name__ == "__main__":
    main()
