"""`import vanillaformer` and `vanillaformer generate` cost little more than what every model of transformers needs."""

import json
import subprocess
import sys

# Libraries for data, metrics and pictures: the scripts load them when they use them.
HEAVY = ["datasets", "evaluate", "sklearn", "pandas", "matplotlib", "babel", "sacrebleu", "peft"]

# Of these, `generate` loads what a task needs when it is given: exports, data, the Trainer.
NOT_OF_GENERATE = [
    *(*HEAVY, "pyarrow", "tensorboard", "ctranslate2", "onnx", "onnxruntime", "gguf"),
    *("transformers.trainer", "transformers.training_args", "transformers.trainer_utils"),
    *("vanillaformer.conversion", "vanillaformer.training.run", "vanillaformer.training.trainer"),
    *("vanillaformer.training.models", "vanillaformer.data.preprocessing", "vanillaformer.training.report.card"),
    *("vanillaformer.data.loading", "vanillaformer.training.metrics", "vanillaformer.training.report"),
]

# First what transformers loads for models of its own, then ours; processor time, which other programs do not stretch.
PROGRAM = f"""
import json, sys, time
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification
from transformers import BertForMaskedLM, LlamaForCausalLM
known = set(sys.modules)
start = time.process_time()
import vanillaformer
seconds = time.process_time() - start
new = [name for name in sys.modules if name not in known]
sizes = dict(hidden_size=8, num_attention_heads=1, num_hidden_layers=1, vocab_size=9)
model = AutoModelForCausalLM.from_config(vanillaformer.VanillaDecoderConfig(**sizes))
assert type(model) is vanillaformer.VanillaDecoderForCausalLM
print(json.dumps([seconds, new, [name for name in {HEAVY} if name in new]]))
"""


def measure() -> tuple[float, list[str], list[str]]:
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    return tuple(json.loads(result.stdout.splitlines()[-1]))


def test_import_costs_little_over_transformers_own_models_and_loads_no_other_library():
    seconds, new, heavy = measure()
    assert "vanillaformer.modeling.decoder" in new, "the package was not imported: nothing was measured"
    assert not heavy, f"import vanillaformer loads {heavy}"
    if seconds > 0.3:  # once more, in case the machine was busy
        seconds, new, _ = measure()
    others = [name for name in new if not name.startswith("vanillaformer")]
    assert seconds <= 0.3, f"{seconds:.2f} s, with {len(others)} modules of others, among them {others[:20]}"


def loaded_after(*statements: str) -> list[set[str]]:
    """Return the modules that are loaded after each statement, one after the other in one process."""
    program = "\n".join(["import sys", *(f"{statement}\nprint(*sys.modules)" for statement in statements)])
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return [{*line.split()} for line in result.stdout.splitlines()[-len(statements) :]]


def test_generate_and_explore_load_neither_training_nor_exports():
    load = "import vanillaformer_cli; vanillaformer_cli.load_program({!r}, ['--model', 'x'])"
    generate, explore = loaded_after(load.format("generate"), load.format("explore"))
    assert "vanillaformer.inference.tasks" in generate
    assert not {*NOT_OF_GENERATE} & generate
    assert "vanillaformer.exploration.figures" in explore
    assert not {*NOT_OF_GENERATE, "gradio", "captum"} & explore - {"matplotlib"}


def test_training_a_translator_loads_few_of_our_modules():
    (loaded,) = loaded_after("import vanillaformer.scripts.train_translation")
    ours = {name for name in loaded if name.partition(".")[0] == "vanillaformer"}
    assert "vanillaformer.training.tasks.translation" in ours
    assert len(ours) <= 130
    assert not {"vanillaformer.training.tasks.images", "vanillaformer.data.images", "matplotlib"} & loaded
