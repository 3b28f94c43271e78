"""Our exports on llama.cpp: tokens in, tokens out, one text after the other."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from vanillaformer.tokenization.options import MODEL_KINDS

from ..engine import TOP_K, Engine, Rows, load_generation_config
from ..exporter import config_of, read_record
from .tensors import TABLES

MODEL = "model.gguf"
SHORTEST = 512  # context, in tokens


class LlamaCppEngine(Engine):
    """What llama.cpp can be asked through llama-cpp-python: greedy search, sampling and scores.

    Args:
        llama_cpp: The engine's module.
        folder: The exported folder.
        device: `cpu`, or anything else for all layers on the GPU that the engine was built for.
    """

    def __init__(self, llama_cpp: Any, folder: Path, device: str = "cpu"):
        record = read_record(folder)
        config = config_of(record)
        super().__init__(
            MODEL_KINDS[config.model_type], record["architecture"], config, load_generation_config(folder)
        )
        self.llama_cpp = llama_cpp
        self.path = folder / MODEL
        self.layers_on_gpu = 0 if device == "cpu" else -1
        self.made: Any = None
        self.keeps_logits = False

    def context(self, length: int, keep_logits: bool = False) -> Any:
        """Return the model with an empty context of at least so many tokens.

        Args:
            length: How many.
            keep_logits: Whether the logits behind all tokens are wanted, and not of the last one alone; they take much
                room.

        Raises:
            ValueError: There are not so many positions.
        """
        limit = self.config.max_position_embeddings
        if self.config.position_embedding_type in TABLES and length > limit:
            raise ValueError(f"{length} tokens are more than max_position_embeddings={limit}")
        if self.made is None or self.made.n_ctx() < length or (keep_logits and not self.keeps_logits):
            self.keeps_logits = keep_logits
            size = max(length, min(limit, max(SHORTEST, 2 ** (length - 1).bit_length())))
            float32 = self.llama_cpp.GGML_TYPE_F32
            self.made = self.llama_cpp.Llama(
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
        self.made.reset()
        return self.made

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
        self.check_rows(prompts)
        self.check_search(max_new_tokens, num_beams, do_sample, temperature, early_stopping)
        if num_beams > 1:
            raise ValueError(f"num_beams={num_beams}: llama.cpp has no beam search")
        sampling = {"temp": temperature, "top_k": top_k, "top_p": top_p} if do_sample else {"temp": 0.0}
        return [
            self.continued(list(prompt), max_new_tokens, sampling, None if seed is None else seed + number)
            for number, prompt in enumerate(prompts)
        ]

    def continued(
        self, prompt: list[int], max_new_tokens: int, sampling: dict[str, Any], seed: int | None
    ) -> list[int]:
        """Return what follows one prompt."""
        llama = self.context(len(prompt) + max_new_tokens)
        if seed is not None:
            llama.set_seed(seed)
        made: list[int] = []
        end = self.end_tokens()
        for token in llama.generate(prompt, min_p=0.0, **sampling):
            if token in end:
                break
            made.append(token)
            if len(made) == max_new_tokens:
                break
        return made

    def score(self, prompts: Rows, continuations: Rows) -> list[list[float]]:
        self.check_rows(prompts)
        return [self.scores(list(prompt), list(more)) for prompt, more in zip(prompts, continuations)]

    def scores(self, prompt: list[int], more: list[int]) -> list[float]:
        row = prompt + more
        llama = self.context(len(row), keep_logits=True)
        llama.eval(row)
        logits = torch.from_numpy(np.array(llama.scores[: len(row)])).log_softmax(-1)
        return [logits[len(prompt) - 1 + place, token].item() for place, token in enumerate(more)]
