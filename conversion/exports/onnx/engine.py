"""Our exports on ONNX Runtime: graphs compute the model, and transformers' own `generate` searches.

A folder `onnx` has the graphs in Hugging Face's layout, which transformers.js and other tools read too.
"""

from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import DynamicCache, GenerationConfig, PreTrainedModel
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from vanillaformer.configuration.image_encoder import image_sides
from vanillaformer.modeling.base import CACHE_NAME

from ..engine import Engine, Rows, Search, check_rows, exported_model, padded, read_record

FOLDER = "onnx"
SUFFIXES = {"float32": "", "float16": "_fp16", "int8": "_quantized"}
"""The ending of a graph's name, by the data type of its weights."""
ENCODER, DECODER, MODEL = "encoder_model", "decoder_model_merged", "model"
NUMPY = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64}


class OnnxEngine(Engine):
    """Runs all models with tokens or classes as output, with every search of transformers' `generate`."""

    def __init__(self, onnxruntime: Any, folder: Path, device: str = "cpu"):
        super().__init__(*exported_model(folder))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        provider = "CPUExecutionProvider" if device == "cpu" else f"{device.split(':')[0].upper()}ExecutionProvider"
        if provider not in (available := onnxruntime.get_available_providers()):
            raise ValueError(f"device={device!r}: this ONNX Runtime has {', '.join(available)}")
        providers = list(dict.fromkeys([provider, "CPUExecutionProvider"]))
        names = [ENCODER, DECODER] if self.kind == "encoder_decoder" else [MODEL]
        suffix = SUFFIXES.get(read_record(folder)["quantization"])
        files = {name: folder / FOLDER / f"{name}{suffix}.onnx" for name in names}
        if missing := [path for path in files.values() if not path.is_file()]:
            raise ValueError(f"{missing[0]} is missing: if an earlier version wrote {folder}, export the model again")
        self.sessions = {
            name: onnxruntime.InferenceSession(str(path), options, providers=providers) for name, path in files.items()
        }
        self.steps = names[-1]  # the graph that computes the next tokens
        inputs = [value.name for value in self.sessions[self.steps].get_inputs()]
        self.cached = [name for name in inputs if name.startswith("past_key_values")]
        self.generates = bool(self.cached)

    def run(self, graph: str, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the outputs of a graph by name; parts of the cache that are not given are empty."""
        session, feeds = self.sessions[graph], {}
        for value in session.get_inputs():  # a graph has no inputs that it does not read
            if value.name in inputs:
                array = inputs[value.name].contiguous().numpy()
            else:
                array = np.zeros((len(inputs["input_ids"]), value.shape[1], 0, value.shape[3]))
            feeds[value.name] = array.astype(NUMPY[value.type], copy=False)
        outputs = session.run(None, feeds)
        return {value.name: torch.from_numpy(array) for value, array in zip(session.get_outputs(), outputs)}

    def generate_rows(self, prompts: Rows, search: Search) -> list[list[int]]:
        self.check_lengths(prompts, search.max_new_tokens)
        options = {name: value for name, value in vars(search).items() if name != "seed"}
        options["suppress_tokens"] = list(search.suppress_tokens) or None
        end = self.end_tokens()
        filler = next((token for token in (self.config.pad_token_id, *end) if token is not None), 0)
        ids, mask = padded(prompts, filler, "right" if self.kind == "encoder_decoder" else "left")
        settings = GenerationConfig(
            eos_token_id=end or None, pad_token_id=filler, decoder_start_token_id=self.start_token(), **options
        )
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            if search.seed is not None:
                torch.manual_seed(search.seed)
            model: Any = GraphModel(self)  # its type does not declare `generate`
            sequences = model.generate(ids, attention_mask=mask, generation_config=settings)
        known = 1 if self.kind == "encoder_decoder" else ids.shape[1]
        rows = sequences[:, known:].tolist()
        return [list(takewhile(lambda token: token not in end, row)) for row in rows]

    def check_lengths(self, prompts: Rows, new_tokens: int) -> None:
        """Raise ValueError for rows that are longer than a position table."""
        longest = max(len(row) for row in prompts)
        self.check_length(max(longest, new_tokens) if self.kind == "encoder_decoder" else longest + new_tokens)

    def score(self, prompts: Rows, continuations: Rows) -> list[list[float]]:
        """Return log-probabilities, all in one step."""
        if not self.generates:
            return super().score(prompts, continuations)
        check_rows(prompts)
        self.check_lengths(prompts, max(len(row) for row in continuations))
        if self.kind == "encoder_decoder":
            start = self.start_token()
            source, source_mask = padded(prompts, 0)
            states = self.run(ENCODER, input_ids=source, attention_mask=source_mask)["last_hidden_state"]
            before = [1] * len(prompts)
            inputs = {"encoder_hidden_states": states, "encoder_attention_mask": source_mask}
            ids, _ = padded([[start, *row] for row in continuations], 0)
        else:
            before = [len(row) for row in prompts]
            ids, mask = padded([[*row, *more] for row, more in zip(prompts, continuations)], 0)
            inputs = {"attention_mask": mask, "position_ids": torch.arange(ids.shape[1]).expand_as(ids)}
        logits = self.run(self.steps, input_ids=ids, **inputs)["logits"].float().log_softmax(-1)
        return [
            [logits[row, first - 1 + index, token].item() for index, token in enumerate(more)]
            for row, (first, more) in enumerate(zip(before, continuations))
        ]

    def classify_rows(self, rows: Rows, token_type_ids: Rows | None) -> np.ndarray:
        self.check_lengths(rows, 0)
        ids, mask = padded(rows, self.config.pad_token_id or 0)
        segments = torch.zeros_like(ids) if token_type_ids is None else padded(token_type_ids, 0)[0]
        outputs = self.run(MODEL, input_ids=ids, attention_mask=mask, token_type_ids=segments)
        return next(outputs[name] for name in ("prediction_logits", "logits") if name in outputs).float().numpy()

    def classify_images(self, pixel_values: torch.Tensor) -> np.ndarray:
        if self.kind != "image_encoder":
            return super().classify_images(pixel_values)
        image = (self.config.num_channels, *image_sides(self.config.image_size))
        if pixel_values.shape[1:] != image:
            raise ValueError(f"pixel_values have the shape {tuple(pixel_values.shape)}: it must be batch and {image}")
        return self.run(MODEL, pixel_values=pixel_values)["logits"].float().numpy()


class GraphModel(PreTrainedModel, GenerationMixin):
    """The model that `generate` calls: a step from tokens and cache to logits, computed by the graphs."""

    device, dtype = torch.device("cpu"), torch.float32

    def __init__(self, engine: OnnxEngine):
        super().__init__(engine.config)
        self.engine = engine
        self.encoder = GraphEncoder(engine) if engine.kind == "encoder_decoder" else None

    def get_encoder(self, modality: str | None = None) -> Any:
        return self.encoder

    def _prepare_cache_for_generation(self, *args: Any, **kwargs: Any) -> bool:
        """Prepare no cache: the first step returns one."""
        return False

    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: DynamicCache | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        encoder_outputs: Any = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Return the logits (B, T, V) of the tokens after those in the cache, and the cache with them."""
        past_key_values = kwargs.get(CACHE_NAME, past_key_values)
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
        if past_key_values is not None:
            tensors = (tensor for layer in past_key_values.layers for tensor in (layer.keys, layer.values))
            inputs |= dict(zip(self.engine.cached, tensors))
        outputs = self.engine.run(self.engine.steps, **inputs)
        cache: Any = DynamicCache()  # a layer for each pair of keys and values, those of cross-attention last
        present = [outputs[name.replace("past_key_values", "present")] for name in self.engine.cached]
        for number, pair in enumerate(zip(present[::2], present[1::2])):
            cache.update(*pair, number)
        return Seq2SeqLMOutput(logits=outputs["logits"].float(), **{CACHE_NAME: cache})


class GraphEncoder(nn.Module):
    """The encoder's graph as a module."""

    main_input_name = "input_ids"

    def __init__(self, engine: OnnxEngine):
        super().__init__()
        self.engine = engine

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **kwargs: Any) -> BaseModelOutput:
        states = self.engine.run(ENCODER, input_ids=input_ids, attention_mask=attention_mask)["last_hidden_state"]
        return BaseModelOutput(last_hidden_state=states)
