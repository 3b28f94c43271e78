"""Models for a task: new from a preset, or from saved weights."""

import copy
import dataclasses
import difflib
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from vanillaformer.configuration import PRESETS, VanillaConfig, preset
from vanillaformer.configuration.options import DECODING_CHOICES
from vanillaformer.console.parsing import was_given
from vanillaformer.console.reporting import one_line, report
from vanillaformer.data.tasks import KINDS, TASKS, Task, TaskName
from vanillaformer.hub.checks import check_unquantized
from vanillaformer.hub.loading import open_config, open_model, readable_length

from .arguments import ModelArguments
from .hardware import warn_of_emulation

Fields = dict[str, Any]

SWITCHED_OFF = {"scheduled_sampling": "none", "num_beams": 1}
"""Values that switch options off, where they are not 0."""
SAMPLING = {"do_sample": True, "temperature": 0.8, "top_p": 0.95}  # how a new language model generates


def check_preset(task: TaskName, arguments: ModelArguments) -> str:
    """Return the kind of model that the arguments ask for; raise ValueError for a preset that the task cannot have."""
    if arguments.preset is not None and arguments.model_name_or_path is not None:
        raise ValueError(
            f"--preset {arguments.preset} makes a new model, --model_name_or_path {arguments.model_name_or_path} "
            "starts from a saved one: give one of them"
        )
    name = arguments.preset or TASKS[task].preset
    kinds = {known: KINDS[entry.config_class.model_type] for known, entry in PRESETS.items()}
    fitting = [known for known, kind in kinds.items() if kind in TASKS[task].model_kinds]
    if name not in fitting:
        raise ValueError(f"--preset {name}: choose from {', '.join(fitting)}")
    return kinds[name]


def check_model(task: TaskName, arguments: ModelArguments, *, length: int) -> PreTrainedConfig:
    """Return the checked config of a model before anything is loaded, except for what depends on the tokenizers.

    Raises ValueError where a field does not exist (it would be stored and never read) or cannot have its value, or the
    model has too few positions for rows of `length` tokens, or no token types for the segments of a pair.
    """
    changes, path = arguments.config_overrides(), arguments.saved
    name = arguments.preset or TASKS[task].preset
    start = preset(name) if path is None else open_config(path)
    check_unquantized(start)
    if isinstance(start, VanillaConfig):
        start.refuse_unknown(changes)
        known = start.keywords()
    else:
        known = {field.name for field in dataclasses.fields(start)} | set(start.attribute_map)  # type: ignore[arg-type]
    for field in changes:
        if field not in known:
            close = difflib.get_close_matches(field, sorted(known), n=1, cutoff=0.5)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"--set {field}={changes[field]}: {type(start).__name__} has no field {field!r}{hint}")
    try:
        config = preset(name, **changes) if path is None else AutoConfig.from_pretrained(path, **changes)
    except (StrictDataclassError, TypeError, ValueError) as error:
        raise ValueError(f"--set {' '.join(arguments.overrides)}: {one_line(error)}") from error
    limit = readable_length(config)
    if limit is not None and length > limit:
        raise ValueError(
            f"rows of up to {length} tokens do not fit max_position_embeddings={config.max_position_embeddings} of "
            f"the model, which reads {limit}: make the rows shorter (--block_size, --max_..._length) or a new model "
            f"longer (--set max_position_embeddings={length})"
        )
    types = getattr(config, "type_vocab_size", 0)
    if "sentence_pairs" in TASKS[task].predicts and types < 2:
        raise ValueError(
            f"--objective mlm+nsp marks two segments by token types, of which the model has type_vocab_size={types}: "
            "--set type_vocab_size=2"
        )
    return config


def build_model(
    task: TaskName,
    arguments: ModelArguments,
    *tokenizers: PreTrainedTokenizerBase,
    length: int = 0,
    seed: int,
    labels: list[str] | None = None,
    fields: Fields | None = None,
    trained: Path | None = None,
) -> PreTrainedModel:
    """Return the model for a task, new or from saved weights, with the vocabulary of the tokenizers.

    There is one tokenizer, or one for the source and one for the target. `length` is the length of the longest row in
    tokens; `labels` are the names of the classes, `fields` the config fields of a new model that follow the data,
    unless they are set. `trained` is the folder of a finished run, whose model is loaded.
    """
    set_seed(seed)
    if arguments.dtype == "bfloat16" and not torch.accelerator.is_available():
        warn_of_emulation("--dtype bfloat16", "cpu")
    if trained is None:
        check_model(task, arguments, length=length)
    changes = {} if trained is not None else arguments.config_overrides()
    extra = {"id2label": dict(enumerate(labels)), "label2id": {n: i for i, n in enumerate(labels)}} if labels else {}
    common = {"attn_implementation": arguments.attn_implementation, "dtype": arguments.dtype}
    description, path = TASKS[task], trained or arguments.saved
    if path is not None:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False, **changes, **extra)
        if tokenizers and getattr(config, "pad_token_id", None) is None:
            config.pad_token_id = tokenizers[0].pad_token_id
        _check_sizes(config, *tokenizers)
        where = str(trained) if trained is not None else f"--model_name_or_path {arguments.model_name_or_path}"
        if not isinstance(config, VanillaConfig) and type(config) not in description.auto_class._model_mapping:
            missing = f"transformers has no {description.auto_class.__name__} for models of type {config.model_type!r}"
            raise ValueError(f"{where}: {missing}; `vanillaformer convert --from` may make one that can have it")
        if labels and trained is None:
            return open_classifier(description, path, where, config=config, **common)
        return open_model(description.auto_class, path, where, config=config, **common)
    found = dict(fields or {})
    if tokenizers:
        found |= token_fields(check_preset(task, arguments), tokenizers[0], tokenizers[-1])
    config = preset(arguments.preset or description.preset, **(found | changes | extra))
    _check_sizes(config, *tokenizers)
    common["dtype"] = "float32" if arguments.dtype == "auto" else arguments.dtype
    return description.auto_class.from_config(config, **common)


def fit_decoding(config: PreTrainedConfig, training_args: Any) -> None:
    """Switch options off that the way of decoding excludes; raise ValueError if one of them was given."""
    decoding = getattr(config, "decoding", "autoregressive")
    for name in DECODING_CHOICES[decoding].excludes:
        value, off = getattr(training_args, name), SWITCHED_OFF.get(name, 0.0)
        if value != off and was_given(training_args, name):
            raise ValueError(
                f"--{name} {value}: the model has decoding={decoding!r}, which predicts all tokens at once"
            )
        setattr(training_args, name, off)
    if getattr(config, "cross_attention", None) == "none" and (weight := training_args.guided_attention):
        raise ValueError(f"--guided_attention {weight}: the model has cross_attention='none'")


def set_generation(model: PreTrainedModel, task: TaskName, *, length: int, **search: Any) -> None:
    """Set the generation config that the model is saved with: translations as long as in training, texts sampled.

    The most likely continuation of a small language model soon repeats itself. A saved model that samples keeps its
    settings. `search` has the options of a translator: `num_beams`, `length_penalty`, `early_stopping`.
    """
    if not TASKS[task].generates:
        return
    native = getattr(model, "native_form", None) is not None  # which keeps its settings
    if model.config.is_encoder_decoder:
        lengths = {} if native and model.generation_config.max_length else {"max_length": length + 1}  # start token
        model.generation_config.update(**lengths, **search)
    elif not native:
        model.generation_config.max_length = None  # beside `max_new_tokens`, transformers warns of it
        if not model.generation_config.do_sample:
            model.generation_config.update(**SAMPLING)


def token_fields(kind: str, source: PreTrainedTokenizerBase, target: PreTrainedTokenizerBase) -> Fields:
    """Return the fields of a new model's config that its tokenizers determine."""
    sizes = {"vocab_size": len(source)}
    if kind == "encoder":
        return {**sizes, "pad_token_id": source.pad_token_id}
    ids = {f"{name}_token_id": getattr(target, f"{name}_token_id") for name in ("pad", "bos", "eos")}
    if kind == "decoder":
        return {**sizes, **ids}
    if source.pad_token_id != target.pad_token_id:
        raise ValueError(
            f"source and target tokenizer pad with different ids, {source.pad_token_id} and {target.pad_token_id}: "
            "the model has one pad_token_id for both"
        )
    start = target.pad_token_id if target.bos_token_id is None else target.bos_token_id
    sizes |= {"decoder_vocab_size": len(target), "decoder_start_token_id": start}
    return {**sizes, **ids, "share_encoder_decoder_embeddings": source is target}


def _check_sizes(config: PreTrainedConfig, *tokenizers: PreTrainedTokenizerBase) -> None:
    """Raise ValueError if a tokenizer has more tokens than the model."""
    if not tokenizers:
        return
    sizes = {"vocab_size": config.vocab_size}
    sizes["decoder_vocab_size"] = getattr(config, "decoder_vocab_size", None) or config.vocab_size
    for (name, size), tokenizer in zip(sizes.items(), (tokenizers[0], tokenizers[-1])):
        if size < len(tokenizer):
            raise ValueError(f"the model's {name}={size} is smaller than its tokenizer's {len(tokenizer)} tokens")


def open_classifier(task: Task, path: Path, where: str, config: Any, **common: Any) -> PreTrainedModel:
    """Return the model in `path` with the classes of its new config.

    A classifier with the same classes keeps its output layer, in their order; any other model gets a new one.
    """
    model_class: Any = task.auto_class
    saved_config: Any = open_config(path)
    if not any(name.endswith(task.architectures) for name in saved_config.architectures or ()):
        return open_model(model_class, path, where, config=config, **common)
    # A class without a name, such as LABEL_3, has its number
    names = [str(name) for _, name in sorted(saved_config.id2label.items())]
    saved, labels = ([name.removeprefix("LABEL_") for name in names] for names in (names, config.id2label.values()))
    config.problem_type = None  # one class for each row, whatever it was
    if labels == saved:
        return open_model(model_class, path, where, config=config, **common)
    old_config = copy.deepcopy(config)
    old_config.num_labels = len(saved)
    old = open_model(model_class, path, where, config=old_config, **common)
    dimensions, weights = class_dimensions(model_class, config), old.state_dict()
    if set(labels) == set(saved):
        report(f"{where} has the same classes in another order: its output layer is reordered by their names.")
        order = torch.tensor([saved.index(name) for name in labels])
        weights |= {name: weights[name].index_select(at, order) for name, at in dimensions.items()}
    else:
        listed = f"{', '.join(saved[:5])}{', ...' if len(saved) > 5 else ''}"
        report(f"{where} has other classes ({listed}): the output layer is new, all other weights are loaded.")
        weights = {name: value for name, value in weights.items() if name not in dimensions}
    new = model_class.from_config(config, attn_implementation=common["attn_implementation"], dtype=old.dtype)
    new.load_state_dict(weights, strict=False)
    return new


def class_dimensions(model_class: Any, config: Any) -> dict[str, int]:
    """Return the dimension of the classes, by name, of each weight that has one."""
    more = copy.deepcopy(config)
    more.num_labels += 1
    with torch.device("meta"):
        weights, larger = (model_class.from_config(each).state_dict() for each in (copy.deepcopy(config), more))
    differ = {name: [a != b for a, b in zip(weight.shape, larger[name].shape)] for name, weight in weights.items()}
    return {name: sizes.index(True) for name, sizes in differ.items() if any(sizes)}
