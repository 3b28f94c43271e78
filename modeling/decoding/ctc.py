"""Connectionist temporal classification: more frames than tokens, some of them blank.

Shape letters: B batch, S length of the source, T of the target, K frames per source token, D model width.
"""

from typing import Any

import torch
from torch import nn
from transformers.generation import GenerationConfig

from ..heads import IGNORE_INDEX
from .base import DecoderInputs, ParallelDecoding, UpsamplingDecoderStack, source_mask


class Ctc(ParallelDecoding):
    """Connectionist temporal classification (Libovický and Helcl 2018): `p(y | x) = Σ over paths that collapse to y`.

    The decoder has `ctc_upsampling` frames per source token; each predicts a token or a blank, which is the padding
    token. A path collapses as repetitions, then blanks are dropped. The loss (Graves et al. 2006) is the negative
    log-likelihood per label; a target that is too long for its frames is ignored. Generation takes the likeliest path.
    """

    decoder_class = UpsamplingDecoderStack

    def loss_and_logits(
        self,
        model: Any,
        hidden_states: torch.Tensor,
        labels: torch.Tensor | None,
        inputs: DecoderInputs,
        source: tuple[torch.Tensor, torch.Tensor | None],
        *pointers: torch.Tensor,
        num_items_in_batch: torch.Tensor | int | None = None,
        return_logits: bool = True,
        label_smoothing: float = 0.0,
        **kwargs: Any,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        if label_smoothing:
            raise ValueError(f"label_smoothing={label_smoothing}: decoding='ctc' has no target for each position")
        logits = model.logits(hidden_states, *pointers)
        if labels is None:
            return None, logits
        real = labels != IGNORE_INDEX
        losses = nn.functional.ctc_loss(
            logits.float().log_softmax(dim=-1).transpose(0, 1),
            labels[real],
            self.frames(source_mask(*source)),
            real.sum(dim=1),
            blank=self.pad_id,
            reduction="none",
            zero_infinity=True,
        )
        items = real.sum() if num_items_in_batch is None else num_items_in_batch
        return losses[real.any(dim=1)].sum() / items, logits if return_logits else None

    def frames(self, seen: torch.Tensor) -> torch.Tensor:
        """Return the number of frames (B) of sources with a mask (B, S)."""
        return self.config.ctc_upsampling * seen.sum(dim=1)

    def check_options(self, config: GenerationConfig, arguments: dict[str, Any]) -> None:
        super().check_options(config, arguments)
        if config.num_beams > 1:
            raise ValueError(f"num_beams={config.num_beams}: decoding='ctc' has a single candidate")

    def search(
        self, model: Any, config: Any, encoder_outputs: Any, attention_mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits = model(encoder_outputs=encoder_outputs, attention_mask=attention_mask, use_cache=False).logits
        start = None if self.start_id in (self.pad_id, *self.end_ids) else self.start_id
        best = self.token_log_probabilities(logits, start).max(dim=-1)
        frames = self.frames(source_mask(encoder_outputs[0], attention_mask))[:, None]
        real = torch.arange(logits.shape[1], device=logits.device) < frames
        path = best.indices.masked_fill(~real, self.pad_id)
        return self.collapse(path, config.max_length - 2), best.values.masked_fill(~real, 0.0).sum(dim=1)

    def collapse(self, path: torch.Tensor, longest: int) -> torch.Tensor:
        """Return the texts (B, T) of paths (B, K · S), at most `longest` tokens and an end each, and padding."""
        blank = self.pad_id
        previous = nn.functional.pad(path, (1, 0), value=blank)[:, :-1]
        ended = self.is_end(path).cumsum(dim=1) > 0
        kept = (path != blank) & (path != previous) & ~ended
        positions = kept.cumsum(dim=1) - 1
        kept &= positions < longest
        lengths = kept.sum(dim=1, keepdim=True)
        texts = path.new_full((len(path), int(lengths.max()) + 1), blank)
        rows, columns = kept.nonzero(as_tuple=True)
        texts[rows, positions[rows, columns]] = path[rows, columns]
        return texts.scatter(1, lengths, self.end_ids[0])
