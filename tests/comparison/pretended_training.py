"""A program that leaves what a training leaves, in no time: its loss depends on the settings and the seed alone."""

import json
import math
import sys
import time
from pathlib import Path

import yaml

settings = yaml.safe_load(Path(sys.argv[2]).read_text(encoding="utf-8"))
folder, overrides, rate = Path(settings["output_dir"]), settings.get("overrides", {}), settings["learning_rate"]
folder.mkdir(parents=True, exist_ok=True)
with (folder / "starts").open("a") as starts:
    starts.write("started\n")
if rate == 13:
    raise SystemExit("the file is not there")
if rate > 1:
    raise SystemExit("the loss or its gradient is NaN or infinite at step 3")
time.sleep(settings.get("warmup_steps", 0))
steps = settings.get("max_steps", 7)
best = -3 if overrides.get("norm_placement", "pre") == "pre" else -2  # the power of ten that suits it
loss = 2 + abs(math.log10(rate) - best) + 0.01 * settings["seed"]
record = {
    "finished": True,
    "metrics": {"eval_loss": loss, "train_runtime": 2.0},
    "details": {
        "steps": steps,
        "rows": {"train": 40},
        "data": {"train": {"mean length": 16.0}},
        "training": {
            "model_class": "VanillaDecoderForCausalLM",
            "parameters": 1000,
            "epochs": steps / 10,
            "resumed": None,
        },
    },
}
log = [{"step": 1, "loss": loss + 2}, {"step": steps, "loss": loss - (3 if rate < 0.5 else -3)}]
log += [{"step": step, "eval_loss": loss + 1 - step / steps} for step in (steps // 2, steps)]
config = {"model_type": "vanilla_decoder", "vocab_size": 100, **overrides}
for name, content in {"run.json": record, "trainer_state.json": {"log_history": log}, "config.json": config}.items():
    (folder / name).write_text(json.dumps(content))
