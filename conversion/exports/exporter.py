"""The steps of every export: refuse what the engine lacks by rules, write, compare its answers with the model's."""

import importlib.metadata
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import BaseImageProcessor, PreTrainedTokenizerBase

import vanillaformer.modeling as modeling
from vanillaformer.configuration import BlockConfig, VanillaConfig, layer_types
from vanillaformer.hub.atomic_files import check_free, new_folder
from vanillaformer.hub.checks import file_errors
from vanillaformer.hub.engines import EngineInfo
from vanillaformer.hub.file_names import EXPORT
from vanillaformer.tokenization import save_pair

from .checks import check
from .engine import Engine

INFINITE_WAVELENGTH = 1e30  # factor on a wavelength for a dimension that is not rotated

GENERATORS: tuple[type, ...] = (
    modeling.VanillaEncoderDecoderForConditionalGeneration,
    modeling.VanillaDecoderForCausalLM,
)
CLASSIFIERS: tuple[type, ...] = (
    modeling.VanillaDecoderForSequenceClassification,
    modeling.VanillaEncoderForMaskedLM,
    modeling.VanillaEncoderForPreTraining,
    modeling.VanillaEncoderForSequenceClassification,
    modeling.VanillaEncoderForTokenClassification,
)
IMAGE_CLASSIFIERS: tuple[type, ...] = (modeling.VanillaImageEncoderForImageClassification,)


class Rule(NamedTuple):
    """A field with values that an engine or format cannot express."""

    field: str  # the field of our config
    instead: str  # the alternative of the engine, as the end of a sentence
    # Whether a config has such a value; by default all values but `None` and `False` are
    forbids: Callable[[Any], bool] | None = None


def only(field: str, values: tuple[str, ...], subject: str) -> Rule:
    """Return the rule that a field must have one of some values; `subject` is, for example, "the engine has"."""
    instead = f"{subject} {', '.join(map(repr, values))}"
    return Rule(field, instead, lambda config: getattr(config, field) not in values)


def violations(rules: Iterable[Rule], config: Any) -> list[str]:
    """Return the fields that rules forbid, each with its value and the alternative."""
    reasons = []
    for rule in rules:
        value = getattr(config, rule.field, None)
        if rule.forbids(config) if rule.forbids else value is not None and value is not False:
            reasons.append(f"{rule.field}={value!r}, but {rule.instead}")
    return reasons


def all_layer_types(config: Any) -> set[str]:
    """Return the types of the layers of both sides."""
    return {*layer_types(config), *layer_types(getattr(config, "encoder_side", config))}


def ropes_of(config: Any) -> list[dict[str, Any]]:
    """Return the rotary parameters of each type of layer that has any."""
    return [rope for layer_type in all_layer_types(config) if (rope := config.rope_of(layer_type))]


WRITES_STEP_BY_STEP = Rule(
    "decoding", "engines write one token after the other", lambda c: c.decoding != "autoregressive"
)
SCALES_ONCE = Rule(
    "rope_parameters",
    "the scaling of positions in an export does not depend on the input's length",
    lambda c: any(rope.get("rope_type") in ("dynamic", "longrope") for rope in ropes_of(c)),
)
# For engines with their own code for blocks
PLAIN_BLOCKS = (
    Rule("layer_scale_init_value", "the engine has no factors on the sublayers' outputs"),
    Rule("residual_scale", "the engine adds sublayers' outputs as they are", lambda c: c.residual_scale != 1),
    Rule("skip_first_norm", "the engine has a norm in every sublayer"),
    Rule("attn_logit_softcapping", "the engine has no bound of attention scores"),
    Rule("value_residual", "the engine computes the values of each layer separately"),
    Rule("sliding_window", "the engine has full attention", lambda c: "sliding_attention" in all_layer_types(c)),
)
# For exports that translate
TRANSLATES = (
    Rule(
        "output_distribution",
        "the decoder of an export does not read the source's tokens",
        lambda c: getattr(c, "output_distribution", "softmax") != "softmax",
    ),
    Rule(
        "decoder_start_token_id",
        "a translation needs a token to start from",
        lambda c: c.is_encoder_decoder and c.decoder_start_token_id is None,
    ),
)


@dataclass(frozen=True)
class ExportJob:
    """A model and how to export it: the arguments of `export`."""

    model: Any
    folder: Path
    quantization: str = "float32"
    tokenizer: PreTrainedTokenizerBase | None = None
    target_tokenizer: PreTrainedTokenizerBase | None = None
    image_processor: BaseImageProcessor | None = None
    title: str = ""  # of a page
    card: str = ""
    transformers_js: Path | None = None  # where npm has installed it, for a page with its own copy


class Exporter:
    """Writes our models for one engine and loads them there; the base of all.

    `info` is the entry in the table of engines, `models` are the classes that the engine runs, `rules` forbid
    values of their configs, and `exact` are the `quantizations`, of which the first is the default, that keep the
    weights as they are.
    """

    info: EngineInfo
    engine_class: Any
    models: tuple[type, ...] = GENERATORS + CLASSIFIERS
    rules: tuple[Rule, ...] = ()
    quantizations: tuple[str, ...] = ("float32",)
    exact: tuple[str, ...] = ("float32",)
    reads_weights = True  # of the linear layers, instead of tracing the model

    def obstacles(self, model_class: type, config: Any) -> list[str]:
        """Return the obstacles to exporting a model: field, value, and what the engine has instead."""
        if model_class not in self.models:
            if isinstance(config, VanillaConfig) and not isinstance(config, BlockConfig):
                return ["the model is recurrent, but the engine computes Transformers"]
            if issubclass(model_class, IMAGE_CLASSIFIERS):
                return ["the model reads images, but the engine takes tokens"]
            return [f"the model must be a {' or '.join(allowed.__name__ for allowed in self.models)}"]
        return violations((WRITES_STEP_BY_STEP, *self.rules), config)

    def write(self, job: ExportJob) -> None:
        """Write the engine's files into an existing folder."""
        raise NotImplementedError

    def load(self, folder: Path, device: str = "cpu") -> Engine:
        """Return the engine with the files of `write`; raise ImportError if it is not installed."""
        library = self.info.runner.load()[0]
        with file_errors(f"{folder}: the exported model cannot be loaded"):
            return self.engine_class(library, folder, device)

    def export(self, job: ExportJob) -> str:
        """Export a model into a new or empty folder, and return the result of the comparison.

        The folder appears only when everything is written and checked.
        """
        self.refuse(job)
        self.info.writer.load()
        with new_folder(job.folder) as folder:
            job = replace(job, folder=folder, target_tokenizer=job.target_tokenizer or job.tokenizer)
            if job.tokenizer is not None and job.target_tokenizer is not None:
                save_pair(job.tokenizer, job.target_tokenizer, folder)
            if job.image_processor is not None:
                job.image_processor.save_pretrained(folder)
            self.write(job)
            if getattr(job.model, "generation_config", None) is not None:
                job.model.generation_config.save_pretrained(folder)
            self.write_record(job)
            checked = self.compare(job)
            self.write_record(job, checked)
        return checked

    def compare(self, job: ExportJob) -> str:
        """Compare the engine's answers with the model's, and return the result in words; raise if they differ."""
        return check(job.model, self.load(job.folder), job.quantization in self.exact)

    def refuse(self, job: ExportJob) -> None:
        """Raise ValueError for a job that cannot be done, before anything is written."""
        name, model_class = self.info.name, type(job.model)
        if job.quantization not in self.quantizations:
            raise ValueError(
                f"quantization={job.quantization!r}: {name} has {', '.join(map(repr, self.quantizations))}"
            )
        if obstacles := self.obstacles(model_class, job.model.config):
            raise ValueError(f"{model_class.__name__} cannot be exported to {name}: {'; '.join(obstacles)}")
        for path, module in job.model.named_modules():
            if self.reads_weights and hasattr(module, "base_layer"):
                raise ValueError(f"{path} has an adapter, which {name} cannot read: merge it into the weights first")
            if type(module).__name__ == "Int8Linear":  # of acceleration/, which is not imported here
                raise ValueError(f"{path} is in int8, which {name} cannot read: export the model before to_int8()")
        check_free(job.folder)

    def write_record(self, job: ExportJob, checked: str | None = None) -> None:
        """Write what `load` needs in addition to the engine's own files, and the result of the comparison."""
        modules = self.info.writer.load()
        versions = {module.__name__: getattr(module, "__version__", None) for module in modules}
        record = {
            "engine": self.info.name,
            "architecture": type(job.model).__name__,
            "quantization": job.quantization,
            "checked": checked,
            "versions": {"vanillaformer": importlib.metadata.version("vanillaformer"), **versions},
            "config": job.model.config.to_dict(),
        }
        (job.folder / EXPORT).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a copy of a tensor, in float32."""
    return tensor.detach().to("cpu", torch.float32, copy=True).contiguous().numpy()


def norm_arrays(module: Any, config: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the factors and the biases of a norm, or neutral ones if it has none."""
    width = getattr(module, "width", None) or module.normalized_shape[0]
    weight = np.ones(width, np.float32) if module.weight is None else array(module.weight)
    bias = np.zeros(width, np.float32) if module.bias is None else array(module.bias)
    return weight + np.float32(1) if config.norm_unit_offset else weight, bias


def wavelength_factors(frequencies: torch.Tensor, base: float) -> np.ndarray[Any, Any]:
    """Return base^(-2i/K) / frequency of each pair of dimensions (K/2): how much longer its wavelength is."""
    pairs = len(frequencies)
    unscaled = base ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    return array((unscaled / frequencies.detach().cpu().double()).nan_to_num(posinf=INFINITE_WAVELENGTH))
