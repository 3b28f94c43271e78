"""GGUF: decoders shaped like Llama's or GPT-2's for llama.cpp and the programs around it."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

import vanillaformer.modeling as modeling
from vanillaformer.hub.engines import ENGINES

from ...tokens import token_ids
from ..exporter import Exporter, ExportJob
from .engine import MODEL, LlamaCppEngine
from .tensors import Fields, Tensors, architecture_of, fields_of, tensors_of

FILE_TYPES = {"float32": ("F32", 0), "float16": ("F16", 1), "q8_0": ("Q8_0", 7)}
FIELD_TYPES = {bool: "BOOL", int: "UINT32", float: "FLOAT32", str: "STRING", list: "ARRAY"}
BLOCK = 32  # values with one scale in Q8_0
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # GGUF's types of tokens

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
ROLES = {"bos": "bos_token_id", "eos": "eos_token_id", "unknown": "unk_token_id", "padding": "pad_token_id"}


class GgufExporter(Exporter):
    """Writes one file with weights, settings and tokenizer, and reads it back.

    If llama-cpp-python is installed, its answers are compared too.
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
            **vocabulary_fields(job.tokenizer, model),
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
    """Return matrices in the quantization, if their rows allow it; vectors stay in float32."""
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
    writer = gguf.GGUFWriter(path, fields["general.architecture"])  # the writer adds this field
    for key, value in fields.items():
        if key != "general.architecture" and value != []:  # an empty array has no type
            writer.add_key_value(key, value, getattr(gguf.GGUFValueType, FIELD_TYPES[type(value)]))
    for key, (values, kind) in tensors.items():
        writer.add_tensor(key, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def verify_file(gguf: Any, path: Path, fields: Fields, tensors: Stored) -> None:
    """Raise ValueError unless a file has exactly these fields and tensors."""
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


def vocabulary_fields(tokenizer: PreTrainedTokenizerBase | None, model: Any) -> Fields:
    """Return the fields for the tokenizer, by key."""
    if tokenizer is None:
        return {"tokenizer.ggml.model": "none"}
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(f"GGUF: the tokenizer {type(tokenizer).__name__} is not from the tokenizers library")
    whole = json.loads(backend.to_str())
    check_tokenizer(whole, len(tokenizer), model.config.vocab_size)
    known = {token_id: name for name, token_id in tokenizer.get_vocab().items()}
    added = {token["id"]: CONTROL if token["special"] else USER_DEFINED for token in whole["added_tokens"]}
    rows = range(model.config.vocab_size)
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in whole["model"]["merges"]]
    encoded = tokenizer("a")["input_ids"]
    fields: Fields = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre_tokenizer_of(whole),
        "tokenizer.ggml.tokens": [known.get(token, f"[PAD{token}]") for token in rows],
        "tokenizer.ggml.token_type": [added.get(token, NORMAL) if token in known else UNUSED for token in rows],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_bos_token": encoded[0] == tokenizer.bos_token_id,
        "tokenizer.ggml.add_eos_token": encoded[-1] == tokenizer.eos_token_id,
        "tokenizer.ggml.add_space_prefix": False,
    }
    template = getattr(tokenizer, "chat_template", None)
    found = {f"tokenizer.ggml.{role}_token_id": getattr(tokenizer, name) for role, name in ROLES.items()}
    ends = [end for end in token_ids(model.generation_config.eos_token_id) if end != tokenizer.eos_token_id]
    found |= zip(("tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"), reversed(ends))
    found["tokenizer.chat_template"] = template if isinstance(template, str) and template else None
    return fields | {key: value for key, value in found.items() if value is not None}


def check_tokenizer(whole: dict[str, Any], tokens: int, vocab_size: int) -> None:
    """Raise ValueError for a tokenizer other than plain byte-level byte-pair encoding."""
    model = whole["model"]
    reasons = []
    if model["type"] != "BPE" or pre_tokenizer_of(whole) is None:
        reasons.append(
            "only byte-level byte-pair encoding can be written without loss (our byte_level_bpe), with GPT-2's "
            "pre-tokenizer, the same after single digits, or Llama 3's; "
            f"this one is {model['type']} after {whole['pre_tokenizer']}"
        )
    if whole["normalizer"] is not None:
        reasons.append(f"llama.cpp does not normalize texts, this tokenizer does: {whole['normalizer']}")
    for name in ("continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "dropout"):
        if model.get(name):
            reasons.append(f"llama.cpp has no {name}={model[name]!r}")
    if bool(model.get("ignore_merges")) != (pre_tokenizer_of(whole) == "llama-bpe"):
        reasons.append(f"ignore_merges={model.get('ignore_merges')!r} does not fit its pre-tokenizer")
    if tokens > vocab_size:
        reasons.append(f"it has {tokens} tokens, the model vocab_size={vocab_size}")
    if reasons:
        raise ValueError(f"the tokenizer cannot be written to GGUF: {'; '.join(reasons)}")


def pre_tokenizer_of(whole: dict[str, Any]) -> str | None:
    """Return llama.cpp's name for a pre-tokenizer, or None if it has none."""
    step = whole["pre_tokenizer"] or {}
    steps = step["pretokenizers"] if step.get("type") == "Sequence" else [step]
    *before, last = steps or [{}]
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        return None
    by_regex = last.get("use_regex", True)
    if not before:
        return "gpt-2" if by_regex else None
    if len(before) > 1:
        return None
    if before[0].get("type") == "Digits" and before[0].get("individual_digits") and by_regex:
        return "starcoder"
    is_llama3 = before[0].get("type") == "Split" and before[0].get("pattern") == {"Regex": LLAMA3}
    return "llama-bpe" if is_llama3 and before[0].get("behavior") == "Isolated" and not by_regex else None
