"""Model cards: what a model is for, what it was made of and trained on, how good it is, and how to load and run it."""

import math
import re
import shlex
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData

from vanillaformer.hub.card_merging import USE, generated_card

from ..metrics.scores import ENTRIES, label
from ..tasks import TASKS, TaskName
from .citations import citations
from .facts import CardFacts
from .sections import architecture_text, data_text, introduction, limits, results, training_text

CHAT = """turns = [{{"role": "user", "content": {example!r}}}]
inputs = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True, return_tensors="pt")
reply = model.generate(**inputs, max_new_tokens=32)[0, inputs["input_ids"].shape[1] :]
print(tokenizer.decode(reply, skip_special_tokens=True))"""
CHAT_PIPE = """pipe([{{"role": "user", "content": {example!r}}}], max_new_tokens=32)"""
LOAD = """{package}from transformers import {auto_class}, AutoTokenizer

folder = {folder!r}
tokenizer = AutoTokenizer.from_pretrained(folder{trust})
{target}model = {auto_class}.from_pretrained(folder{trust})
{use}
"""
PACKAGE = "import vanillaformer  # makes the Auto classes know the model\n"
TRUST = ", trust_remote_code=True"
TARGET = 'target_tokenizer = AutoTokenizer.from_pretrained(folder, subfolder="target_tokenizer"{trust})\n'
PIPE = """from transformers import pipeline

pipe = pipeline({task!r}, model={folder!r}, trust_remote_code=True)
print({call})
"""
# https://huggingface.co/docs/hub/repositories-licenses, without those that are one model's own
LICENSES = frozenset(
    """
    apache-2.0 mit openrail bigscience-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m afl-3.0 artistic-2.0
    bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0
    cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0
    cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0 cdla-permissive-2.0 wtfpl
    ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0 lgpl lgpl-2.1 lgpl-3.0
    isc mpl-2.0 ms-pl ncsa odc-by odbl openrail++ osl-3.0 postgresql ofl-1.1 unlicense zlib pddl unknown
    """.split()  # noqa: SIM905 - a list would be sixty lines
)


def loading_code(
    task: TaskName,
    folder: str | Path,
    example: str,
    *,
    separate_target: bool = False,
    package: bool = True,
    chat: bool = False,
) -> str:
    """Return a program that loads a saved model and uses it once.

    Args:
        task: What the model does.
        folder: Where it is saved (a folder or a Hub id).
        example: An input for it.
        separate_target: Whether the target has a tokenizer of its own.
        package: Use this package; otherwise the code that was saved with the model.
        chat: Whether the model answers in dialogues, and the example is what is said to it.
    """
    description = TASKS[task]
    if not package and description.pipe:
        call = (CHAT_PIPE if chat else description.pipe).format(example=example)
        return PIPE.format(task=description.pipeline_tag, folder=str(folder), call=call)
    decoder = "target_tokenizer" if separate_target else "tokenizer"
    trust = "" if package else TRUST
    return LOAD.format(
        package=PACKAGE if package else "",
        auto_class=description.auto_class.__name__,
        folder=str(folder),
        target=TARGET.format(trust=trust) if separate_target else "",
        trust=trust,
        use=(CHAT if chat else description.use).format(example=example, decoder=decoder),
    )


def model_card(facts: CardFacts) -> str:
    """Return the text of a model's card, with the marks by which `merged_card` knows what was generated."""
    parts = {
        "introduction": introduction(facts),
        "limits": limits(facts),
        USE: use_text(facts),
        "results": results(facts),
        "architecture": architecture_text(facts),
        "data": data_text(facts),
        "training": training_text(facts),
        "citations": citations(facts),
    }
    return generated_card(metadata(facts).to_yaml(), facts.name, parts, facts.place)


def use_text(facts: CardFacts) -> str:
    """Tell how to load the model and run it, with the package and without."""
    chat = facts.choice("data", "turns_column") is not None
    options = {"separate_target": facts.separate_target, "chat": chat}
    ours, theirs = (
        loading_code(facts.task, facts.place, facts.example, package=package, **options).strip()
        for package in (True, False)
    )
    if not facts.is_ours:
        return f"## How to use it\n\n```python\n{theirs.replace(TRUST, '')}\n```"
    command = shlex.join(["--model", facts.place, *(["--chat"] if chat else ["--text", facts.example])])
    text = (
        f"## How to use it\n\nWith the package vanillaformer:\n\n```python\n{ours}\n```\n\n"
        f"or `python -m vanillaformer.scripts.generate {command}`."
    )
    if TASKS[facts.task].pipe:
        text += f' `pipeline("{TASKS[facts.task].pipeline_tag}", ...)` works as well.'
    if not facts.has_code:
        return text
    return (
        f"{text}\n\nWithout it, by the code that is stored with the weights (read it first: it runs on your "
        f"machine):\n\n```python\n{theirs}\n```"
    )


def metadata(facts: CardFacts) -> ModelCardData:
    """Return what the Hub reads of a card."""
    source, scores = facts.source, facts.scores
    listed = {score.name for score in ENTRIES if score.on_hub}
    license, license_name = _license(facts.license)
    evaluated = [
        _result(facts, key, value)
        for key, value in scores.items()
        if math.isfinite(value) and not key.endswith("gen_len")
    ]
    from_hub = facts.started_from is not None and not Path(facts.started_from).exists()
    return ModelCardData(
        license=license,
        license_name=license_name,
        library_name="transformers",
        pipeline_tag=TASKS[facts.task].pipeline_tag,
        tags=["vanillaformer", facts.config.model_type],
        base_model=facts.started_from if from_hub else None,
        datasets=[source.identifier] if source.on_hub else None,
        language=source.languages or None,
        metrics=sorted({key.split("_", 1)[1] for key in scores} & listed) or None,
        model_name=facts.name,
        eval_results=evaluated or None,
    )


def _license(name: str | None) -> tuple[str | None, str | None]:
    """Return the Hub's id of a licence, and the name of one that it does not know."""
    if name is None or not name.strip():
        return None, None
    word = re.sub(r"[^a-z0-9.+-]+", "-", name.strip().lower()).strip("-")
    return (word, None) if word in LICENSES else ("other", word or name.strip())


def _result(facts: CardFacts, key: str, value: float) -> EvalResult:
    split, metric = key.split("_", 1)
    signature = facts.signatures.get(metric)
    return EvalResult(
        task_type=TASKS[facts.task].pipeline_tag,
        dataset_type=facts.source.identifier,
        dataset_name=facts.source.name,
        dataset_split="validation" if split == "eval" else "test",
        metric_type=metric,
        metric_name=label(metric),
        metric_value=float(f"{value:.6g}"),
        metric_args={"signature": signature} if signature else None,
    )
