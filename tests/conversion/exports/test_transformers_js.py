"""Exports of native models in transformers.js: the tokens of `generate()`, or the model's logits.

TRANSFORMERS_JS is a folder where `npm install @huggingface/transformers` was run. A few architectures of each kind
here, all that transformers.js and the conversion know with `TEST_ENGINES=all`.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from modeling.toys import relative_error
from transformers import AutoTokenizer

from conversion.natives import IMAGE_CONFIGS, LABELS, LM_CONFIGS, Case, native_model, poison
from vanillaformer.conversion.exports import export_folder
from vanillaformer.conversion.folders import random_images
from vanillaformer.tokenization import train

pytest.importorskip("onnxscript", reason="pip install 'vanillaformer[onnx]'")
NODE_PATH = f"{os.environ.get('TRANSFORMERS_JS', '.')}/node_modules{os.pathsep}{os.environ.get('NODE_PATH', '')}"
FOUND = any(Path(path, "@huggingface", "transformers").is_dir() for path in NODE_PATH.split(os.pathsep))
pytestmark = pytest.mark.skipif(
    not (shutil.which("node") and FOUND), reason="needs node, and @huggingface/transformers in TRANSFORMERS_JS"
)
SCRIPT = Path(__file__).with_suffix(".mjs")
TEXTS = ["a cab faced", "deaf", "add bee"]
NEW = 8
LENGTHS = {"max_new_tokens": NEW, "min_new_tokens": NEW}  # what is after an end differs
KINDS = {"Seq2SeqLM": "encoder_decoder", "CausalLM": "decoder"}
HEADS = {"SequenceClassification": "sequence", "TokenClassification": "token", "ImageClassification": "image"}
# By the task of transformers.js, before the line those that are always tested
ARCHITECTURES = {
    "Seq2SeqLM": "marian bart t5 m2m_100 | mbart mt5 blenderbot",
    "CausalLM": "gpt2 llama qwen3 gpt_neox opt bloom gemma2 | gemma gptj gpt_neo mistral qwen2 olmo olmo2 olmo3 arcee "
    "helium glm phi phi3 smollm3 starcoder2 stablelm cohere",
    "MaskedLM": "bert distilbert | modernbert roberta xlm-roberta camembert electra",
    "SequenceClassification": "| bert distilbert modernbert roberta",
    "TokenClassification": "| bert distilbert roberta",
    "ImageClassification": "vit | swin deit vit_msn dinov2 dinov2_with_registers beit",
}
SOME = slice(2 if os.environ.get("TEST_ENGINES") == "all" else 1)
CASES = [(task, name) for task, names in ARCHITECTURES.items() for name in " ".join(names.split("|")[SOME]).split()]


def varied(model, inputs):
    """The greedy tokens of a model, with those weights of several that make the most tokens."""

    def tokens(seed):
        poison(model, seed)
        return model.generate(**inputs, **LENGTHS, do_sample=False, num_beams=1).tolist()

    def variety(rows):
        return sum(len(set(row[-NEW:])) for row in rows)

    rows = tokens(max(range(20), key=lambda seed: variety(tokens(seed))))
    assert variety(rows) > 4
    return rows


@pytest.mark.parametrize(("task", "name"), CASES)
@torch.no_grad()
def test_the_same_tokens_or_logits(task, name, tmp_path):
    head, job = HEADS.get(task, "lm"), {"folder": str(tmp_path / "out"), "task": task}
    config = (IMAGE_CONFIGS | LM_CONFIGS)[name][0] | ({} if head == "lm" else LABELS)
    if head != "image":
        tokenizer = train(TEXTS, algorithm="character", kind=KINDS.get(task, "encoder"))
        config |= {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
        config |= {"bos_token_id": 2, "eos_token_id": 3} if task in KINDS else {}
    model = native_model(Case(name, config, head))
    if head == "image":
        inputs = {"pixel_values": random_images(model.config)}
        job["images"] = inputs["pixel_values"].tolist()
    else:
        tokenizer.padding_side = "left" if task == "CausalLM" else "right"
        tokenizer.save_pretrained(tmp_path / "native")
        model.config.save_pretrained(tmp_path / "native")  # by which transformers chooses the tokenizer's class
        inputs = AutoTokenizer.from_pretrained(tmp_path / "native")(TEXTS, padding=True, return_tensors="pt")
        job |= {"texts": TEXTS, "options": LENGTHS}
    expected = varied(model, inputs) if task in KINDS else model(**inputs).logits
    model.save_pretrained(tmp_path / "native")
    export_folder(str(tmp_path / "native"), tmp_path / "out", "onnx")
    options = {"env": os.environ | {"NODE_PATH": NODE_PATH}, "capture_output": True, "text": True, "timeout": 120}
    run = subprocess.run(["node", SCRIPT], input=json.dumps(job), **options)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert head == "image" or found["input_ids"] == inputs["input_ids"].tolist()
    if task in KINDS:
        assert found["tokens"] == expected
    else:
        both = torch.tensor(found["logits"]), expected
        if expected.ndim == 3:  # outputs at padding do not count
            both = tuple(logits[inputs["attention_mask"].bool()] for logits in both)
        assert relative_error(*both) < 1e-4
