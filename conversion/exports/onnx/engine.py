"""Our exports on ONNX Runtime: the graphs do the computing, transformers' own `generate` the searching."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import Cache, DynamicCache, EncoderDecoderCache, GenerationConfig, PreTrainedModel
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from vanillaformer.configuration.options import POSITION_CHOICES
from vanillaformer.tokenization.options import MODEL_KINDS

from ..engine import TOP_K, Engine, Rows, load_generation_config
from ..exporter import config_of, read_record

GRAPHS = ("encoder", "prefill", "decode", "model")


class OnnxEngine(Engine):
    """What ONNX Runtime can be asked: everything that `generate` can search for, scores and classes.

    Args:
        onnxruntime: The engine's module.
        folder: The exported folder.
        device: `cpu` or `cuda`.
    """

    def __init__(self, onnxruntime: Any, folder: Path, device: str = "cpu"):
        record = read_record(folder)
        config = config_of(record)
        super().__init__(
            MODEL_KINDS[config.model_type], record["architecture"], config, load_generation_config(folder)
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        providers = providers_of(onnxruntime, device)
        self.sessions = {
            name: onnxruntime.InferenceSession(str(folder / f"{name}.onnx"), options, providers=providers)
            for name in GRAPHS
            if (folder / f"{name}.onnx").is_file()
        }
        self.steps = GraphModel(self) if "decode" in self.sessions else None

    def run(self, graph: str, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the outputs of a graph by name."""
        session = self.sessions[graph]
        names = {value.name for value in session.get_inputs()}  # what a graph does not read it does not have
        made = session.run(None, {name: value.numpy() for name, value in inputs.items() if name in names})
        return {value.name: torch.from_numpy(array) for value, array in zip(session.get_outputs(), made)}

    def generate(
        self,
        prompts: Rows,
        *,
        max_new_tokens: int,
        num_beams: int = 1,
        length_penalty: float = 1.0,
        early_stopping: bool | str = False,
        do_sample: bool = False,
        temperature: float = 1.0,
        top_k: int = TOP_K,
        top_p: float = 1.0,
        seed: int | None = None,
    ) -> list[list[int]]:
        if self.steps is None:
            return super().generate(prompts, max_new_tokens=max_new_tokens)
        self.check_rows(prompts)
        self.check_search(max_new_tokens, num_beams, do_sample, temperature, early_stopping)
        self.check_lengths(prompts, max_new_tokens)
        search: dict[str, Any] = {"num_beams": num_beams}
        if num_beams > 1:
            search |= {"length_penalty": length_penalty, "early_stopping": early_stopping}
        if do_sample:
            search |= {"do_sample": True, "temperature": temperature, "top_k": top_k, "top_p": top_p}
        end = self.end_tokens()
        filler = next((token for token in (self.config.pad_token_id, *end) if token is not None), 0)
        ids, mask = padded(prompts, filler, "right" if self.kind == "encoder_decoder" else "left")
        settings = GenerationConfig(
            max_new_tokens=max_new_tokens,
            eos_token_id=end or None,
            pad_token_id=filler,
            decoder_start_token_id=self.start_token(),
            **search,
        )
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            if seed is not None:
                torch.manual_seed(seed)
            made = self.steps.generate(ids, attention_mask=mask, generation_config=settings)
        known = 1 if self.kind == "encoder_decoder" else ids.shape[1]
        return [until(row, end) for row in made[:, known:].tolist()]

    def check_lengths(self, prompts: Rows, new_tokens: int) -> None:
        """Raise for rows that are longer than a position table."""
        longest = max(len(row) for row in prompts)
        lengths = [longest, new_tokens] if self.kind == "encoder_decoder" else [longest + new_tokens]
        limit = self.config.max_position_embeddings
        if POSITION_CHOICES[self.config.position_embedding_type].has_table and max(lengths) > limit:
            raise ValueError(f"{max(lengths)} tokens are more than max_position_embeddings={limit}")

    def score(self, prompts: Rows, continuations: Rows) -> list[list[float]]:
        """Return log-probabilities by the prefill graph."""
        if self.steps is None:
            return super().score(prompts, continuations)
        self.check_rows(prompts)
        self.check_lengths(prompts, max(len(row) for row in continuations))
        if self.kind == "encoder_decoder":
            start = self.start_token()
            source, source_mask = padded(prompts, 0)
            states = self.run("encoder", input_ids=source, attention_mask=source_mask)["last_hidden_state"]
            before = [1] * len(prompts)
            inputs = {"encoder_hidden_states": states, "encoder_attention_mask": source_mask}
            ids, _ = padded([[start, *row] for row in continuations], 0)
        else:
            before = [len(row) for row in prompts]
            ids, mask = padded([[*row, *more] for row, more in zip(prompts, continuations)], 0)
            inputs = {"attention_mask": mask, "position_ids": torch.arange(ids.shape[1]).expand_as(ids).contiguous()}
        logits = self.run("prefill", input_ids=ids, **inputs)["logits"].log_softmax(-1)
        return [
            [logits[row, first - 1 + place, token].item() for place, token in enumerate(more)]
            for row, (first, more) in enumerate(zip(before, continuations))
        ]

    def classify(self, rows: Rows, token_type_ids: Rows | None = None) -> np.ndarray:
        if "model" not in self.sessions:
            return super().classify(rows, token_type_ids)
        self.check_rows(rows)
        self.check_lengths(rows, 0)
        types = getattr(self.config, "type_vocab_size", 0)
        if token_type_ids is not None and not types:
            raise ValueError("token_type_ids were given, but the config says type_vocab_size=0")
        filler = self.config.pad_token_id
        ids, mask = padded(rows, 0 if filler is None else filler)
        segments = torch.zeros_like(ids) if token_type_ids is None else padded(token_type_ids, 0)[0]
        made = self.run("model", input_ids=ids, attention_mask=mask, token_type_ids=segments)
        return next(made[name] for name in ("prediction_logits", "logits") if name in made).numpy()


class GraphModel(PreTrainedModel, GenerationMixin):
    """What `generate` needs of a model: a step from tokens and cache to logits, here by the graphs.

    Args:
        engine: The engine that has them.
    """

    device, dtype = torch.device("cpu"), torch.float32

    def __init__(self, engine: OnnxEngine):
        super().__init__(engine.config)
        self.engine = engine
        self.encoder = GraphEncoder(engine) if engine.kind == "encoder_decoder" else None

    def get_encoder(self, modality: str | None = None) -> Any:
        return self.encoder

    def _prepare_cache_for_generation(self, *args: Any, **kwargs: Any) -> None:
        """Make none: the prefill graph does."""

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Return the logits (B, T, V) of the tokens behind those in the cache, and the cache with them."""
        if decoder_input_ids is not None:
            inputs = {
                "input_ids": decoder_input_ids,
                "encoder_hidden_states": encoder_outputs.last_hidden_state,
                "encoder_attention_mask": attention_mask,
            }
        else:
            if attention_mask is None:  # `generate` drops one that masks nothing
                cached = 0 if past_key_values is None else past_key_values.get_seq_length()
                attention_mask = input_ids.new_ones(len(input_ids), cached + input_ids.shape[1])
            if position_ids is None:
                position_ids = (attention_mask.cumsum(-1) - 1)[:, -input_ids.shape[1] :]
            inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}
        past = {} if past_key_values is None else named_tensors(past_key_values)
        graph = "prefill" if past_key_values is None else "decode"
        made = self.engine.run(graph, **{name: value.contiguous() for name, value in (inputs | past).items()})
        return Seq2SeqLMOutput(logits=made.pop("logits"), past_key_values=cache_of(made))


class GraphEncoder(nn.Module):
    """The encoder's graph in the place of a module."""

    main_input_name = "input_ids"

    def __init__(self, engine: OnnxEngine):
        super().__init__()
        self.engine = engine

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **kwargs: Any) -> BaseModelOutput:
        return BaseModelOutput(**self.engine.run("encoder", input_ids=input_ids, attention_mask=attention_mask))


def named_tensors(cache: Cache) -> dict[str, torch.Tensor]:
    """Return a cache's tensors by the graphs' names of them."""
    parts: dict[str, Any] = {"": cache}
    if isinstance(cache, EncoderDecoderCache):
        parts = {".decoder": cache.self_attention_cache, ".encoder": cache.cross_attention_cache}
    return {
        f"past_key_values.{number}{stack}.{name}": tensor
        for stack, part in parts.items()
        for number, layer in enumerate(part.layers)
        for name, tensor in (("key", layer.keys), ("value", layer.values))
    }


def cache_of(made: dict[str, torch.Tensor]) -> Cache:
    """Return a cache of the tensors that a graph gave out."""

    def part(stack: str) -> DynamicCache:
        cache, layer = DynamicCache(), 0
        while f"present.{layer}{stack}.key" in made:
            cache.update(made[f"present.{layer}{stack}.key"], made[f"present.{layer}{stack}.value"], layer)
            layer += 1
        return cache

    if "present.0.encoder.key" in made:
        return EncoderDecoderCache(part(".decoder"), part(".encoder"))
    return part("")


def padded(rows: Rows, fill: int, side: str = "right") -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows as a tensor (B, T), filled up on one side, and 1 for every token of theirs (B, T)."""
    length = max(len(row) for row in rows)

    def filled(row: list[int], value: int) -> list[int]:
        more = [value] * (length - len(row))
        return row + more if side == "right" else more + row

    ids = [filled(list(row), fill) for row in rows]
    return torch.tensor(ids), torch.tensor([filled([1] * len(row), 0) for row in rows])


def until(row: list[int], end: list[int]) -> list[int]:
    """Return a row up to the first token that ends it."""
    return row[: next((place for place, token in enumerate(row) if token in end), len(row))]


def providers_of(onnxruntime: Any, device: str) -> list[str]:
    """Return what the graphs run on.

    Raises:
        ValueError: The installed ONNX Runtime has nothing for the device.
    """
    provider = "CPUExecutionProvider" if device == "cpu" else f"{device.split(':')[0].upper()}ExecutionProvider"
    if provider not in (available := onnxruntime.get_available_providers()):
        raise ValueError(f"device={device!r}: this ONNX Runtime has {', '.join(available)}")
    return list(dict.fromkeys([provider, "CPUExecutionProvider"]))
