"""Our models as ONNX graphs, traced by transformers' exporter with batch size and lengths left open.

A language model is two graphs, `prefill` for the prompt and `decode` for the tokens after it; an encoder-decoder has
`encoder` too; every other model is one graph, `model`. Inputs and outputs have the names that ONNX tools know:
`input_ids`, `attention_mask`, `past_key_values.0.key` and `present.0.key` of each layer, `pixel_values`, `logits`.
"""

import copy
import hashlib
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from ...folders import random_images

OPEN = Dim.AUTO  # an axis that may have another size than in the trace
BATCH, LENGTH, STEP = 2, 3, 2  # sizes of the trace; one of 1 would be taken for a constant
ROW = {0: OPEN, 1: OPEN}
PAST = {0: OPEN, 2: OPEN}
# Names of open axes, by the ending of an input's name
SEQUENCE, CACHED, SOURCE = "sequence_length", "past_sequence_length", "encoder_sequence_length"
AXES = {"ids": SEQUENCE, "encoder_hidden_states": SOURCE, "encoder_attention_mask": SOURCE}
INLINE = 1024  # tensors of fewer bytes stay in the graph
WEIGHTS = "weights.bin"


def trace(model: Any, quantizer: Any = None) -> dict[str, Any]:
    """Return the graphs of a model with a head, by name; `quantizer` is one of `transformers.exporters`, if any."""
    copied = copy.deepcopy(model).to("cpu", torch.float32).eval().requires_grad_(False)
    copied.set_attn_implementation("eager")  # by plain operations
    return {name: trace_graph(*parts, quantizer) for name, parts in graph_parts(copied).items()}


def graph_parts(model: Any) -> dict[str, tuple[Any, dict[str, Any], dict[str, Any]]]:
    """Return the module, inputs and dynamic axes of each graph, by name."""
    if model.main_input_name == "pixel_values":
        return {"model": (model, {"pixel_values": random_images(model.config)}, {"pixel_values": {0: OPEN}})}
    ids = torch.ones(BATCH, LENGTH, dtype=torch.long)
    source = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if not hasattr(model, "generate") or not model.can_generate():
        if model.config.type_vocab_size:
            source["token_type_ids"] = torch.zeros_like(ids)
        return {"model": (model, source, dict.fromkeys(source, ROW))}
    if model.config.is_encoder_decoder:
        return encoder_decoder_parts(model, source)
    return decoder_parts(model, source)


def decoder_parts(model: Any, prompt: dict[str, Any]) -> dict[str, Any]:
    ids, mask = prompt.values()
    prompt = {**prompt, "position_ids": mask.cumsum(-1) - 1}
    cache = model(**prompt, past_key_values=DynamicCache(), use_cache=True).past_key_values
    step = {
        "input_ids": ids[:, :STEP],
        "attention_mask": torch.ones(BATCH, LENGTH + STEP, dtype=torch.long),
        "position_ids": prompt["position_ids"][:, :STEP],
    }
    prefill, decode = dict.fromkeys(prompt, ROW), dict.fromkeys(step, ROW)
    cached = {"past_key_values": cache, "use_cache": True}
    return {
        "prefill": (model, {**prompt, "use_cache": True}, prefill),
        "decode": (model, step | cached, decode | {"past_key_values": [PAST] * 2 * len(cache.layers)}),
    }


def encoder_decoder_parts(model: Any, source: dict[str, Any]) -> dict[str, Any]:
    ids, mask = source.values()
    states = BaseModelOutput(last_hidden_state=model.get_encoder()(**source).last_hidden_state)
    prompt = {"decoder_input_ids": ids, "encoder_outputs": states, "attention_mask": mask}
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    cache = model(**prompt, past_key_values=cache, use_cache=True).past_key_values
    step = prompt | {"decoder_input_ids": ids[:, :STEP], "past_key_values": cache}
    prefill = {"decoder_input_ids": ROW, "encoder_outputs": [ROW], "attention_mask": ROW}
    decode = prefill | {"past_key_values": [PAST] * 4 * len(cache.self_attention_cache.layers)}
    return {
        "encoder": (model.get_encoder(), source, dict.fromkeys(source, ROW)),
        "prefill": (model, {**prompt, "use_cache": True}, prefill),
        "decode": (model, {**step, "use_cache": True}, decode),
    }


def trace_graph(model: Any, inputs: dict[str, Any], axes: dict[str, Any], quantizer: Any = None) -> Any:
    """Return one graph."""
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

    with silence(), torch.no_grad():
        config = OnnxConfig(dynamic_shapes=axes, quantizer=quantizer)
        graph, _ = OnnxExporter().export_program(model, inputs, config)
    outputs = graph.graph.outputs
    for value in [value for value in outputs if str(value.name).endswith("encoder_last_hidden_state")]:
        outputs.remove(value)  # it is an input too
    for value in (*graph.graph.inputs, *outputs):
        value.name = name_of(str(value.name), is_input=value.is_graph_input(), is_step="decoder_input_ids" in inputs)
    name_axes(graph.graph, f"{CACHED} + {SEQUENCE}" if "past_key_values" in inputs else SEQUENCE)
    return graph


def name_axes(graph: Any, read: str) -> None:
    """Give the open axes of a graph the names that ONNX tools know, the last one of a mask the name `read`."""
    import onnx_ir

    names: dict[str, str] = {}
    for value in graph.inputs:
        lengths = {**AXES, ".key": SOURCE if ".encoder." in value.name else CACHED, "attention_mask": read}
        length = next((name for ending, name in lengths.items() if value.name.endswith(ending)), "")
        names |= {str(value.shape[0]): "batch_size", str(value.shape[2 if ".key" in value.name else 1]): length}
    symbol = re.compile("|".join(rf"\b{name}\b" for name in names if name.isidentifier()))
    for value in {*graph.inputs, *graph.outputs, *(output for node in graph.all_nodes() for output in node.outputs)}:
        if value.shape is not None:
            sizes = [size if isinstance(size, int) else size.value for size in value.shape]
            sizes = [symbol.sub(lambda s: names[s[0]], size) if isinstance(size, str) else size for size in sizes]
            value.shape = onnx_ir.Shape(sizes)


@contextmanager
def silence() -> Iterator[None]:
    """Suppress the exporters' messages; errors are exceptions."""
    loggers = [logging.getLogger(name) for name in ("", "torch.onnx", "onnx_ir", "onnxscript", "transformers")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)


def name_of(name: str, is_input: bool, is_step: bool) -> str:
    """Return the usual name of an input or output that the exporter calls by its path.

    With `is_step` the graph is a decoder with an encoder, whose inputs get the decoder's names.
    """
    path = name.removeprefix("input.").removeprefix("output.").split(".")
    if path[0] == "past_key_values":
        *cache, layer, part = [word for word in path[1:] if word != "layers"]
        stack = {"self_attention_cache": ["decoder"], "cross_attention_cache": ["encoder"]}.get("".join(cache), [])
        return ".".join(["past_key_values" if is_input else "present", layer, *stack, part.removesuffix("s")])
    if is_step and is_input:
        views = {"decoder_input_ids": "input_ids", "attention_mask": "encoder_attention_mask"}
        return views.get(path[0], "encoder_hidden_states")
    return path[-1]


def save(graphs: dict[str, Any], folder: Path) -> None:
    """Write graphs as `<name>.onnx`, with their weights, most of which they share, in one file."""
    import onnx_ir

    values = [
        value
        for graph in graphs.values()
        for value in graph.graph.initializers.values()
        if value.const_value is not None and value.const_value.nbytes >= INLINE
    ]
    tensors = [value.const_value for value in values]
    keys = [(str(each.dtype), tuple(each.shape), hashlib.sha256(each.tobytes()).digest()) for each in tensors]
    unique = {key: value.const_value for key, value in zip(keys, values)}
    written = onnx_ir.external_data.convert_tensors_to_external(list(unique.values()), folder, WEIGHTS)
    stored = dict(zip(unique, written))
    for key, value in zip(keys, values):
        found = stored[key]
        value.const_value = onnx_ir.ExternalTensor(
            found.location, found.offset, found.length, found.dtype,
            shape=found.shape, name=value.name, base_dir=folder,
        )  # fmt: skip
    for name, graph in graphs.items():
        onnx_ir.save(graph, folder / f"{name}.onnx")
