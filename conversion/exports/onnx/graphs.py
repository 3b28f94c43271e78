"""Our models as ONNX graphs in Hugging Face's layout, traced by transformers' exporter for any batch size and length.

An encoder-decoder is `encoder_model` and `decoder_model_merged`, every other model is `model`. One graph computes the
first and all later tokens: it appends keys and values to those in the cache, which is empty at first. Inputs and
outputs have the names that ONNX tools know: `input_ids`, `attention_mask`, `past_key_values.0.key` and
`present.0.key` of each layer, `pixel_values`, `logits`.
"""

import copy
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from vanillaformer.modeling.base import CACHE_NAME

from ...folders import random_images
from .engine import DECODER, ENCODER, MODEL

OPEN = Dim.AUTO  # an axis whose size may differ from the trace
BATCH, LENGTH, STEP = 2, 3, 2  # sizes of the trace; one of 1 would be taken for a constant
# Names of open axes, by a part of an input's name, the first that fits; transformers.js reads `batch_size`
SEQUENCE, CACHED, SOURCE = "sequence_length", "past_sequence_length", "encoder_sequence_length"
AXES = {"encoder_": SOURCE, ".encoder.": f"past_{SOURCE}", "past_key_values": CACHED, "ids": SEQUENCE}
LARGEST = 2**31 - 2**24  # bytes of weights that a file of the format can hold, with room for the graph


def trace(model: Any, dtype: torch.dtype = torch.float32, quantizer: Any = None) -> dict[str, Any]:
    """Return the graphs of a model with a head, by name; `quantizer` is one of `transformers.exporters`, if any."""
    copied = copy.deepcopy(model).to("cpu", dtype).eval().requires_grad_(False)
    copied.set_attn_implementation("eager")  # only plain operations
    return {name: trace_graph(*parts, quantizer) for name, parts in graph_parts(copied).items()}


def graph_parts(model: Any) -> dict[str, tuple[nn.Module, dict[str, Any]]]:
    """Return the module and the inputs of each graph, by name."""
    if model.main_input_name == "pixel_values":
        return {MODEL: (model, {"pixel_values": random_images(model.config)})}
    ids = torch.ones(BATCH, LENGTH, dtype=torch.long)
    text = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if not hasattr(model, "generate") or not model.can_generate():
        if model.config.type_vocab_size:
            text["token_type_ids"] = torch.zeros_like(ids)
        return {MODEL: (model, text)}
    cache: Any = DynamicCache()
    step = {"input_ids": ids[:, :STEP]}
    if not model.config.is_encoder_decoder:
        model(ids, past_key_values=cache, use_cache=True)
        mask = torch.ones(BATCH, LENGTH + STEP, dtype=torch.long)
        step |= {"attention_mask": mask, "position_ids": mask.cumsum(-1)[:, LENGTH:] - 1}
        return {MODEL: (model, step | {"past_key_values": cache, "use_cache": True})}
    encoder, decoder = model.get_encoder(), SourceDecoder(model)
    cache = EncoderDecoderCache(cache, DynamicCache())
    source = {"encoder_hidden_states": encoder(**text).last_hidden_state, "encoder_attention_mask": ids}
    decoder(ids, **source, past_key_values=cache)
    longer = {name: torch.cat([tensor, tensor], dim=1) for name, tensor in source.items()}  # than the cached part
    return {ENCODER: (encoder, text), DECODER: (decoder, step | longer | {"past_key_values": cache})}


class SourceDecoder(nn.Module):
    """The decoder of an encoder-decoder, by the names of its graph's inputs.

    Keys and values of the part of the source that is not cached are appended to the cached ones: the whole source at
    the first step, nothing after it.
    """

    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        encoder_attention_mask: torch.Tensor,
        past_key_values: Any,
    ) -> dict[str, Any]:
        rest = encoder_hidden_states[:, past_key_values.cross_attention_cache.get_seq_length() :]
        past_key_values.is_updated = {}  # otherwise the layers would only read the cache
        mask = (1 - encoder_attention_mask[:, None, None].to(rest.dtype)) * torch.finfo(rest.dtype).min
        outputs = self.model(
            decoder_input_ids=input_ids,
            encoder_outputs=BaseModelOutput(last_hidden_state=rest),
            attention_mask=mask,  # of the cached part too
            past_key_values=past_key_values,
            use_cache=True,
        )
        return {"logits": outputs.logits, "past_key_values": past_key_values}


def trace_graph(model: Any, inputs: dict[str, Any], quantizer: Any = None) -> Any:
    """Return one graph."""
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

    axes: dict[str, Any] = {name: {0: OPEN, 1: OPEN} for name, value in inputs.items() if torch.is_tensor(value)}
    if cache := inputs.get("past_key_values"):
        tensors = (4 if isinstance(cache, EncoderDecoderCache) else 2) * len(cache)
        axes["past_key_values"] = [{0: OPEN, 2: OPEN}] * tensors
    if "pixel_values" in axes:
        axes["pixel_values"] = {0: OPEN}
    with silence(), torch.no_grad():
        config = OnnxConfig(dynamic_shapes=axes, quantizer=quantizer)
        graph, _ = OnnxExporter().export_program(model, inputs, config)
    for value in (*graph.graph.inputs, *graph.graph.outputs):
        value.name = name_of(str(value.name), is_input=value.is_graph_input())
    name_axes(graph.graph, f"{CACHED} + {SEQUENCE}" if "past_key_values" in inputs else SEQUENCE)
    for node in graph.graph.all_nodes():  # its origin in the code, with paths
        node.metadata_props.clear()
    return graph


def name_axes(graph: Any, read: str) -> None:
    """Give the open axes of a graph the names that ONNX tools know, the last one of a mask the name `read`."""
    import onnx_ir

    names: dict[str, str] = {}
    for value in graph.inputs:
        length = next((name for part, name in (AXES | {"mask": read}).items() if part in value.name), "")
        names |= {str(value.shape[0]): "batch_size", str(value.shape[2 if "past" in value.name else 1]): length}
    symbol = re.compile("|".join(rf"\b{name}\b" for name in names if name.isidentifier()))
    for value in {*graph.inputs, *graph.outputs, *(output for node in graph.all_nodes() for output in node.outputs)}:
        if value.shape is not None:
            sizes = [size if isinstance(size, int) else size.value for size in value.shape]
            sizes = [symbol.sub(lambda s: names[s[0]], size) if isinstance(size, str) else size for size in sizes]
            value.shape = onnx_ir.Shape(sizes)
    for value in graph.outputs:
        if ".encoder." in value.name:  # the sum of the cached part and the rest
            value.shape = onnx_ir.Shape([*value.shape[:2], SOURCE, *value.shape[3:]])


@contextmanager
def silence() -> Iterator[None]:
    """Suppress the exporters' messages; errors are exceptions."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"), redirect_stdout(StringIO()):
            yield
    finally:
        logging.disable(disabled)


def name_of(name: str, is_input: bool) -> str:
    """Return the usual name of an input or output that the exporter names by its path."""
    path = name.removeprefix("input.").removeprefix("output.").split(".")
    if path[0] not in ("past_key_values", CACHE_NAME):
        return path[-1]
    *cache, layer, part = [word for word in path[1:] if word != "layers"]
    stack = {"self_attention_cache": ["decoder"], "cross_attention_cache": ["encoder"]}.get("".join(cache), [])
    return ".".join(["past_key_values" if is_input else "present", layer, *stack, part.removesuffix("s")])


def save(graphs: dict[str, Any], folder: Path, suffix: str) -> list[str]:
    """Write graphs as `<name><suffix>.onnx`; return those with separate weights, `<name><suffix>.onnx_data`."""
    import onnx_ir

    folder.mkdir()
    large = []
    for name, graph in graphs.items():
        file = f"{name}{suffix}.onnx"
        values = [value.const_value for value in graph.graph.initializers.values() if value.const_value is not None]
        if is_large := sum(value.nbytes for value in values) > LARGEST:
            large.append(file)
        onnx_ir.save(graph, folder / file, external_data=f"{file}_data" if is_large else None)
    return large
