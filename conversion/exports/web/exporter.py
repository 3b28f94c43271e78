"""A page without a server: ONNX graphs, and an `index.html` in which transformers.js runs them."""

import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import yaml

import vanillaformer.modeling as modeling
from vanillaformer.configuration.options import POSITION_CHOICES
from vanillaformer.hub.checks import read_json
from vanillaformer.hub.engines import ENGINES
from vanillaformer.hub.file_names import CARD, CONFIG
from vanillaformer.tokenization.pairs import TARGET_SUBFOLDER

from ...tokens import SPECIAL
from ..exporter import GENERATORS, IMAGE_CLASSIFIERS, ExportJob
from ..onnx.engine import FOLDER
from ..onnx.exporter import JS_CONFIG, OnnxExporter

VERSION = "4.3.1"
ADDRESS = f"https://cdn.jsdelivr.net/npm/@huggingface/transformers@{VERSION}"
LIBRARY, RUNTIME = "transformers.js", "ort-wasm-simd-threaded"
# Files copied from a folder `node_modules`
COPIES = (
    "@huggingface/transformers/dist/transformers.min.js",
    "@huggingface/transformers/LICENSE",
    f"onnxruntime-web/dist/{RUNTIME}.mjs",
    f"onnxruntime-web/dist/{RUNTIME}.wasm",
)


class Task(NamedTuple):
    """A page's task, and the class of transformers.js for it, whose config is only read for the cache's names."""

    name: str
    summary: str
    labels: list[str]  # of input and output
    model: str
    config: dict[str, Any]
    new_tokens: int = 0
    limit: str = ""


WORDS = yaml.safe_load(Path(__file__).with_name("tasks.yaml").read_text(encoding="utf-8"))
TRANSLATE, CONTINUE, CLASSIFY, IMAGE = (Task(name, **words) for name, words in WORDS.items())
TASKS: dict[type, Task] = {
    **dict(zip(GENERATORS, (TRANSLATE, CONTINUE))),
    modeling.VanillaEncoderForSequenceClassification: CLASSIFY,
    modeling.VanillaDecoderForSequenceClassification: CLASSIFY,
    **dict.fromkeys(IMAGE_CLASSIFIERS, IMAGE),
}
LIMITS = re.compile(r"^## Limits\n(.*?)(?=^#|\Z)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[([^]]*)\]\([^)]*\)|[`*]")


class WebExporter(OnnxExporter):
    """Writes the graphs, a page that runs them for one task, and a README.md for a static Space of the Hub."""

    info = ENGINES["web"]
    models = tuple(TASKS)
    quantizations = ("int8", "float32")

    def obstacles(self, model_class: type, config: Any) -> list[str]:
        found = super().obstacles(model_class, config)
        if TASKS.get(model_class) is IMAGE and config.num_channels != 3:
            found.append(f"num_channels={config.num_channels!r}, but an image in a browser has 3")
        return found

    def refuse(self, job: ExportJob) -> None:
        super().refuse(job)
        if TASKS[type(job.model)] is IMAGE:
            if job.image_processor is None:
                raise ValueError("a page needs the image processor of its model, which has none")
        elif not getattr(job.tokenizer, "is_fast", False):
            has = "none" if job.tokenizer is None else f"a {type(job.tokenizer).__name__} without one"
            raise ValueError(f"a page needs a tokenizer with a tokenizer.json: the model has {has}")
        if missing := [path for path in self.copies(job) if not path.is_file()]:
            raise ValueError(f"{missing[0]} is missing: run npm install @huggingface/transformers in that folder")

    def copies(self, job: ExportJob) -> list[Path]:
        """Return the files of transformers.js to copy, none if the page loads it from the web."""
        packages = job.transformers_js and job.transformers_js / "node_modules"
        return [packages / name for name in COPIES] if packages else []

    def write(self, job: ExportJob) -> None:
        from vanillaformer.console.drawing import templates  # it imports matplotlib, which no other export needs

        super().write(job)
        task, copies = TASKS[type(job.model)], self.copies(job)
        for path in copies:
            (job.folder / LIBRARY).mkdir(exist_ok=True)
            shutil.copyfile(path, job.folder / LIBRARY / path.name)
        size = sum(path.stat().st_size for path in (job.folder / FOLDER).iterdir())
        page = page_settings(job, task, size, copies)
        texts = texts_of(job, task) | {"labels": task.labels, "size": f"{size / 1e6:.1f} MB", "page": page}
        for name, template in (("index.html", "page.html.jinja"), (CARD, "README.md.jinja")):
            text = templates("vanillaformer.conversion.exports.web").get_template(template).render(**texts)
            (job.folder / name).write_text(text.rstrip() + "\n", encoding="utf-8")


EXPORTER = WebExporter()


def page_settings(job: ExportJob, task: Task, size: int, copies: list[Path]) -> dict[str, Any]:
    """Return the settings that the script in the page reads."""
    config = job.model.config
    tokens = {name: getattr(config, name, None) for name in SPECIAL}
    depth = {"decoder_layers": config.num_hidden_layers, "n_layer": config.num_hidden_layers}
    files = {JS_CONFIG: read_json(job.folder / CONFIG)[JS_CONFIG]}
    labels = None if task.new_tokens else [config.id2label[number] for number in range(config.num_labels)]
    table = POSITION_CHOICES[config.position_embedding_type].has_table
    return {
        "task": task.name,
        "model": task.model,
        "config": task.config | depth | {name: token for name, token in tokens.items() if token is not None} | files,
        "labels": labels,
        "prefix": (task is TRANSLATE and getattr(config, "prefix", None)) or "",
        "several": config.problem_type == "multi_label_classification",
        "scores": config.problem_type == "regression" or (labels is not None and len(labels) == 1),
        "target": TARGET_SUBFOLDER if (job.folder / TARGET_SUBFOLDER).is_dir() else None,
        "new_tokens": task.new_tokens,
        "longest": config.max_position_embeddings if table and task is not IMAGE else None,
        "bytes": size,
        "library": f"./{LIBRARY}/{copies[0].name}" if copies else ADDRESS,
        "runtime": f"./{LIBRARY}/{RUNTIME}" if copies else None,
    }


def texts_of(job: ExportJob, task: Task) -> dict[str, Any]:
    """Return the texts of a page about its model, from the card and the task."""
    heading = re.search(r"^# (.+)$", job.card, re.MULTILINE)
    limits = re.findall(r"^- (.+)$", "".join(LIMITS.findall(job.card)), re.MULTILINE)
    kind = job.model.config.model_type.removeprefix("vanilla_").replace("_", "-")
    size = f"A Transformer ({kind}) with {job.model.num_parameters():,} parameters."
    facts = re.findall(r"^This model .*$", job.card, re.MULTILINE)[:1] or [size]
    facts += ["Its weights are rounded to 8 bits, which changes its answers a little."] * (job.quantization == "int8")
    search = "; each new token is the most probable one" * bool(task.new_tokens)
    end = end_of_turn(job.tokenizer) if task is CONTINUE else None
    facts.append(f"It was made with vanillaformer and is run by transformers.js{search}.")
    return {
        "title": heading.group(1) if heading else job.title,
        "summary": task.summary if end is None else f"Type a turn of a dialogue, then {end}, and the model answers.",
        "facts": [plain(fact) for fact in facts],
        "limits": [task.limit, *map(plain, limits)],
    }


def end_of_turn(tokenizer: Any) -> str | None:
    """Return what a chat template writes after a turn, if that is all that it adds."""
    if not isinstance(getattr(tokenizer, "chat_template", None), str):
        return None
    turn = [{"role": "user", "content": "x"}]
    text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    before, _, after = text.partition("x")
    return after if after and before in ("", tokenizer.bos_token) else None


def plain(text: str) -> str:
    """Return a line of Markdown without its marks."""
    return LINK.sub(lambda found: found.group(1) or "", text)
