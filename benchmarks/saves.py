"""How long training stands still for a checkpoint, and how much longer a run takes, with and without `--async_save`.

    python benchmarks/saves.py                   # 42 million weights, 500 MB with AdamW's state
    python benchmarks/saves.py --width 64        # that it runs

Both are runs of `train-language-model`, which differ in the option alone. The first checkpoint and the last one are
written at once in either case and do not count.
"""

import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from transformers import HfArgumentParser

from vanillaformer.scripts import train_language_model
from vanillaformer.training.trainer.trainer import RunTrainer


@dataclass
class Options:
    """The run."""

    width: int = field(default=512, metadata={"help": "Width; there are 12 layers and 8,000 tokens."})
    saves: int = field(default=5, metadata={"help": "Checkpoints that count."})
    apart: int = field(default=4, metadata={"help": "Steps between checkpoints."})


def stalls(options: Options, folder: Path, *more: str) -> tuple[list[float], float]:
    """Return the seconds that each checkpoint of a run took from the training, and those of the training."""
    found, save, steps = [], RunTrainer._save_checkpoint, options.apart * (options.saves + 2)

    def timed(trainer: RunTrainer, *details: object, **keywords: object) -> None:
        begin = time.perf_counter()
        save(trainer, *details, **keywords)
        found.append(time.perf_counter() - begin)

    sizes = f"hidden_size={options.width} num_hidden_layers=12 num_attention_heads=8 max_position_embeddings=256"
    argv = f"--use_cpu --set {sizes} --tokenizer_vocab_size 8000 --block_size 256 --per_device_train_batch_size 4"
    argv += f" --max_steps {steps} --save_strategy steps --save_steps {options.apart} --save_total_limit 1"
    argv += f" --eval_strategy no --max_test_samples 1 --max_train_samples 200 --output_dir {folder}"
    with mock.patch.object(RunTrainer, "_save_checkpoint", timed):
        run = train_language_model.train([*argv.split(), *more])
    return found[1:-1], run.metrics["train_runtime"]


def main(argv: list[str] | None = None) -> None:
    (options,) = HfArgumentParser(Options, description=__doc__).parse_args_into_dataclasses(argv)
    with tempfile.TemporaryDirectory() as folder:
        waits, seconds = stalls(options, Path(folder, "waits"))
        size = sum(path.stat().st_size for path in Path(folder, "waits").glob("checkpoint-*/*") if path.is_file())
        goes_on, later = stalls(options, Path(folder, "goes_on"), "--async_save")
    print(f"\n{size / 1e6:,.0f} MB in a checkpoint, of which {len(waits)} count\n")
    print("| | stall, median | longest | run |\n|---|---|---|---|")
    for name, found, whole in (("waits", waits, seconds), ("--async_save", goes_on, later)):
        print(f"| {name} | {statistics.median(found):.2f} s | {max(found):.2f} s | {whole:.1f} s |")
    print(f"\n{statistics.median(waits) / statistics.median(goes_on):.1f} times shorter")


if __name__ == "__main__":
    main()
