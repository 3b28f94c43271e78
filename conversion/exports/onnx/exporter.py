"""ONNX: all three model types as graphs for ONNX Runtime and every other engine that reads the format."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

import vanillaformer.modeling as modeling
from vanillaformer.configuration import layer_types

from ..engine import Engine
from ..exporter import Exporter
from .engine import OnnxEngine
from .graphs import save, trace

MODELS = (
    modeling.VanillaEncoderDecoderForConditionalGeneration,
    modeling.VanillaDecoderForCausalLM,
    modeling.VanillaDecoderForSequenceClassification,
    modeling.VanillaEncoderForMaskedLM,
    modeling.VanillaEncoderForPreTraining,
    modeling.VanillaEncoderForSequenceClassification,
    modeling.VanillaEncoderForTokenClassification,
)
LENGTH_DEPENDENT = ("dynamic", "longrope")  # scalings of rotary positions

SHORTEST = 8  # position table that leaves room for the tokens of a trace

Rule = tuple[str, Callable[[type, Any], bool], str]
# A field, when it stands in the way, and what a graph has instead
RULES: list[Rule] = [
    (
        "rope_parameters",
        lambda model_class, config: not rope_types(config).isdisjoint(LENGTH_DEPENDENT),
        "a graph's scaling of positions does not depend on the input's length",
    ),
    (
        "max_position_embeddings",
        lambda model_class, config: config.max_position_embeddings < SHORTEST,
        f"a trace takes {SHORTEST}",
    ),
    (
        "decoder_start_token_id",
        lambda model_class, config: config.is_encoder_decoder and config.decoder_start_token_id is None,
        "a translation starts from one",
    ),
    (
        "pad_token_id",
        lambda model_class, config: (
            model_class is modeling.VanillaDecoderForSequenceClassification and config.pad_token_id is None
        ),
        "a batch of texts has ends that padding marks",
    ),
]


def rope_types(config: Any) -> set[str]:
    """Return the scalings of rotary positions that a config's layers have."""
    types = {*layer_types(config), *layer_types(getattr(config, "encoder_side", config))}
    entries = [config.rope_of(layer_type) for layer_type in types]
    return {entry.get("rope_type", "default") for entry in entries if entry}


class OnnxExporter(Exporter):
    """Traces a model by `transformers.exporters`: `prefill` and `decode`, with `encoder`, or one graph `model`."""

    name = "onnx"
    runtime = "onnxruntime"
    extra = "onnx"
    packages = ("onnxruntime", "onnx", "onnxscript")
    quantizations = ("float32", "int8")

    def obstacles(self, model_class: type, config: Any) -> list[str]:
        if model_class not in MODELS:
            return [f"it is none of {', '.join(allowed.__name__ for allowed in MODELS)}"]
        return [
            f"{field}={getattr(config, field)!r}, but {instead}"
            for field, stands_in_the_way, instead in RULES
            if stands_in_the_way(model_class, config)
        ]

    def write(
        self,
        model: Any,
        folder: Path,
        quantization: str,
        tokenizer: PreTrainedTokenizerBase | None = None,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
    ) -> None:
        self.require()
        save(trace(model, quantizer_of(quantization)), folder)

    def load(self, folder: Path, device: str = "cpu") -> Engine:
        try:
            import onnxruntime
        except ImportError as error:
            raise ImportError(f"onnx needs onnxruntime: pip install 'vanillaformer[{self.extra}]'") from error
        return OnnxEngine(onnxruntime, Path(folder), device)


def quantizer_of(quantization: str) -> Any:
    """Return what rounds the weights to 8 bits, and activations while it runs; `None` to keep them.

    Both are unsigned, which the engine multiplies alike on every CPU: with signed weights, its kernels for CPUs
    without VNNI add two products in 16 bits, and what exceeds them is lost.
    """
    if quantization == "float32":
        return None
    from onnxruntime.quantization import QuantType
    from transformers.exporters import OnnxRuntimeDynamicConfig, OnnxRuntimeQuantizer

    return OnnxRuntimeQuantizer(OnnxRuntimeDynamicConfig(per_channel=True, weight_type=QuantType.QUInt8))
