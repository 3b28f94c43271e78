"""Speed of our models on other engines beside `generate`: equal weights, the same prompts, one run.

    python benchmarks/engines.py
    python benchmarks/engines.py --tasks greedy_1 beam_8 --models marian --repeats 15 --json engines.json

Every model is exported as a user would do it, comparison included. Then every repetition times `generate` and each
form of the export in turns, first and last, and the ratio of two times is taken inside the repetition, so that
whatever else the machine does meets all of them. `speed` is the time of `generate` through the engine's: above 1 the
engine is faster. No token ends a text: all make the same number of tokens.
"""

import json
import os
import platform
import statistics
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from compare import prompts, sentences
from measuring import Call, measure, undisturbed
from transformers import GenerationConfig, HfArgumentParser, PreTrainedModel
from weights import PAD, START, Size, our_gpt2, our_llama, our_marian

from vanillaformer.conversion.exports import EXPORTERS, Engine, export, load_engine

MODELS = {"gpt2": our_gpt2, "llama": our_llama, "marian": our_marian}


class Task(NamedTuple):
    """What is timed."""

    batch: int
    beams: int = 1
    models: tuple[str, ...] = tuple(MODELS)


TASKS = {
    "greedy_1": Task(1),
    "greedy_16": Task(16),
    "beam_1": Task(1, beams=4, models=("marian",)),
    "beam_8": Task(8, beams=4, models=("marian",)),
}


@dataclass
class Options:
    """The comparison's command line."""

    tasks: list[str] = field(
        default_factory=lambda: list(TASKS), metadata={"help": "What to time.", "choices": list(TASKS)}
    )
    models: list[str] = field(
        default_factory=lambda: list(MODELS), metadata={"help": "Which models.", "choices": list(MODELS)}
    )
    engine: str = field(default="ctranslate2", metadata={"help": "On what.", "choices": list(EXPORTERS)})
    forms: list[str] = field(default_factory=lambda: ["float32", "int8"], metadata={"help": "Quantizations."})
    repeats: int = field(default=7, metadata={"help": "Repetitions; the median of their ratios is reported."})
    seconds: float = field(default=0.2, metadata={"help": "A sample repeats its call until so many seconds are over."})
    wait_idle: float = field(default=0.0, metadata={"help": "Wait up to so many seconds for idle cores."})
    threads: int = field(default=torch.get_num_threads(), metadata={"help": "CPU threads of both sides."})
    layers: int = field(default=4, metadata={"help": "Blocks of each stack."})
    width: int = field(default=256, metadata={"help": "Model width; feed-forward layers are four times as wide."})
    heads: int = field(default=4, metadata={"help": "Attention heads."})
    vocab: int = field(default=8000, metadata={"help": "Tokens in the vocabulary."})
    length: int = field(default=24, metadata={"help": "Longest prompt or sentence in tokens."})
    new_tokens: int = field(default=32, metadata={"help": "Tokens to generate."})
    json: str | None = field(default=None, metadata={"help": "Write all that was measured to this file."})

    def size(self) -> Size:
        names = ("layers", "width", "heads", "vocab")
        return Size(**{name: getattr(self, name) for name in names}, max_length=self.length + self.new_tokens)


def build(name: str, options: Options) -> PreTrainedModel:
    """Return a model with random weights whose attention selects, and which never ends a text."""
    torch.manual_seed(0)
    model = MODELS[name](options.size()).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * options.width**-0.5)
    model.config.eos_token_id = None
    model.generation_config = GenerationConfig(pad_token_id=PAD, decoder_start_token_id=START)
    return model


def on_engine(model: PreTrainedModel, options: Options) -> dict[str, Engine]:
    """Return the model on the engine, in each form."""
    engines = {}
    for form in options.forms:
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder, "export")
            print(f"{form}: {export(model, target, options.engine, quantization=form)}", flush=True)
            engines[form] = load_engine(target)
    return engines


def calls_of(model: PreTrainedModel, engines: dict[str, Engine], task: Task, options: Options) -> dict[str, Call]:
    """Return what is timed, by name: `generate` first."""
    torch.manual_seed(1)
    make = sentences if model.config.is_encoder_decoder else prompts
    batch = make(task.batch, options.length, options.vocab)
    rows = [row[mask.bool()].tolist() for row, mask in zip(batch["input_ids"], batch["attention_mask"])]
    search = {"max_new_tokens": options.new_tokens, "num_beams": task.beams}

    def with_engine(engine: Engine) -> Call:
        return lambda: engine.generate(rows, **search)

    ours: Call = lambda: model.generate(**batch, **search, do_sample=False)  # noqa: E731
    return {"generate": ours} | {form: with_engine(engine) for form, engine in engines.items()}


def compare(name: str, model_name: str, calls: dict[str, Call], options: Options) -> list[dict[str, Any]]:
    """Time one task and return a row for each form."""
    samples = measure(calls, options.repeats, options.seconds, "cpu", options.wait_idle)
    quiet = undisturbed(samples)
    counted = quiet if len(quiet) >= 3 else samples
    rows = []
    for place, form in enumerate(list(calls)[1:], start=1):
        speeds = [row[0].seconds / row[place].seconds for row in counted]
        ms = [1e3 * statistics.median(row[side].seconds for row in counted) for side in (0, place)]
        speed = {"median": statistics.median(speeds), "min": min(speeds), "max": max(speeds)}
        cpu = statistics.median(row[0].cpu / row[place].cpu for row in counted)
        rows.append({"task": name, "model": model_name, "form": form, "ms": ms, "speed": speed, "cpu_speed": cpu})
        rows[-1] |= {"undisturbed": len(quiet), "samples": len(samples)}
    return rows


HEADER = """\
| task | model | form | generate ms | engine ms | speed | [min, max] | by CPU time | quiet |
|---|---|---|---|---|---|---|---|---|"""


def table_row(row: dict[str, Any]) -> str:
    speed = row["speed"]
    cells = [row["task"], row["model"], row["form"], *(f"{value:.1f}" for value in row["ms"])]
    cells += [f"{speed['median']:.2f}", f"[{speed['min']:.2f}, {speed['max']:.2f}]", f"{row['cpu_speed']:.2f}"]
    cells.append(f"{row['undisturbed']}/{row['samples']}")
    return f"| {' | '.join(cells)} |"


def main(argv: list[str] | None = None) -> None:
    (options,) = HfArgumentParser(Options).parse_args_into_dataclasses(argv)
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    machine = {"torch": torch.__version__, "transformers": transformers.__version__, "machine": platform.machine()}
    machine |= {"cores": os.cpu_count(), "load": os.getloadavg()[0]}
    print(f"{machine}\n{asdict(options)}\n", flush=True)
    rows = []
    for model_name in options.models:
        model = build(model_name, options)
        engines = on_engine(model, options)
        for name in options.tasks:
            if model_name in TASKS[name].models:
                rows += compare(name, model_name, calls_of(model, engines, TASKS[name], options), options)
    print("\n".join(["", HEADER, *map(table_row, rows)]))
    if options.json:
        found = {"machine": machine, "options": asdict(options), "rows": rows}
        Path(options.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
