"""An automated search that cannot fool itself: twenty proposals, eight of which are no change at all.

A loop proposes variants of a tiny classifier to `vanillaformer compare --sequential --family 20 --add`, and believes
the exit code. Beside it stands what a loop believes that trains each proposal once and keeps what beats the best score
so far. Runs are kept in --folder; the same command goes on.

No change is the same file with its rows in another order: each seed draws an order of its own of them. A `data_seed`
would be one order for all seeds, perhaps a better one.

    python benchmarks/search.py
"""

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path

import yaml
from null_plans import write_rows

FIELDS = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
ORDERS = range(1, 9)
PROPOSALS = {
    "rate-x2": {"learning_rate": 2e-3},
    "rate-x4": {"learning_rate": 4e-3},
    "rate-half": {"learning_rate": 5e-4},
    "post-norm": {"overrides": {"norm_placement": "post"}},
    "rms-norm": {"overrides": {"norm": "rms_norm"}},
    "gated": {"overrides": {"feed_forward": "gated"}},
    "rotary": {"overrides": {"position_embedding_type": "rotary"}},
    "no-dropout": {"overrides": {"dropout": 0.0}},
    "dropout": {"overrides": {"dropout": 0.3}},
    "smoothing": {"label_smoothing_factor": 0.1},
    "wider": {"overrides": {"hidden_size": 64}},
    "deeper": {"overrides": {"num_hidden_layers": 2}},
}


def main() -> None:
    """Search, and print what was believed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/search"))
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows, seed in (("train", 400, 0), ("validation", 400, 1)):
        write_rows(folder / f"{name}.csv", rows, seed)
    proposals = {}
    for number in ORDERS:
        header, *lines = (folder / "train.csv").read_text(encoding="utf-8").splitlines()
        random.Random(number).shuffle(lines)
        file = folder / f"train-{number}.csv"
        file.write_text("\n".join([header, *lines]), encoding="utf-8")
        proposals[f"order-{number}"] = {"train_file": str(file.resolve())}
    proposals |= PROPOSALS
    arguments = {
        **{f"{split}_file": str((folder / f"{split}.csv").resolve()) for split in ("train", "validation")},
        **{"preset": "bert-tiny", "overrides": FIELDS, "learning_rate": 1e-3, "per_device_train_batch_size": 16},
        **{"tokenizer_algorithm": "word", "eval_steps": 0.5, "use_cpu": True, "max_length": 16},
    }
    plan = {
        **{"program": "train-classifier", "arguments": arguments, "budget": {"steps": 60}},
        **{"sequential": True, "family": len(proposals), "seeds": [*range(1, 9)], "variants": {"baseline": {}}},
    }
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan, sort_keys=False))
    command = [sys.executable, "-m", "vanillaformer", "compare", str(folder / "plan.yaml"), "--json", "--jobs", "2"]
    best, lucky, runs = None, [], 0
    for name, options in proposals.items():
        words = [*command, "--output_dir", str(folder / "runs"), "--add", f"{name}={json.dumps(options)}"]
        ended = subprocess.run(words, capture_output=True, text=True)
        if ended.returncode not in (0, 3, 4):
            raise SystemExit(ended.stderr)
        report = json.loads(ended.stdout)
        found = report["variants"][name]
        best = report["variants"]["baseline"]["scores"]["1"] if best is None else best
        once = found["scores"].get("1")
        if once is not None and once < best:
            best = once
            lucky.append(name)
        runs += len(found["scores"])
        test = found["test"]
        seen = f"{test['difference']:+.4f} ({test['low']:+.4f} to {test['high']:+.4f})" if test else ""
        print(
            f"| {name} | {found['verdict']} | {seen} | {len(found['seeds'])} | {'kept' if name in lucky else ''} |",
            flush=True,
        )
    print(f"{runs} runs of {8 * len(proposals)}; one run each would have kept {', '.join(lucky)}")


if __name__ == "__main__":
    main()
