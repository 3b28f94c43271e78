"""ONNX: models of texts and image classifiers as graphs, for ONNX Runtime and all that read the format."""

import json
from typing import Any

import vanillaformer.modeling as modeling
from vanillaformer.configuration import VanillaImageEncoderConfig
from vanillaformer.hub.engines import ENGINES
from vanillaformer.hub.file_names import CONFIG

from ..exporter import (
    CLASSIFIERS,
    GENERATORS,
    IMAGE_CLASSIFIERS,
    SOFTMAX_ONLY,
    Exporter,
    ExportJob,
    Rule,
    scales_by_length,
    violations,
)
from .engine import OnnxEngine
from .graphs import save, trace

SHORTEST = 8  # position table that leaves room for the tokens of a trace

RULES = (
    SOFTMAX_ONLY,
    Rule("rope_parameters", "the scaling of positions in a graph does not depend on the length", scales_by_length),
    Rule(
        "max_position_embeddings",
        f"tracing a graph takes {SHORTEST}",
        lambda config: config.max_position_embeddings < SHORTEST and not isinstance(config, VanillaImageEncoderConfig),
    ),
    Rule(
        "decoder_start_token_id",
        "a translation needs a token to start from",
        lambda config: config.is_encoder_decoder and config.decoder_start_token_id is None,
    ),
)
OF_CLASSIFYING_DECODERS = Rule(
    "pad_token_id", "a classifying decoder finds the ends of texts by it", lambda config: config.pad_token_id is None
)


class OnnxExporter(Exporter):
    """Traces a model by `transformers.exporters`: `prefill` and `decode`, with `encoder`, or one graph `model`."""

    info = ENGINES["onnx"]
    engine_class = OnnxEngine
    models = GENERATORS + CLASSIFIERS + IMAGE_CLASSIFIERS
    rules = RULES
    quantizations = ("float32", "int8")

    def obstacles(self, model_class: type, config: Any) -> list[str]:
        more = (OF_CLASSIFYING_DECODERS,) if model_class is modeling.VanillaDecoderForSequenceClassification else ()
        return super().obstacles(model_class, config) + violations(more, config)

    def write(self, job: ExportJob) -> None:
        save(trace(job.model, quantizer_of(job.quantization)), job.folder)
        fields = job.model.config.to_dict() | {"architectures": [type(job.model).__name__]}
        fields.pop("auto_map", None)  # code that is not in the folder
        # for other tools; ours read the record
        (job.folder / CONFIG).write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


EXPORTER = OnnxExporter()


def quantizer_of(quantization: str) -> Any:
    """Return a quantizer of weights to 8 bits, and of activations at run time; `None` for `float32`.

    Both are unsigned, which the engine multiplies alike on every CPU: with signed weights, its kernels for CPUs
    without VNNI add two products in 16 bits, which overflow.
    """
    if quantization == "float32":
        return None
    from onnxruntime.quantization import QuantType
    from transformers.exporters import OnnxRuntimeDynamicConfig, OnnxRuntimeQuantizer

    return OnnxRuntimeQuantizer(OnnxRuntimeDynamicConfig(per_channel=True, weight_type=QuantType.QUInt8))
