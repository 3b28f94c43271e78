"""Convert native models to ours and back: weights, config, generation config, dtype and device."""

import copy
import os
from typing import Any, NamedTuple

import torch
import transformers
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from vanillaformer.configuration import BlockConfig, VanillaConfig
from vanillaformer.hub.checks import check_unquantized
from vanillaformer.modeling.base import VanillaPreTrainedModel

from .architectures import ARCHITECTURES
from .mapping import weights
from .mapping.architecture import CLASSIFIERS, OUR_CLASSES, Architecture, main_head
from .mapping.fitting import Fit, changed_fields, fit, our_config

# Arguments of `from_pretrained` that find the files; the others concern the model
HUB_ARGUMENTS = {"cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token"}


def from_native(model: PreTrainedModel | str | os.PathLike, **kwargs: Any) -> VanillaPreTrainedModel:
    """Return our model with the weights of a transformers model, which computes the same.

    Args:
        model: A model of one of `ARCHITECTURES`, or a folder or Hub id with one.
        **kwargs: Passed to the native class's `from_pretrained` if `model` is a name. Pickles are only read with
            `use_safetensors=False`.

    Raises:
        ValueError: The architecture is not one of `ARCHITECTURES`, or the model has a feature that ours lacks.
    """
    if not isinstance(model, PreTrainedModel):
        return take_over(load_native(model, **kwargs))
    if kwargs:
        raise ValueError(f"{', '.join(kwargs)} only apply to a model given by its name")
    architecture, head, ours = counterpart(model)
    links, values = weights.checked_links(architecture, model, ours, head), weights.tensors_of(model)
    weights.write_tensors(ours, weights.to_our_values(links, values, ours.config, weights.tensors_of(ours).keys()))
    copy_runtime_state(model, ours)
    return ours


def counterpart(native: PreTrainedModel) -> tuple[Architecture, str, Any]:
    """Return the architecture and head of a native model, and a new model of ours that can hold its weights."""
    architecture = architecture_of(native.config)
    head = architecture.head_of(type(native).__name__)
    config = our_config(architecture, native.config, head, weights.fields_from_weights(architecture, native, head))
    return architecture, head, OUR_CLASSES[architecture.config_class][head]._from_config(config, dtype=native.dtype)


class NativeForm(NamedTuple):
    """State of a model before `take_over`, which `give_back` restores."""

    architecture: str
    head: str
    config: PreTrainedConfig


def take_over(native: PreTrainedModel) -> VanillaPreTrainedModel:
    """Return our model with the weights of a native one, which is empty afterwards.

    Our model keeps the native config in its attribute `native_form`, for `give_back`.

    Raises:
        ValueError: As `from_native`; the native model is unchanged then.
    """
    with no_init_weights():  # weights take no memory until they are written
        architecture, head, ours = counterpart(native)
    ours.tie_weights()
    weights.move_weights(architecture, native, ours, head)
    copy_runtime_state(native, ours)
    ours.name_or_path = native.name_or_path
    padding = getattr(native.get_input_embeddings(), "padding_idx", None)
    for name, module in ours.named_modules():
        if name.endswith("embed_tokens"):
            module.padding_idx = padding  # its row gets no gradient as an input; Marian's texts start with it
    ours.native_form = NativeForm(architecture.name, head, copy.deepcopy(native.config))
    return ours


def give_back(model: VanillaPreTrainedModel) -> PreTrainedModel:
    """Return the native form of a model from `take_over`: its class and config, with the current weights."""
    form: Any = model.native_form
    architecture, head, config = ARCHITECTURES[form.architecture], form.head, copy.deepcopy(form.config)
    if head in CLASSIFIERS:  # the data determines the meaning of its outputs
        config.problem_type = model.config.problem_type
    native = architecture.native_model(model.config, head, model.dtype, config)
    weights.write_tensors(native, weights.native_weights(architecture, model, native, head))
    copy_runtime_state(model, native)
    return native


def to_native(model: VanillaPreTrainedModel, architecture: str | None = None) -> PreTrainedModel:
    """Return a transformers model of a native architecture with the weights of one of ours, which computes the same.

    Biases that only the native model has are zeros. Where its sinusoidal table has our columns in another
    order, the dimensions of its weights and hidden states have that order too; its logits are the same.

    Args:
        model: One of our models.
        architecture: A name in `ARCHITECTURES`. Default: the only one of `native_architectures`.

    Raises:
        ValueError: The name is unknown, the config does not fit, or it fits no architecture or several.
    """
    head = head_of_ours(model)
    chosen, found = choose_architecture(model.config, head, architecture)
    ours = weights.convert_weights(model, found.config) if changed_fields(model.config, found.config) else model
    native = chosen.native_model(found.config, head, model.dtype)
    weights.write_tensors(native, weights.native_weights(chosen, ours, native, head))
    copy_runtime_state(model, native)
    return native


def head_of_ours(model: VanillaPreTrainedModel) -> str:
    """Return the head of one of our models; raise ValueError if it is not one that native models have."""
    heads = {model_class: head for heads in OUR_CLASSES.values() for head, model_class in heads.items()}
    if type(model) not in heads:
        raise ValueError(f"{type(model).__name__} is not one of the models that can be converted to a native one")
    return heads[type(model)]


def native_architectures(config: Any, head: str | None = None) -> list[str]:
    """Return the names of the architectures that a config fits with the fewest changes.

    These are the architectures that the config fits as it is. If there are none, they are those that it fits once
    biases of zeros are added; else those whose position table has another number of unused rows at its start; and
    last, those whose sinusoidal table has the same columns in another order, which the model's dimensions then take.

    Args:
        config: One of our configs.
        head: `lm` for the language models, `pretraining` for BERT's, `sequence` and `token` for classifiers,
            `question` for answers, `choice` for choices, `base` for the bare stack; of image models `image` for
            classifiers, `masked_image` and `base`. Default: `lm`, or `image` for images.
    """
    head = head or main_head(type(config))
    return cheapest({name: fit(architecture, config, head) for name, architecture in ARCHITECTURES.items()})


def cheapest(fits: dict[str, Fit]) -> list[str]:
    """Return the names of the fits without mismatches that cost the least."""
    costs = {name: found.cost for name, found in fits.items() if not found.mismatches}
    first = {name: cost for name, cost in costs.items() if not ARCHITECTURES[name].by_name}
    costs = first or costs
    return [name for name in costs if costs[name] == min(costs.values())]


def choose_architecture(config: BlockConfig, head: str, name: str | None) -> tuple[Architecture, Fit]:
    """Return the architecture `name`, or the only one of `native_architectures`, and how the config fits it."""
    if name is not None and name not in ARCHITECTURES:
        raise ValueError(f"architecture must be one of {', '.join(ARCHITECTURES)}, got {name!r}")
    fits = {each: fit(ARCHITECTURES[each], config, head) for each in ([name] if name else ARCHITECTURES)}
    names = cheapest(fits)
    if len(names) > 1:
        raise ValueError(f"this model fits several architectures, name one of them: {', '.join(names)}")
    if not names and name:
        raise ValueError(f"this model cannot be converted to {name}: {'; '.join(fits[name].mismatches)}")
    if not names:
        near = [each for each in ARCHITECTURES.values() if isinstance(config, each.config_class) and not each.by_name]
        ranked = sorted((each.name for each in near if head in each.heads), key=lambda one: len(fits[one].mismatches))
        nearest = " | ".join(f"{one}: {'; '.join(fits[one].mismatches)}" for one in ranked[:3])
        raise ValueError(f"this model fits no native architecture; nearest are {nearest}")
    return ARCHITECTURES[names[0]], fits[names[0]]


def architecture_of(config: PreTrainedConfig) -> Architecture:
    """Return the architecture of a native config; raise ValueError if it is not one of `ARCHITECTURES`."""
    if isinstance(config, VanillaConfig):
        raise ValueError(f"model_type={config.model_type!r} is one of ours already, not native")
    check_unquantized(config)
    if config.model_type not in ARCHITECTURES:
        raise ValueError(f"model_type must be one of {', '.join(ARCHITECTURES)}, got {config.model_type!r}")
    return ARCHITECTURES[config.model_type]


def load_native(name: str | os.PathLike, **kwargs: Any) -> PreTrainedModel:
    """Return the transformers model saved in a folder or on the Hub, with the head it was saved with."""
    config = AutoConfig.from_pretrained(name, **{key: kwargs[key] for key in HUB_ARGUMENTS & set(kwargs)})
    architecture = architecture_of(config)
    usual = architecture.native_class(main_head(architecture.config_class))
    class_name = (config.architectures or [usual])[0]
    architecture.head_of(class_name)
    kwargs = {"use_safetensors": True, **kwargs}
    model, report = getattr(transformers, class_name).from_pretrained(name, output_loading_info=True, **kwargs)
    if missing := sorted(report["missing_keys"]):
        raise ValueError(f"{name} has no {', '.join(missing)}, which a {class_name} needs")
    return model


def copy_runtime_state(source: PreTrainedModel, target: PreTrainedModel) -> None:
    """Copy the device, training mode, generation config and text prefix of a model to another."""
    if getattr(source.config, "prefix", None):
        target.config.prefix = source.config.prefix  # type: ignore[union-attr]  # pipelines read it
    if target.can_generate() and getattr(source, "generation_config", None) is not None:
        target.generation_config = copy.deepcopy(source.generation_config)
    torch.nn.Module.to(target, source.device)
    target.train(source.training)
