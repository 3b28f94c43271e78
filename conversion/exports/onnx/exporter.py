"""ONNX: models of texts and image classifiers as graphs, in the layout that Hugging Face's libraries read."""

import json
from typing import Any

import torch

import vanillaformer.modeling as modeling
from vanillaformer.configuration import VanillaImageEncoderConfig
from vanillaformer.hub.engines import ENGINES
from vanillaformer.hub.file_names import CONFIG

from ...architectures import ARCHITECTURES
from ...convert import head_of_ours, native_architectures
from ...mapping.fitting import fit
from ..exporter import (
    CLASSIFIERS,
    GENERATORS,
    IMAGE_CLASSIFIERS,
    SCALES_ONCE,
    TRANSLATES,
    Exporter,
    ExportJob,
    Rule,
    violations,
)
from .engine import FOLDER, SUFFIXES, OnnxEngine
from .graphs import save, trace

JAVASCRIPT = {"float32": "fp32", "float16": "fp16", "int8": "q8"}
"""Names of the data types in transformers.js, which chooses files by them."""
JS_CONFIG = "transformers.js_config"  # the field with its settings
SHORTEST = 8  # minimum size of a position table, for the tokens of a trace

RULES = (
    *TRANSLATES,
    SCALES_ONCE,
    Rule("max_position_embeddings", f"tracing a graph takes {SHORTEST}",
         lambda c: c.max_position_embeddings < SHORTEST and not isinstance(c, VanillaImageEncoderConfig)),
)  # fmt: skip
OF_CLASSIFYING_DECODERS = Rule(
    "pad_token_id", "a classifying decoder finds the ends of texts by it", lambda c: c.pad_token_id is None
)


class OnnxExporter(Exporter):
    """Traces a model by `transformers.exporters`; its config is that of the native model that computes the same."""

    info = ENGINES["onnx"]
    engine_class = OnnxEngine
    models = GENERATORS + CLASSIFIERS + IMAGE_CLASSIFIERS
    rules = RULES
    quantizations = tuple(SUFFIXES)
    reads_weights = False

    def obstacles(self, model_class: type, config: Any) -> list[str]:
        more = (OF_CLASSIFYING_DECODERS,) if model_class is modeling.VanillaDecoderForSequenceClassification else ()
        return super().obstacles(model_class, config) + violations(more, config)

    def write(self, job: ExportJob) -> None:
        quantizer = None
        if job.quantization == "int8":
            from onnxruntime.quantization import QuantType
            from transformers.exporters import OnnxRuntimeDynamicConfig, OnnxRuntimeQuantizer

            # Weights and activations are unsigned, which the engine multiplies alike on every CPU: with signed
            # weights, its kernels for CPUs without VNNI add two products in 16 bits, which overflow
            quantizer = OnnxRuntimeQuantizer(OnnxRuntimeDynamicConfig(per_channel=True, weight_type=QuantType.QUInt8))
        graphs = trace(job.model, torch.float16 if job.quantization == "float16" else torch.float32, quantizer)
        settings: dict[str, Any] = {"dtype": JAVASCRIPT[job.quantization]}
        if large := save(graphs, job.folder / FOLDER, SUFFIXES[job.quantization]):
            settings["use_external_data_format"] = dict.fromkeys(large, 1)
        fields = config_fields(job.model) | {JS_CONFIG: settings}
        (job.folder / CONFIG).write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


EXPORTER = OnnxExporter()


def config_fields(model: Any) -> dict[str, Any]:
    """Return the `config.json` for other tools: that of the native model, or ours if none computes the same."""
    config, name = model.config, type(model).__name__
    if form := getattr(model, "native_form", None):  # it was native
        config, name = form.config, ARCHITECTURES[form.architecture].native_class(form.head)
    elif found := native_architectures(config, head := head_of_ours(model)):
        architecture = ARCHITECTURES[found[0]]
        config = architecture.to_native_config(fit(architecture, config, head).config, head)
        name = architecture.native_class(head)
    fields = config.to_dict() | {"architectures": [name]}
    fields.pop("auto_map", None)  # code that is not in the folder
    if prefix := getattr(model.config, "prefix", None):
        fields["prefix"] = prefix  # pipelines read it
    return fields
