"""The sections of a model card, each from the facts of a run."""

import json
from collections.abc import Iterable
from typing import Any

from vanillaformer.configuration.options import POSITION_CHOICES

from ..evaluation.confusion import part_in_words
from ..metrics.scores import label
from ..preprocessing.statistics import shortfalls
from ..tasks import TASKS
from .architecture import architecture, flops_per_token, short
from .facts import CardFacts, software
from .markdown import details, table
from .sources import language_name
from .techniques import techniques

# What stands in the table of the training, if it is set; the rest is in the command and in run.json.
SHOWN = (
    *(
        "learning_rate",
        "lr_scheduler_type",
        "warmup_steps",
        "weight_decay",
        "adam_beta1",
        "adam_beta2",
        "adam_epsilon",
    ),
    *("optim", "max_grad_norm", "tokens_per_batch", "rows_per_step", "seed", "data_seed"),
)
FEW = 12
CONFUSION = "confusion_matrix.png"


def introduction(facts: CardFacts) -> str:
    """Say what the model is and what it is for."""
    origin = f"from the weights of {facts.started_from}" if facts.started_from else "from scratch"
    package = "vanillaformer" if facts.is_ours else "transformers"
    return (
        f"This model {_task(facts)}. It is a Transformer of {short(facts.parameters)} parameters "
        f"(`{facts.model_class}` of the package {package}), trained {origin} on {facts.source.name}."
    )


def limits(facts: CardFacts) -> str:
    """Say what the model cannot be relied on for."""
    points = [
        "" if facts.started_from else facts.source.limits,
        _seen(facts),
        *_lengths(facts),
        *_held_out(facts),
        TASKS[facts.task].limits,
    ]
    return "## Limits\n\n" + "\n".join(f"- {point}" for point in points if point)


def results(facts: CardFacts) -> str:
    """Give the scores, how they were made, and the pictures."""
    names = list(dict.fromkeys(key.split("_", 1)[1] for key in facts.scores))
    cells = {key: f"{value:.4g}" for key, value in facts.scores.items()}
    rows = [(label(name), *(cells.get(f"{split}_{name}", "") for split in ("eval", "test"))) for name in names]
    if not rows:
        return ""
    if not any(row[2] for row in rows):
        text = table(("", "validation"), *(row[:2] for row in rows))
    else:
        text = table(("", "validation", "test"), *rows)
    notes = [f"- {label(name)}: `{signature}`" for name, signature in facts.signatures.items()]
    if "eval_bleu" in facts.metrics:
        beams = facts.choice("training", "generation_num_beams", 1), facts.choice("training", "num_beams", 1)
        notes.append(f"- beams: {beams[0]} on the validation data, {beams[1]} on the test data and in the saved model")
    if TASKS[facts.task].whole_texts:
        told = {split: shortfalls(facts.data.get(split, {})) for split in ("validation", "test")}
        notes += [f"- {split} data: {'; '.join(words)}" for split, words in told.items() if words]
    if "eval_bleu" in facts.metrics:
        notes.append("- references: the targets as they stand in the data")
    part = part_in_words(len(facts.config.id2label)) if facts.classifies else ""
    if part and CONFUSION in facts.pictures:
        notes.append(f"- the picture of the confusion matrix shows {part}")
    pictures = [f"![{name.removesuffix('.png').replace('_', ' ')}]({name})" for name in facts.pictures]
    return "\n\n".join(["## Results", text, *(["\n".join(notes)] if notes else []), *pictures])


def architecture_text(facts: CardFacts) -> str:
    """Describe the parts and what they cost."""
    config = facts.config
    left_out = ("id2label", "label2id", "auto_map")  # as long as there are classes, or of no interest
    stored = {key: value for key, value in config.to_diff_dict().items() if key not in left_out}
    text = json.dumps(stored, indent=2, ensure_ascii=False, default=str)
    whole = details("The whole configuration", f"```json\n{text}\n```")
    origin = f"Weights and architecture of {facts.started_from}" if facts.started_from else _preset(facts)
    if not facts.is_ours:
        return "\n\n".join(["## Architecture", f"{origin}. {facts.parameters:,} parameters.", whole])
    length, source = _trained_length(facts)
    flops = flops_per_token(config, length, source, head=not facts.classifies)
    where = f"with {source} source tokens and {length} target tokens, per target token" if source else f"at {length}"
    cost = f"{facts.parameters:,} parameters; a forward pass takes {short(flops)}FLOPs per token, " + (
        f"counted {where}." if source else f"counted {where} tokens."
    )
    rows = architecture(config, classifies=facts.classifies)
    return "\n\n".join(["## Architecture", f"{origin}. {cost}", table(("part", "choice"), *rows.items()), whole])


def data_text(facts: CardFacts) -> str:
    """Describe the data, split by split."""
    source = facts.source
    name = f"[{source.name}](https://huggingface.co/datasets/{source.identifier})" if source.on_hub else source.name
    lines = ["## Data", " ".join(filter(None, (f"{name}.", source.description))), f"Licence: {source.license}."]
    if source.languages:
        lines[-1] += f" Languages: {', '.join(map(language_name, source.languages))}."
    told = {split: _cells(values) for split, values in facts.data.items()}
    told = told or {split: {"rows": f"{rows:,}"} for split, rows in facts.rows.items()}
    names = list(dict.fromkeys(name for values in told.values() for name in values))
    lines.append(table(("", *told), *((name, *(values.get(name, "") for values in told.values())) for name in names)))
    return "\n\n".join([*lines, _tokenizer(facts)])


def training_text(facts: CardFacts) -> str:
    """Tell how the model was trained, on what, and for how long."""
    used = [
        technique.words for technique in techniques(facts.choices.get("training", {}), facts.choices.get("data", {}))
    ]
    training = facts.choices.get("training", {})
    shown = {name: training[name] for name in SHOWN if training.get(name) is not None}
    rows = {"steps": f"{facts.steps:,}" + (f" ({facts.epochs:.3g} epochs)" if facts.epochs else "")}
    if facts.tokens_seen:
        rows["tokens seen"] = f"about {short(facts.tokens_seen)}"
    seconds = facts.metrics.get("train_runtime")
    if seconds:
        rows["time"] = f"{_duration(seconds)}, evaluation included"
        if facts.resumed:
            rows["time"] += f" (since {facts.resumed}, from which it went on)"
        elif facts.tokens_seen:
            rows["time"] += f"; {short(facts.tokens_seen / seconds)} tokens per second"
    rows |= {**facts.hardware, "software": software()}
    settings = table(("setting", "value"), *((f"`{name}`", value) for name, value in shown.items()))
    return "\n\n".join(
        [
            f"## Training\n\n```bash\n{facts.command}\n```",
            f"Techniques: {'; '.join(used)}.",
            table(("", ""), *rows.items()),
            details("Settings", settings),
        ]
    )


# -------------------------------------------------------------------------------------------------------- sentences
def _task(facts: CardFacts) -> str:
    if "texts" in TASKS[facts.task].predicts:
        languages = facts.source.languages
        names = [language_name(code) for code in languages]
        if len(names) > 1:
            return f"translates from {names[0]} to {names[-1]}"
    if facts.classifies:
        names = [str(name) for name in facts.config.id2label.values()]
        listed = ", ".join(names[:FEW]) + (", ..." if len(names) > FEW else "")
        return TASKS[facts.task].does.format(count=len(names), names=listed)
    if facts.choice("data", "turns_column"):
        backwards = facts.choice("data", "reverse_turns")
        return "finds what came before a turn of a dialogue" if backwards else "answers in a dialogue"
    return TASKS[facts.task].does


def _seen(facts: CardFacts) -> str:
    tokens, rows = facts.train_tokens, facts.rows.get("train")
    if rows is None:
        return "It was trained on a stream of data, and tested on no other kind of text."
    size = f"{rows:,} training rows" + (f" ({short(tokens)} tokens)" if tokens else "")
    begun = f" besides what {facts.started_from} had learnt" if facts.started_from else ""
    return f"All it has learnt{begun} is from {size}; it was tested on no other kind of text."


def _lengths(facts: CardFacts) -> Iterable[str]:
    limit = getattr(facts.config, "max_position_embeddings", None)
    scheme = POSITION_CHOICES[getattr(facts.config, "position_embedding_type", "none")]
    length, source = _trained_length(facts)
    seen = f"{source} source and {length} target tokens" if source else f"{length} tokens"
    beyond = f"more than {limit:,} are an error" if limit and scheme.has_table else "longer ones were not tested"
    yield f"It was trained on rows of at most {seen}; {beyond}."
    unknown = max(
        (value for name, value in facts.data.get("train", {}).items() if name.endswith("unknown tokens")), default=0
    )
    if unknown:
        yield f"Its tokenizer does not know everything: {unknown:.2%} of the training tokens are unknown ones."


def _held_out(facts: CardFacts) -> Iterable[str]:
    if facts.choice("training", "load_best_model_at_end"):
        score = label(facts.choice("training", "metric_for_best_model", "loss"))
        yield f"The validation data chose the checkpoint (by {score.split(' (')[0]}), which flatters their scores" + (
            "." if any(name.startswith("test_") for name in facts.scores) else ", and there were no test data."
        )
    for split, values in facts.data.items():
        if shared := values.get("also in train"):
            yield f"{shared:,} of the {facts.rows.get(split, shared):,} {split} rows are in the training data too."


def _trained_length(facts: CardFacts) -> tuple[int, int | None]:
    """Return the longest row of the training, and the longest source of an encoder-decoder."""
    option, limit = TASKS[facts.task].length_option, getattr(facts.config, "max_position_embeddings", 0)
    length = facts.choice("data", option, limit)
    return length, facts.choice("data", "max_source_length", length) if facts.config.is_encoder_decoder else None


def _preset(facts: CardFacts) -> str:
    changes = [str(change) for change in facts.choice("model", "overrides", [])]
    changed = f" with {', '.join(f'`{change}`' for change in changes)}" if changes else ""
    return f"Preset `{facts.choice('model', 'preset', 'default')}`{changed}"


def _tokenizer(facts: CardFacts) -> str:
    told = facts.data.get("train", {})
    name = facts.choice("tokenizer", "tokenizer_name_or_path") or facts.started_from
    kind = (
        f"that of {name}" if name else f"`{facts.choice('tokenizer', 'tokenizer_algorithm', 'unknown')}`, trained here"
    )
    sizes = [
        f"{size:,} {side}tokens, of which {told.get(f'{side}vocabulary used', size):,} occur in the training data"
        for side in ("", "source ", "target ")
        if (size := told.get(f"{side}vocabulary"))
    ]
    return f"Tokenizer: {'; '.join([kind, *sizes])}."


def _cells(values: Any) -> dict[str, str]:
    """Return the facts on a split that fit a table; zeros and what stands elsewhere are left out."""
    cells = {}
    for name, value in sorted(values.items(), key=lambda entry: "rows" not in entry[0]):  # rows first
        if "vocabulary" in name or name == "padding" or (not value and name != "rows"):
            continue
        share = name.endswith("unknown tokens")
        name += " in tokens" if name.endswith(("mean length", "longest")) else ""
        cells[name] = f"{value:.2%}" if share else f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
    return cells


def _duration(seconds: float) -> str:
    minutes, hours = seconds / 60, seconds / 3600
    return f"{hours:.1f} h" if hours >= 2 else f"{minutes:.1f} min" if minutes >= 2 else f"{seconds:.3g} s"
