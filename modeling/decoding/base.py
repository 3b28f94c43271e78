"""Autoregressive decoding, with the hooks that all decodings have, and the base of parallel decoding.

Parallel decoding predicts all tokens of a text at once, so there is no prefix to continue.

Shape letters: B batch, S length of the source, T of the target, K frames per source token, D model width.
"""

from typing import Any, cast

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.generation import GenerationConfig
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria
from transformers.generation.utils import GenerateBeamEncoderDecoderOutput
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from vanillaformer.configuration import VanillaEncoderDecoderConfig

from ..parts.packed_texts import same_text
from ..seq2seq import shift_right
from ..stack import BIDIRECTIONAL_MASKS, CrossDecoderStack, Masks

DecoderInputs = dict[str, torch.Tensor | None]
"""The arguments of the model's forward pass that begin with `decoder_`: ids or embeddings, and the mask."""


class Autoregressive(nn.Module):
    """Autoregressive decoding (Vaswani et al. 2017): `p(y | x) = Π p(y_t | y_<t, x)`, searched by transformers.

    Also the base class of the other decodings, with the hooks that the model calls.
    """

    decoder_class: type[CrossDecoderStack] = CrossDecoderStack

    def __init__(self, config: VanillaEncoderDecoderConfig):
        super().__init__()
        self.config = config

    def first_inputs(self, labels: torch.Tensor) -> torch.Tensor:
        """Return the decoder's input ids (B, T) for labels (B, T); data collators need them."""
        return shift_right(labels, self.config)

    def inputs_for(self, labels: torch.Tensor, given: DecoderInputs) -> DecoderInputs:
        """Return the decoder's inputs for a pass with labels (B, T), completing those `given`."""
        if given["decoder_input_ids"] is None and given["decoder_inputs_embeds"] is None:
            return given | {"decoder_input_ids": self.first_inputs(labels)}
        return given

    def loss_and_logits(
        self,
        model: Any,
        hidden_states: torch.Tensor,
        labels: torch.Tensor | None,
        inputs: DecoderInputs,
        source: tuple[torch.Tensor, torch.Tensor | None],
        *pointers: torch.Tensor,
        **kwargs: Any,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the loss, `None` without labels (B, T), and the logits of the decoder's states (B, T, D).

        `source` are the encoder's states (B, S, D) and the mask of the source (B, S), `None` without padding; the
        rest are arguments of the model's own `loss_and_logits`.
        """
        return model.loss_and_logits(hidden_states, labels, *pointers, **kwargs)


# Options of `generate` that need a text that grows token by token, or that draw tokens
PREFIX_OPTIONS = (
    "do_sample", "repetition_penalty", "encoder_repetition_penalty", "no_repeat_ngram_size", "penalty_alpha",
    "encoder_no_repeat_ngram_size", "bad_words_ids", "sequence_bias", "suppress_tokens", "begin_suppress_tokens",
    "forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty", "min_length", "min_new_tokens",
    "guidance_scale", "watermarking_config", "token_healing", "stop_strings", "max_time", "prompt_lookup_num_tokens",
    "cache_implementation", "output_scores", "output_logits", "output_attentions", "output_hidden_states",
)  # fmt: skip


class ParallelDecoderStack(CrossDecoderStack):
    """Bidirectional self-attention and cross-attention: a decoder of all tokens at once, without a cache."""

    is_causal = False
    mask_functions = BIDIRECTIONAL_MASKS

    def self_attention_masks(
        self, hidden_states: torch.Tensor, attention_mask: Any, cache: Any, position_ids: torch.Tensor | None
    ) -> Masks:
        texts = same_text(position_ids, attention_mask, hidden_states.shape[0])
        return self.masks(hidden_states, attention_mask, texts=texts)

    def forward(  # type: ignore[override]  # some of the target tokens are hidden, and none follow cached ones
        self, *args: Any, past_key_values: Any = None, use_cache: Any = None, **kwargs: Any
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        return super().forward(*args, use_cache=False, **kwargs)


class UpsamplingDecoderStack(ParallelDecoderStack):
    """The same on frames: `upsample` makes K vectors from each of the encoder's states (Libovický and Helcl 2018).

    The frames of padding come last, wherever the source has its padding.
    """

    reads_tokens = False

    def build_stem(self, config: Any) -> None:
        super().build_stem(config)
        self.upsample = nn.Linear(config.encoder_width, config.ctc_upsampling * config.hidden_size)

    def forward(  # type: ignore[override]  # target tokens are not read
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Return the states (B, K · S, D) of the frames of the encoder's output (B, S, D)."""
        if encoder_hidden_states is None:
            raise ValueError("decoding='ctc' makes the decoder's input from the encoder's output: none was given")
        repeats, states, mask = self.config.ctc_upsampling, encoder_hidden_states, encoder_attention_mask
        if mask is not None:
            order = mask.int().argsort(dim=1, descending=True, stable=True)  # tokens first
            states = states.gather(1, order[..., None].expand_as(states))
            mask = mask.gather(1, order).repeat_interleave(repeats, dim=1)
        frames = self.upsample(states).unflatten(-1, (repeats, -1)).flatten(1, 2)  # (B, K · S, D)
        return super().forward(
            inputs_embeds=frames / self.embeddings.scale,  # by which the stem multiplies its input
            attention_mask=mask,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            **kwargs,
        )


def source_mask(states: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """Return where the states (B, S, D) of a source belong to tokens, (B, S)."""
    if attention_mask is None:
        return torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
    return attention_mask.bool()


class ParallelDecoding(Autoregressive):
    """Base of decodings that predict all tokens at once."""

    decoder_class = ParallelDecoderStack
    generation_options: dict[str, Any] = {}  # noqa: RUF012 - those that transformers lacks, with their defaults

    @property
    def start_id(self) -> int:
        """The token that texts start with; the config requires one."""
        return cast(int, self.config.decoder_start_token_id)

    @property
    def pad_id(self) -> int:
        """The padding token; the config requires one."""
        return cast(int, self.config.pad_token_id)

    @property
    def end_ids(self) -> list[int]:
        """The tokens that end a text; generated texts end with the first one."""
        ends: Any = self.config.eos_token_id
        return ends if isinstance(ends, list) else [ends]

    def is_end(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return where tokens end a text."""
        return torch.isin(tokens, torch.tensor(self.end_ids, device=tokens.device))

    def token_log_probabilities(self, logits: torch.Tensor, *barred: int | None) -> torch.Tensor:
        """Return log-probabilities (..., V) in which `barred` tokens are impossible."""
        ids = torch.tensor([token for token in barred if token is not None], dtype=torch.long, device=logits.device)
        return logits.float().index_fill(-1, ids, -torch.inf).log_softmax(-1)

    def check_labels(self, labels: torch.Tensor | None) -> None:
        """Raise ValueError for a training pass without labels, from which this decoding cannot learn."""
        if labels is None and self.training and torch.is_grad_enabled():  # unlike generation
            raise ValueError(
                f"the model has decoding={self.config.decoding!r}, whose training needs labels: give them to forward "
                "(Trainer removes them with label_smoothing_factor or compute_loss_func: leave these out), or call "
                "eval() or torch.no_grad() if this is not training"
            )

    def with_options(self, config: GenerationConfig) -> GenerationConfig:
        """Return generation settings with `generation_options`: transformers refuses an option that they lack."""
        options = self.generation_options.items()
        missing = {name: value for name, value in options if getattr(config, name, None) is None}
        return GenerationConfig(**config.to_dict() | missing | {"_from_model_config": False}) if missing else config

    def check_options(self, config: GenerationConfig, arguments: dict[str, Any]) -> None:
        """Raise ValueError for options of `generate` that cannot be used."""
        defaults = config._get_default_generation_params()
        given = {name: getattr(config, name, None) for name in PREFIX_OPTIONS} | {
            name: arguments.get(name) for name in ("streamer", "assistant_model")
        }
        for name, value in given.items():
            if value is not None and value != defaults.get(name) and value is not False:
                shown = f"{name}={value!r}" if isinstance(value, int | float | str | list) else name
                raise ValueError(
                    f"{shown}: the model has decoding={self.config.decoding!r}, which predicts all tokens at once: "
                    "no text grows token by token"
                )

    def sample(self, model: Any, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        """Return what `generate` returns."""
        # No target prefix can be continued, and no functions of the caller's can act on one
        expected = (MaxLengthCriteria, EosTokenCriteria)
        criteria = (entry for entry in kwargs.pop("stopping_criteria") if not isinstance(entry, expected))
        found = [*kwargs.pop("logits_processor"), *criteria]
        names = [type(entry).__name__ for entry in found] + ["decoder_input_ids"] * (input_ids.shape[1] > 1)
        if names:
            raise ValueError(
                f"{', '.join(names)}: the model has decoding={self.config.decoding!r}, which predicts all tokens at "
                "once, and can neither continue a text nor change or stop one that grows token by token"
            )
        config, encoder_outputs = kwargs["generation_config"], kwargs["encoder_outputs"]
        texts, scores = self.search(model, config, encoder_outputs, kwargs.get("attention_mask"))
        start = texts.new_full((len(texts), 1), self.start_id)
        sequences = torch.cat([start, texts], dim=1)
        if config.return_dict_in_generate:
            return GenerateBeamEncoderDecoderOutput(sequences=cast(Any, sequences), sequences_scores=scores)
        return sequences

    def search(
        self, model: Any, config: GenerationConfig, encoder_outputs: Any, attention_mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return texts (B, T) with an end token and padding, and the score of each (B).

        The encoder's output and the mask of the source repeat each sentence as often as there are beams.
        """
        raise NotImplementedError
