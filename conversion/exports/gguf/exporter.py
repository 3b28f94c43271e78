"""GGUF: decoders shaped like Llama's or GPT-2's for llama.cpp and the programs around it."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

import vanillaformer.modeling as modeling
from vanillaformer.hub.engines import ENGINES

from ..exporter import Exporter, ExportJob
from .engine import MODEL, LlamaCppEngine
from .tensors import Fields, Tensors, architecture_of, fields_of, tensors_of
from .vocabulary import vocabulary_fields

FILE_TYPES = {"float32": ("F32", 0), "float16": ("F16", 1), "q8_0": ("Q8_0", 7)}
FIELD_TYPES = {bool: "BOOL", int: "UINT32", float: "FLOAT32", str: "STRING", list: "ARRAY"}
BLOCK = 32  # values with one scale in Q8_0


class GgufExporter(Exporter):
    """Writes one file with weights, settings and tokenizer, and reads it back.

    Where llama-cpp-python is installed, its answers are compared too.
    """

    info = ENGINES["gguf"]
    engine_class = LlamaCppEngine
    models = (modeling.VanillaDecoderForCausalLM,)
    quantizations = tuple(FILE_TYPES)

    def obstacles(self, model_class: type, config: Any) -> list[str]:
        return super().obstacles(model_class, config) or architecture_of(config)[1]

    def write(self, job: ExportJob) -> None:
        (gguf,) = self.info.writer.load()
        model = job.model
        architecture, _ = architecture_of(model.config)
        tensors = stored(gguf, tensors_of(model, architecture), job.quantization)
        fields = {
            "general.architecture": architecture,
            "general.type": "model",
            "general.name": getattr(model.config, "name_or_path", "") or type(model).__name__,
            "general.file_type": FILE_TYPES[job.quantization][1],
            "general.quantization_version": gguf.GGML_QUANT_VERSION,
            **fields_of(model.config, architecture),
            **vocabulary_fields(job.tokenizer, model.config),
        }
        write_file(gguf, job.folder / MODEL, fields, tensors)
        verify_file(gguf, job.folder / MODEL, fields, tensors)

    def compare(self, job: ExportJob) -> str:
        if importlib.util.find_spec("llama_cpp") is None:
            return "the file holds every weight and setting; not run, since llama-cpp-python is not installed"
        return super().compare(job)


EXPORTER = GgufExporter()

Stored = dict[str, tuple[np.ndarray, Any]]  # the stored values and their GGUF type


def stored(gguf: Any, tensors: Tensors, quantization: str) -> Stored:
    """Return matrices in the quantization, where their rows allow it; vectors stay unchanged."""
    name, _ = FILE_TYPES[quantization]
    wanted, plain = gguf.GGMLQuantizationType[name], gguf.GGMLQuantizationType.F32
    result: Stored = {}
    for key, values in tensors.items():
        fits = values.ndim > 1 and (name != "Q8_0" or values.shape[-1] % BLOCK == 0)
        is_small = key.startswith("position_embd")  # read row by row, in float32
        kind = wanted if fits and not is_small else plain
        result[key] = (gguf.quants.quantize(values, kind), kind)
    return result


def write_file(gguf: Any, path: Path, fields: Fields, tensors: Stored) -> None:
    """Write fields by the types of their values, and tensors."""
    writer = gguf.GGUFWriter(path, fields["general.architecture"])  # which it writes itself
    for key, value in fields.items():
        if key != "general.architecture" and value != []:  # an array of nothing has no type
            writer.add_key_value(key, value, getattr(gguf.GGUFValueType, FIELD_TYPES[type(value)]))
    for key, (values, kind) in tensors.items():
        writer.add_tensor(key, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def verify_file(gguf: Any, path: Path, fields: Fields, tensors: Stored) -> None:
    """Raise unless a file holds these fields and tensors and no others."""
    reader = gguf.GGUFReader(path)
    found = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    expected = {key: value for key, value in fields.items() if value != []}
    for key in found.keys() | expected.keys():
        value = expected.get(key)
        if found.get(key) != (float(np.float32(value)) if isinstance(value, float) else value):
            raise ValueError(f"{path}: field {key} is {found.get(key)!r:.80}, not {value!r:.80}")
    read = {tensor.name: tensor for tensor in reader.tensors}
    for key in read.keys() | tensors.keys():
        values, kind = tensors.get(key, (np.empty(0), None))
        if key not in read or read[key].tensor_type != kind or not np.array_equal(read[key].data, values):
            raise ValueError(f"{path}: tensor {key} is not what was written")
