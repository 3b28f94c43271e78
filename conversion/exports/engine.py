"""The requests that every engine answers, an engine with the interface of a transformers model, and the record.

The record in an exported folder says which model it was, for which engine, and how the export was checked.
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig

import vanillaformer.modeling as modeling
from vanillaformer.configuration.options import POSITION_CHOICES
from vanillaformer.hub.file_names import EXPORT, GENERATION
from vanillaformer.modeling.base import CACHE_NAME
from vanillaformer.tokenization.options import MODEL_KINDS

from ..tokens import start_token, token_ids

Rows = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Search:
    """Generation settings of an engine; names, meaning and defaults are those of `GenerationConfig`."""

    max_new_tokens: int
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    forced_bos_token_id: int | None = None  # of encoder-decoders
    suppress_tokens: Sequence[int] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        if self.num_beams < 1:
            raise ValueError(f"num_beams must be at least 1, got {self.num_beams}")
        if self.do_sample and self.num_beams > 1:
            raise ValueError(f"do_sample=True draws one token at a time: it needs num_beams=1, got {self.num_beams}")
        if self.early_stopping not in (False, True, "never"):
            raise ValueError(f"early_stopping must be False, True or 'never', got {self.early_stopping!r}")
        if self.do_sample and self.temperature <= 0:
            raise ValueError(f"temperature must be greater than 0, got {self.temperature}")


DEFAULT_LENGTH = 20  # new tokens, as in transformers
LENGTHS = ("max_length", "max_new_tokens")
# The settings of a generation config that an engine has
SEARCH = tuple(field.name for field in fields(Search) if field.name not in (*LENGTHS, "seed"))
# Settings that do not change what is generated, or that an export has elsewhere
WITHOUT_INFLUENCE = {
    "use_cache", "cache_implementation", "cache_config", "max_cache_len", "compile_config", "disable_compile",
    "continuous_batching_config", "low_memory", "prefill_chunk_size", "pad_token_id", "bos_token_id", "eos_token_id",
    "decoder_start_token_id", "transformers_version", "output_attentions", "output_hidden_states", "output_scores",
    "output_logits", "renormalize_logits",
}  # fmt: skip
OF_SAMPLING = {"min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"}
# transformers' defaults: a setting with such a value has no effect
DEFAULTS: dict[str, Any] = GenerationConfig._get_default_generation_params()


class Engine:
    """A loaded exported model; rows are lists of token ids without padding.

    An engine implements `generate_rows` and `score`, or `classify_rows`, or `classify_images`. Every method raises
    ValueError for requests that the engine cannot answer. `architecture` is the name of the exported model's class.
    """

    generates = True

    def __init__(self, architecture: str, config: Any, generation_config: GenerationConfig):
        self.kind: str = MODEL_KINDS.get(config.model_type, "image_encoder")
        self.architecture = architecture
        self.config = config
        self.generation_config = generation_config
        self.has_position_table = POSITION_CHOICES[config.position_embedding_type].has_table

    def generate(self, prompts: Rows, **search: Any) -> list[list[int]]:
        """Return the continuation or translation of each prompt: new tokens only, without the one that ends a text.

        `search` has fields of `Search`; `max_new_tokens` must be given.
        """
        if not self.generates:
            raise ValueError(f"{self.architecture} does not generate text")
        check_rows(prompts)
        return self.generate_rows(prompts, Search(**search))

    def generate_rows(self, prompts: Rows, search: Search) -> list[list[int]]:
        """Generate from rows that have at least one token."""
        raise NotImplementedError

    def score(self, prompts: Rows, continuations: Rows) -> list[list[float]]:
        """Return the log-probability of each token of a continuation, given those before it."""
        raise NotImplementedError

    def classify(self, rows: Rows, token_type_ids: Rows | None = None) -> np.ndarray:
        """Return the logits of texts, (B, labels), or of their tokens, (B, T, labels), padded on the right."""
        if self.generates:
            raise ValueError(f"{self.architecture} is not a classifier")
        if self.kind == "image_encoder":
            raise ValueError(f"{self.architecture} classifies images, not tokens")
        check_rows(rows)
        if token_type_ids is not None and not self.config.type_vocab_size:
            raise ValueError("token_type_ids were given, but the config says type_vocab_size=0")
        return self.classify_rows(rows, token_type_ids)

    def classify_rows(self, rows: Rows, token_type_ids: Rows | None) -> np.ndarray:
        """Classify rows that have at least one token."""
        raise NotImplementedError

    def classify_images(self, pixel_values: torch.Tensor) -> np.ndarray:
        """Return the logits (B, labels) of images (B, C, height, width) of the model's size."""
        raise ValueError(f"{self.architecture} reads no images")

    def end_tokens(self) -> list[int]:
        end = self.generation_config.eos_token_id
        return token_ids(self.config.eos_token_id if end is None else end)

    def start_token(self) -> Any:
        return start_token(self.config, self.generation_config)

    def check_length(self, length: int) -> None:
        """Raise ValueError for more tokens than a position table has rows."""
        limit = self.config.max_position_embeddings
        if self.has_position_table and length > limit:
            raise ValueError(f"{length} tokens are more than max_position_embeddings={limit}")


def check_rows(rows: Rows) -> None:
    """Raise ValueError for a row without tokens."""
    if empty := [number for number, row in enumerate(rows) if not len(row)]:
        raise ValueError(f"row {empty[0]} has no tokens")


class EngineModel:
    """An engine with the interface of a transformers model: padded tensors, `generate` with the model's defaults.

    The seed of sampling is set only before the first call.
    """

    device, dtype = torch.device("cpu"), torch.float32

    def __init__(self, engine: Engine, seed: int | None = None):
        self.engine = engine
        self.config = engine.config
        self.seed = seed

    def __call__(
        self, input_ids: Any = None, attention_mask: Any = None, token_type_ids: Any = None, **inputs: Any
    ) -> SimpleNamespace:
        """Return the `logits` of a padded batch (B, T), or of images, `pixel_values` (B, C, height, width)."""
        if input_ids is None:
            return SimpleNamespace(logits=torch.from_numpy(self.engine.classify_images(inputs["pixel_values"])))
        rows, types = unpadded(input_ids, attention_mask, token_type_ids)
        return SimpleNamespace(logits=torch.from_numpy(self.engine.classify(rows, types)))

    def generate(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **options: Any
    ) -> torch.Tensor:
        """Return prompts with their continuations, or the start token with the translation, padded (B, T)."""
        options.pop("token_type_ids", None)
        prompts, _ = unpadded(input_ids, attention_mask)
        settings = self.settings(prompts, {name: value for name, value in options.items() if value is not None})
        seed, self.seed = self.seed, None
        generated = self.engine.generate(prompts, **settings, seed=seed)
        if self.engine.kind == "encoder_decoder":
            prompts = [[self.engine.start_token()]] * len(generated)
        fill = self.config.pad_token_id
        fill = next(iter(self.engine.end_tokens()), 0) if fill is None else fill
        return padded([[*prompt, *new] for prompt, new in zip(prompts, generated)], fill)[0].to(input_ids.dtype)

    def settings(self, prompts: Rows, given: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a `Search`: the settings given, and for the rest the model's generation config.

        A setting that engines do not have is refused if it would change the output.
        """
        config = self.engine.generation_config
        saved = {name: getattr(config, name) for name in vars(GenerationConfig()) if not name.startswith("_")}
        saved = {name: value for name, value in saved.items() if value is not None}
        asked = saved | given
        if ends_cut := asked.get("forced_eos_token_id", -1) in self.engine.end_tokens():
            del asked["forced_eos_token_id"]
        if all(len(words) == 1 for words in asked.get("bad_words_ids", [[], []])):
            words = [token for (token,) in asked.pop("bad_words_ids")]
            asked["suppress_tokens"] = [*asked.get("suppress_tokens", ()), *words]
        for name, value in asked.items():
            where = "" if name in given else "generation_config.json: "
            known = name in SEARCH + LENGTHS and not (name == "forced_bos_token_id" and self.engine.kind == "decoder")
            known = known or (name in WITHOUT_INFLUENCE and value == saved.get(name, value))
            idle = value in (DEFAULTS.get(name), False, [], {}) or (name in OF_SAMPLING and not asked.get("do_sample"))
            if not known and not idle:
                raise ValueError(f"{where}{name}={value!r}: an exported model has only {', '.join(SEARCH + LENGTHS)}")
        lengths = given if any(name in given for name in LENGTHS) else saved
        start = max(len(prompt) for prompt in prompts) if self.engine.kind == "decoder" else 1
        new_tokens = lengths.get("max_new_tokens") or lengths.get("max_length", DEFAULT_LENGTH + start) - start
        new_tokens = max(1, new_tokens - ends_cut)  # a text that is too long ends with the end token
        return {name: asked[name] for name in SEARCH if asked.get(name) not in (None, [])} | {
            "max_new_tokens": new_tokens
        }


def unpadded(
    input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, token_type_ids: torch.Tensor | None = None
) -> tuple[list[list[int]], list[list[int]] | None]:
    """Return the tokens of a batch (B, T) row by row without padding, and their types if given."""
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask

    def rows(ids: torch.Tensor) -> list[list[int]]:
        return [row[is_token.bool()].tolist() for row, is_token in zip(ids, mask)]

    return rows(input_ids), None if token_type_ids is None else rows(token_type_ids)


def padded(rows: Rows, fill: int, side: str = "right") -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows as a tensor (B, T) padded on one side with `fill`, and its attention mask (B, T)."""
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    ids = pad_sequence(tensors, batch_first=True, padding_value=fill, padding_side=side)
    return ids, pad_sequence([*map(torch.ones_like, tensors)], batch_first=True, padding_side=side)


class StatesOfEngine(torch.nn.Module):
    """An engine's stack as a module for one of our heads; `states` returns (B, T, D) for rows and their types."""

    def __init__(self, states: Callable[[Rows, Rows | None], np.ndarray]):
        super().__init__()
        self.states = states

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: None = None,  # an engine numbers positions itself, and embeds the tokens
        inputs_embeds: None = None,
        **kwargs: Any,
    ) -> Any:
        states = torch.from_numpy(self.states(*unpadded(input_ids, attention_mask, token_type_ids)))
        nothing = dict.fromkeys((CACHE_NAME, "hidden_states", "attentions"))
        return SimpleNamespace(last_hidden_state=states, **nothing)


def read_record(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the record of an exported folder; raise ValueError if it holds no export, or a damaged one."""
    path = Path(folder) / EXPORT
    if not path.is_file():
        raise ValueError(f"{folder} holds no exported model: it has no {EXPORT}")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        _ = model_class_of(record), record["engine"]  # every record has both
        return record
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from error


def model_class_of(record: dict[str, Any]) -> Any:
    return getattr(modeling, record["architecture"])


def config_of(record: dict[str, Any]) -> Any:
    return model_class_of(record).config_class.from_dict(record["config"])


def exported_model(folder: Path) -> tuple[str, Any, GenerationConfig]:
    """Return the facts about an `Engine`'s model: class name, config and generation config."""
    record = read_record(folder)
    has_defaults = (folder / GENERATION).is_file()
    generation_config = GenerationConfig.from_pretrained(folder) if has_defaults else GenerationConfig()
    return record["architecture"], config_of(record), generation_config
