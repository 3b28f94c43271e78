"""Turn native models into ours and back: weights, config, generation config, dtype and device."""

import copy
import os
from typing import Any

import torch
import transformers
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from vanillaformer.configuration import BlockConfig

from .architectures import ARCHITECTURES
from .mapping.architecture import OUR_CLASSES, Architecture
from .mapping.fitting import effort, refilled, what_fits
from .mapping.tensors import tensors_of, to_native_values, to_our_values, write
from .mapping.weights import check_computed, copies, known, links

# What `from_pretrained` takes to find a file; the rest is about the model
HUB_ARGUMENTS = {"cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token"}


def from_native(model: PreTrainedModel | str | os.PathLike, **kwargs: Any) -> PreTrainedModel:
    """Return our model with the weights of a transformers model, which computes the same.

    Args:
        model: A model of one of `ARCHITECTURES`, or a folder or Hub id with one.
        **kwargs: Passed to the native class's `from_pretrained` where `model` is a name. Pickles are not read unless
            there is a `use_safetensors=False`.

    Raises:
        ValueError: The architecture is not one of `ARCHITECTURES`, or the model has something that ours cannot say.
    """
    if not isinstance(model, PreTrainedModel):
        model = load_native(model, **kwargs)
    elif kwargs:
        raise ValueError(f"{', '.join(kwargs)} only apply where the model is given by its name")
    architecture = architecture_of(model.config)
    head = architecture.head_of(type(model).__name__)
    config = architecture.to_our_config(model.config, head, known(architecture, model, head))
    ours = OUR_CLASSES[architecture.config_class][head]._from_config(config, dtype=model.dtype)
    table = links(architecture, ours, model, head)
    check_computed(architecture, ours, model, head)
    write(ours, to_our_values(table, tensors_of(model), config, set(tensors_of(ours))))
    return like(ours, model)


def to_native(model: PreTrainedModel, architecture: str | None = None) -> PreTrainedModel:
    """Return a transformers model of a native architecture with the weights of ours, which computes the same.

    Biases that ours has not and the native one has are zeros. Where its sinusoidal table has the columns of ours in
    another order, the dimensions of its weights and hidden states have that order too; its logits are the same.

    Args:
        model: One of our models.
        architecture: A name out of `ARCHITECTURES`. Default: the one of `native_architectures`.

    Raises:
        ValueError: The name is unknown, the config does not fit, or it fits no architecture or several.
    """
    head = our_head(model)
    chosen = chosen_architecture(model.config, head, architecture)
    config = chosen.fitted(model.config, head)
    ours = refilled(model, config) if what_fits(model.config, config) else model
    native = chosen.native_model(config, head, model.dtype)
    values = to_native_values(links(chosen, ours, native, head), tensors_of(ours), config)
    write(native, values | copies(chosen, ours, native, head))
    return like(native, model)


def native_architectures(config: BlockConfig, head: str = "lm") -> list[str]:
    """Return the names that `to_native` chooses from for models with this config and head.

    These are the architectures that the config fits as it is. Where there are none, they are those that it fits once
    biases are added, which are zeros; where there are none either, those whose position table has other unused rows in
    front as well; and last, those whose sinusoidal table has the same columns in another order, which the model's
    dimensions then have too.

    Args:
        config: One of our configs.
        head: `lm` for the language models, `pretraining` for BERT's, `sequence` and `token` for classifiers, `base`
            for the bare stack.
    """
    fitting = [name for name, architecture in ARCHITECTURES.items() if not architecture.obstacles(config, head)]
    efforts = {name: effort(config, ARCHITECTURES[name].fitted(config, head)) for name in fitting}
    return [name for name in fitting if efforts[name] == min(efforts.values())]


def chosen_architecture(config: BlockConfig, head: str, name: str | None) -> Architecture:
    """Return the architecture called `name`, or the only one that fits."""
    if name is not None:
        if name not in ARCHITECTURES:
            raise ValueError(f"architecture must be one of {', '.join(ARCHITECTURES)}, got {name!r}")
        if obstacles := ARCHITECTURES[name].obstacles(config, head):
            raise ValueError(f"this model is no {name}: {'; '.join(obstacles)}")
        return ARCHITECTURES[name]
    names = native_architectures(config, head)
    if len(names) > 1:
        raise ValueError(f"this model fits several architectures, name one of them: {', '.join(names)}")
    if not names:
        raise ValueError(f"this model fits no native architecture; nearest are {nearest(config, head)}")
    return ARCHITECTURES[names[0]]


def nearest(config: BlockConfig, head: str, number: int = 3) -> str:
    """Return the architectures with the fewest obstacles, with those."""
    found = {
        name: architecture.obstacles(config, head)
        for name, architecture in ARCHITECTURES.items()
        if isinstance(config, architecture.config_class) and head in architecture.heads
    }
    ranked = sorted(found, key=lambda name: len(found[name]))[:number]
    return " | ".join(f"{name}: {'; '.join(found[name])}" for name in ranked)


def our_head(model: PreTrainedModel) -> str:
    """Return the head of one of our models.

    Raises:
        ValueError: It is none of ours, or one that no native model has.
    """
    for heads in OUR_CLASSES.values():
        for head, model_class in heads.items():
            if type(model) is model_class:
                return head
    raise ValueError(f"{type(model).__name__} is not one of the models that can be converted to a native one")


def architecture_of(config: PreTrainedConfig) -> Architecture:
    """Return the architecture of a native config.

    Raises:
        ValueError: It is not one of `ARCHITECTURES`.
    """
    if isinstance(config, BlockConfig):
        raise ValueError(f"model_type={config.model_type!r} is not native: the model is one of ours already")
    if config.model_type not in ARCHITECTURES:
        raise ValueError(f"model_type must be one of {', '.join(ARCHITECTURES)}, got {config.model_type!r}")
    return ARCHITECTURES[config.model_type]


def load_native(name: str | os.PathLike, **kwargs: Any) -> PreTrainedModel:
    """Return the transformers model saved in a folder or on the Hub, with the head it was saved with.

    Raises:
        ValueError: It is of no known architecture or head, or its file lacks tensors.
    """
    config = AutoConfig.from_pretrained(name, **{key: kwargs[key] for key in HUB_ARGUMENTS & set(kwargs)})
    architecture = architecture_of(config)
    class_name = (config.architectures or [architecture.heads["lm"].native_class])[0]
    architecture.head_of(class_name)
    kwargs = {"use_safetensors": True, **kwargs}
    model, report = getattr(transformers, class_name).from_pretrained(name, output_loading_info=True, **kwargs)
    if missing := sorted(report["missing_keys"]):
        raise ValueError(f"{name} has no {', '.join(missing)}, which a {class_name} is made of")
    return model


def like(model: PreTrainedModel, source: PreTrainedModel) -> PreTrainedModel:
    """Return a model with the device, mode and generation config of another."""
    if model.can_generate() and getattr(source, "generation_config", None) is not None:
        model.generation_config = copy.deepcopy(source.generation_config)
    device: torch.device = source.device
    return model.to(device).train(source.training)
