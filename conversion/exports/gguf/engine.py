"""Our exports on llama.cpp, one text at a time."""

from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..engine import Engine, Rows, Search, check_rows, exported_model
from .tensors import TABLES

MODEL = "model.gguf"
SHORTEST = 512  # context, in tokens


class LlamaCppEngine(Engine):
    """Runs decoders through llama-cpp-python: greedy search, sampling and scores.

    A `device` other than `cpu` puts all layers on the GPU that the engine was built for.
    """

    def __init__(self, llama_cpp: Any, folder: Path, device: str = "cpu"):
        super().__init__(*exported_model(folder))
        self.has_position_table = self.config.position_embedding_type in TABLES
        self.llama_cpp = llama_cpp
        self.path = folder / MODEL
        self.layers_on_gpu = 0 if device == "cpu" else -1
        self.llama: Any = None
        self.keeps_logits = False

    def context(self, length: int, keep_logits: bool = False) -> Any:
        """Return the model with an empty context of at least `length` tokens; keeping all logits takes much memory."""
        self.check_length(length)
        limit = self.config.max_position_embeddings
        if self.llama is None or self.llama.n_ctx() < length or (keep_logits and not self.keeps_logits):
            self.keeps_logits = keep_logits
            size = max(length, min(limit, max(SHORTEST, 2 ** (length - 1).bit_length())))
            float32 = self.llama_cpp.GGML_TYPE_F32
            self.llama = self.llama_cpp.Llama(
                str(self.path),
                n_ctx=size,
                n_threads=torch.get_num_threads(),
                n_threads_batch=torch.get_num_threads(),
                n_gpu_layers=self.layers_on_gpu,
                logits_all=keep_logits,
                type_k=float32,  # float16 by default
                type_v=float32,
                verbose=False,
            )
        self.llama.reset()
        return self.llama

    def generate_rows(self, prompts: Rows, search: Search) -> list[list[int]]:
        if search.num_beams > 1:
            raise ValueError(f"num_beams={search.num_beams}: llama.cpp has no beam search")
        if search.suppress_tokens:
            raise ValueError(f"suppress_tokens={search.suppress_tokens}: llama.cpp suppresses none here")
        sampling = {"temp": 0.0}
        if search.do_sample:
            sampling = {"temp": search.temperature, "top_k": search.top_k, "top_p": search.top_p}
        end, texts = self.end_tokens(), []
        for number, prompt in enumerate(prompts):
            llama = self.context(len(prompt) + search.max_new_tokens)
            if search.seed is not None:
                llama.set_seed(search.seed + number)
            tokens = takewhile(lambda token: token not in end, llama.generate(list(prompt), min_p=0.0, **sampling))
            texts.append(list(islice(tokens, search.max_new_tokens)))
        return texts

    def score(self, prompts: Rows, continuations: Rows) -> list[list[float]]:
        check_rows(prompts)
        return [self.scores(list(prompt), list(more)) for prompt, more in zip(prompts, continuations)]

    def scores(self, prompt: list[int], more: list[int]) -> list[float]:
        row = prompt + more
        llama = self.context(len(row), keep_logits=True)
        llama.eval(row)
        logits = torch.from_numpy(np.array(llama.scores[: len(row)])).log_softmax(-1)
        return [logits[len(prompt) - 1 + index, token].item() for index, token in enumerate(more)]
