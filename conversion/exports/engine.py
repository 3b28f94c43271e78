"""A model on another engine: what every engine can be asked, and how it takes a model's place in a program."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig

from vanillaformer.tokenization import ModelKind

Rows = Sequence[Sequence[int]]

NEW_TOKENS = 20  # how many transformers makes where nobody says
TOP_K = 50  # and among how many it samples
SEARCH = ("num_beams", "length_penalty", "early_stopping", "do_sample", "temperature", "top_k", "top_p")
LENGTHS = ("max_length", "max_new_tokens")
# Settings that change nothing in what is generated, or that an export has in another place
WITHOUT_INFLUENCE = {
    "use_cache", "cache_implementation", "cache_config", "max_cache_len", "compile_config", "disable_compile",
    "continuous_batching_config", "low_memory", "prefill_chunk_size", "pad_token_id", "bos_token_id", "eos_token_id",
    "decoder_start_token_id", "transformers_version", "output_attentions", "output_hidden_states", "output_scores",
    "output_logits",
}  # fmt: skip
OF_SAMPLING = {"min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"}
# What transformers takes for a setting that nobody gives: a config that has it asks for nothing
DEFAULTS: dict[str, Any] = GenerationConfig._get_default_generation_params()


class Engine:
    """An exported model, loaded; rows are lists of token ids without padding.

    Args:
        kind: `encoder_decoder`, `decoder` or `encoder`.
        architecture: The class of ours that the model was.
        config: Its config.
        generation_config: Its defaults of generation.

    Raises:
        ValueError: From every method: the engine cannot do what is asked of it.
    """

    def __init__(self, kind: ModelKind, architecture: str, config: Any, generation_config: GenerationConfig):
        self.kind = kind
        self.architecture = architecture
        self.config = config
        self.generation_config = generation_config

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
        """Return what follows each prompt, or translates it: new tokens alone, without the one that ends a text."""
        raise ValueError(f"{self.architecture} generates nothing")

    def score(self, prompts: Rows, continuations: Rows) -> list[list[float]]:
        """Return the logarithm of the probability of each token of a continuation, given those before it."""
        raise NotImplementedError

    def classify(self, rows: Rows, token_type_ids: Rows | None = None) -> np.ndarray:
        """Return the logits of texts, (B, labels), or of their tokens, (B, T, labels), padded on the right."""
        raise ValueError(f"{self.architecture} classifies nothing")

    def end_tokens(self) -> list[int]:
        """Return the tokens that end a text."""
        end = self.generation_config.eos_token_id
        end = self.config.eos_token_id if end is None else end
        return [] if end is None else end if isinstance(end, list) else [end]

    def start_token(self) -> Any:
        """Return the token that a translation starts from."""
        return start_token(self.config, self.generation_config)

    def check_rows(self, rows: Rows) -> None:
        """Raise for rows that hold no text."""
        if empty := [number for number, row in enumerate(rows) if not len(row)]:
            raise ValueError(f"row {empty[0]} has no tokens")

    def check_search(
        self,
        max_new_tokens: int,
        num_beams: int,
        do_sample: bool,
        temperature: float,
        early_stopping: bool | str = False,
    ) -> None:
        """Raise for a search that makes no sense or that no engine has."""
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
        if num_beams < 1:
            raise ValueError(f"num_beams must be at least 1, got {num_beams}")
        if do_sample and num_beams > 1:
            raise ValueError(f"do_sample=True draws one token at a time: it needs num_beams=1, got {num_beams}")
        if early_stopping not in (False, True, "never"):
            raise ValueError(f"early_stopping must be False, True or 'never', got {early_stopping!r}")
        if do_sample and temperature <= 0:
            raise ValueError(f"temperature must be greater than 0, got {temperature}")


class EngineModel:
    """An engine in the place of a transformers model: padded tensors in and out, `generate` with its own defaults.

    Args:
        engine: The engine.
        seed: Seed of the sampling; a call goes on where the one before has stopped.
    """

    device = torch.device("cpu")

    def __init__(self, engine: Engine, seed: int | None = None):
        self.engine = engine
        self.config = engine.config
        self.seed = seed

    def __call__(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> SimpleNamespace:
        """Return the `logits` of a padded batch (B, T)."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        types = None if token_type_ids is None else unpadded(token_type_ids, mask)
        return SimpleNamespace(logits=torch.from_numpy(self.engine.classify(unpadded(input_ids, mask), types)))

    def generate(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **options: Any
    ) -> torch.Tensor:
        """Return prompts with what follows, or the start token with the translation, padded (B, T)."""
        options.pop("token_type_ids", None)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        prompts = unpadded(input_ids, mask)
        given = self.settings(prompts, {name: value for name, value in options.items() if value is not None})
        seed, self.seed = self.seed, None
        made = self.engine.generate(prompts, **given, seed=seed)
        if self.engine.kind == "encoder_decoder":
            prompts = [[self.engine.start_token()]] * len(made)
        return self.padded([[*prompt, *new] for prompt, new in zip(prompts, made)], input_ids)

    def settings(self, prompts: Rows, given: dict[str, Any]) -> dict[str, Any]:
        """Return what an `Engine` is asked for: the settings given, and for the rest the model's generation config.

        Raises:
            ValueError: There is a setting that engines do not have.
        """
        config = self.engine.generation_config
        saved = {name: getattr(config, name) for name in vars(GenerationConfig()) if not name.startswith("_")}
        saved = {name: value for name, value in saved.items() if value is not None}
        asked = saved | given
        for name, value in asked.items():
            where = "" if name in given else "generation_config.json: "
            known = name in SEARCH + LENGTHS or (name in WITHOUT_INFLUENCE and value == saved.get(name, value))
            idle = value in (DEFAULTS.get(name), False, [], {}) or (name in OF_SAMPLING and not asked.get("do_sample"))
            if not known and not idle:
                raise ValueError(f"{where}{name}={value!r}: an exported model has only {', '.join(SEARCH + LENGTHS)}")
        lengths = given if any(name in given for name in LENGTHS) else saved
        longest = max(len(prompt) for prompt in prompts) if self.engine.kind == "decoder" else 1
        new_tokens = lengths.get("max_new_tokens") or max(1, lengths.get("max_length", NEW_TOKENS + longest) - longest)
        return {name: asked[name] for name in SEARCH if name in asked} | {"max_new_tokens": new_tokens}

    def padded(self, rows: list[list[int]], like: torch.Tensor) -> torch.Tensor:
        """Return rows as a tensor, filled up behind with padding or, without such a token, with the end."""
        fill = self.config.pad_token_id
        fill = next(iter(self.engine.end_tokens()), 0) if fill is None else fill
        length = max(len(row) for row in rows)
        return torch.tensor([row + [fill] * (length - len(row)) for row in rows], dtype=like.dtype)


def unpadded(ids: torch.Tensor, mask: torch.Tensor) -> list[list[int]]:
    """Return the tokens of a batch (B, T) row by row, padding left out."""
    return [row[kept.bool()].tolist() for row, kept in zip(ids, mask)]


class StatesOfEngine(torch.nn.Module):
    """An engine's stack in the place of ours: the head behind it stays our own.

    Args:
        states: Returns the states (B, T, D) of rows of tokens, and of their types where there are some.
    """

    def __init__(self, states: Callable[[Rows, Rows | None], np.ndarray]):
        super().__init__()
        self.states = states

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        types = None if token_type_ids is None else unpadded(token_type_ids, mask)
        made = torch.from_numpy(self.states(unpadded(input_ids, mask), types))
        return SimpleNamespace(last_hidden_state=made, past_key_values=None, hidden_states=None, attentions=None)


def start_token(config: Any, generation_config: GenerationConfig | None) -> Any:
    """Return the token that a translation starts from: by the generation config or else by the model's own."""
    start = getattr(generation_config, "decoder_start_token_id", None)
    return getattr(config, "decoder_start_token_id", None) if start is None else start


def load_generation_config(folder: Path) -> GenerationConfig:
    """Return the generation defaults saved in a folder, transformers' own if there are none."""
    if (folder / "generation_config.json").is_file():
        return GenerationConfig.from_pretrained(folder)
    return GenerationConfig()
