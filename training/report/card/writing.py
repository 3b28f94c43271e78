"""Model cards: what a model is for, what it was made of and trained on, how good it is, and how to load and run it."""

import math
import re
from importlib.resources import files
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData
from jinja2 import Template

from vanillaformer.data.tasks import TASKS
from vanillaformer.hub.card_merging import generated_card

from ...metrics.scores import SCORES, label
from .facts import CardFacts
from .sections import card_variables

TEMPLATE = "model_card.md.jinja"

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


def model_card(facts: CardFacts) -> str:
    """Return the text of a model's card, with the marks by which `merged_card` knows what was generated."""
    template = (files(__package__) / TEMPLATE).read_text(encoding="utf-8")
    text = Template(template).render(**card_variables(facts))
    return generated_card(metadata(facts).to_yaml(), facts.name, text, facts.place)


def metadata(facts: CardFacts) -> ModelCardData:
    """Return what the Hub reads of a card."""
    source, scores = facts.source, facts.scores
    listed = {name for name, score in SCORES.items() if score.on_hub}
    license, license_name = _license(facts.license)
    evaluated = [
        _result(facts, key, value)
        for key, value in scores.items()
        if math.isfinite(value) and SCORES[key.split("_", 1)[1]].greater_is_better is not None
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
    """Return the Hub's id of a license, and the name of one that it does not know."""
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
