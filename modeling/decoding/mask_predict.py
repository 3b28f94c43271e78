"""Mask-predict: all tokens are predicted at once, then the least certain ones again.

Shape letters: B batch, E length candidates, S length of the source, T of the target, D model width, V vocabulary.
"""

from typing import Any

import torch
from torch import nn
from transformers.generation import GenerationConfig

from vanillaformer.configuration import VanillaEncoderDecoderConfig

from ..heads import IGNORE_INDEX
from .base import DecoderInputs, ParallelDecoding, source_mask


class MaskPredict(ParallelDecoding):
    """Conditional masked language model (Ghazvininejad et al. 2019): `p(y_hidden | y_visible, x)`, and `p(T | x)`.

    Training hides `n ~ U(1, T)` tokens of a target and predicts them from the others; the length is predicted from the
    mean of the encoder's states, as the difference from the source's. The loss is that of the hidden tokens, scaled
    up to all tokens, plus that of the lengths, divided by the number of labels. In evaluation all tokens are hidden:
    it is then the mean negative log-likelihood of length and tokens in one step.

    Generation hides the `⌊T (1 - t/steps)⌋` least certain tokens after step t, and predicts them again. With several
    beams it does so for the likeliest lengths, and keeps the text with the greatest `(log p(T) + Σ log p(y)) / T^α`, α
    being `length_penalty`. Without p(T), as in the paper, a truncated text often has the best score.

    A hidden token is replaced by `decoder_start_token_id`, which no target contains; the last token, which ends a
    text, is never hidden.

    Options of `generate`: `refinement_steps`, and `length_scale`, a factor on the predicted length.
    """

    generation_options = {"refinement_steps": 10, "length_scale": 1.0}  # noqa: RUF012

    def __init__(self, config: VanillaEncoderDecoderConfig):
        super().__init__(config)
        self.length_head = nn.Linear(config.encoder_width, 2 * config.max_length_difference + 1)

    # ------------------------------------------------------------------------------------------------------ training
    def first_inputs(self, labels: torch.Tensor) -> torch.Tensor:
        return self.with_hidden(labels, self.is_content(labels))

    def inputs_for(self, labels: torch.Tensor, given: DecoderInputs) -> DecoderInputs:
        ids, mask = given["decoder_input_ids"], given["decoder_attention_mask"]
        if self.training:
            ids = self.with_hidden(labels, self.draw_hidden(self.is_content(labels)))
        elif ids is None:
            ids = self.first_inputs(labels)
        if mask is None:
            mask = labels != IGNORE_INDEX
            mask = mask | ~mask.any(dim=1, keepdim=True)  # a row without any token must see something
        return given | {"decoder_input_ids": ids, "decoder_attention_mask": mask}

    def is_content(self, labels: torch.Tensor) -> torch.Tensor:
        """Return where labels are tokens that are predicted: neither padding nor the end."""
        return (labels != IGNORE_INDEX) & ~self.is_end(labels)

    def with_hidden(self, labels: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Return the decoder's input ids (B, T): labels, some of them hidden."""
        ids = labels.masked_fill(labels == IGNORE_INDEX, self.pad_id)
        return ids.masked_fill(hidden, self.start_id)

    @staticmethod
    def draw_hidden(content: torch.Tensor) -> torch.Tensor:
        """Draw the hidden tokens (B, T): in each row, a number of tokens from U(1, its length)."""
        lengths = content.sum(dim=1, keepdim=True)
        count = 1 + (torch.rand(lengths.shape, device=content.device) * lengths).long()
        keys = torch.rand(content.shape, device=content.device).masked_fill(~content, 2.0)
        return (ranks(keys) < count) & content

    def loss_and_logits(
        self,
        model: Any,
        hidden_states: torch.Tensor,
        labels: torch.Tensor | None,
        inputs: DecoderInputs,
        source: tuple[torch.Tensor, torch.Tensor | None],
        *pointers: torch.Tensor,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        if labels is None:
            return model.loss_and_logits(hidden_states, labels, *pointers)
        content, ids = self.is_content(labels), inputs["decoder_input_ids"]
        hidden = content & (ids == self.start_id)
        items = (labels != IGNORE_INDEX).sum() if num_items_in_batch is None else num_items_in_batch
        share = hidden.sum().clamp(min=1) / content.sum().clamp(min=1)
        targets = labels.masked_fill(~hidden, IGNORE_INDEX)
        kwargs["num_items_in_batch"] = items * share
        loss, logits = model.loss_and_logits(hidden_states, targets, *pointers, **kwargs)
        return loss + self.length_loss(labels, *source) / items, logits

    def length_loss(self, labels: torch.Tensor, states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Return the sum of the cross-entropies of the lengths of targets (B, T) that have any label."""
        limit = self.config.max_length_difference
        seen = source_mask(states, mask)
        differences = self.is_content(labels).sum(dim=1) - seen.sum(dim=1)
        classes = differences.clamp(-limit, limit) + limit
        classes = classes.masked_fill((labels == IGNORE_INDEX).all(dim=1), IGNORE_INDEX)
        logits = self.length_logits(states, seen)
        return nn.functional.cross_entropy(logits, classes, ignore_index=IGNORE_INDEX, reduction="sum")

    def length_logits(self, states: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """Return the logits of the differences in length (B, 2 max_length_difference + 1), from the mean state."""
        weights = seen.to(states.dtype)
        mean = torch.einsum("bsd,bs->bd", states, weights) / weights.sum(dim=1, keepdim=True).clamp(min=1)
        return self.length_head(mean).float()

    # ---------------------------------------------------------------------------------------------------- generation
    def check_options(self, config: GenerationConfig, arguments: dict[str, Any]) -> None:
        super().check_options(config, arguments)
        options: Any = config
        steps, scale = options.refinement_steps, options.length_scale
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ValueError(f"refinement_steps must be an integer of at least 1, got {steps!r}")
        if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < float("inf"):
            raise ValueError(f"length_scale must be a finite number greater than 0, got {scale!r}")
        most = self.length_head.out_features
        if config.num_beams > most:
            raise ValueError(f"num_beams must be at most {most}, the number of lengths, got {config.num_beams}")

    def search(
        self, model: Any, config: Any, encoder_outputs: Any, attention_mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        seen = source_mask(encoder_outputs[0], attention_mask)
        lengths, length_scores = self.predict_lengths(encoder_outputs[0], seen, config)
        source = {"encoder_outputs": encoder_outputs, "attention_mask": attention_mask}
        tokens, log_probabilities = self.refine(model, lengths, config.refinement_steps, **source)
        scores = (length_scores + log_probabilities.sum(dim=1)) / lengths.clamp(min=1) ** config.length_penalty
        best = scores.view(-1, config.num_beams).topk(config.num_return_sequences, dim=1)
        first = torch.arange(0, len(lengths), config.num_beams, device=lengths.device)
        rows = (best.indices + first[:, None]).flatten()
        return tokens[rows, : int(lengths[rows].max()) + 1], best.values.flatten()

    def predict_lengths(
        self, states: torch.Tensor, seen: torch.Tensor, config: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the lengths of texts, without the end token, and their log-probabilities, both (B · E).

        They are the E likeliest lengths for each source.
        """
        beams, limit = config.num_beams, self.config.max_length_difference
        longest = min(config.max_length - 2, self.config.max_position_embeddings - 1)
        states, seen = states[::beams], seen[::beams]
        lengths = seen.sum(dim=1, keepdim=True) + torch.arange(-limit, limit + 1, device=states.device)
        logits = self.length_logits(states, seen).masked_fill((lengths < 1) | (lengths > longest), -torch.inf)
        best = logits.log_softmax(dim=-1).topk(beams)
        likeliest = lengths.gather(1, best.indices).flatten()
        return (likeliest * config.length_scale).round().long().clamp(min(1, longest), longest), best.values.flatten()

    def refine(
        self, model: Any, lengths: torch.Tensor, steps: int, **source: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return texts (B, T) of the given lengths, with end and padding, and the tokens' log-probabilities (B, T)."""
        start, pad = self.start_id, self.pad_id
        barred = (start, pad, self.config.bos_token_id, *self.end_ids)
        columns, lengths = torch.arange(int(lengths.max()) + 1, device=lengths.device), lengths[:, None]
        content = hidden = columns < lengths
        tokens = torch.where(columns == lengths, self.end_ids[0], torch.where(content, start, pad))
        certainty = torch.zeros(tokens.shape, device=tokens.device)
        for step in range(1, steps + 1):
            inputs = {"decoder_input_ids": tokens, "decoder_attention_mask": columns <= lengths}
            logits = model(**source, **inputs, use_cache=False).logits
            best = self.token_log_probabilities(logits, *barred).max(dim=-1)
            tokens = torch.where(hidden, best.indices, tokens)
            certainty = torch.where(hidden, best.values, certainty)
            again = lengths * (steps - step) // steps
            hidden = ranks(certainty.masked_fill(~content, torch.inf)) < again
            tokens = torch.where(hidden, start, tokens)
        return tokens, certainty


def ranks(values: torch.Tensor) -> torch.Tensor:
    """Return the rank of each value in its row, 0 for the smallest."""
    return values.argsort(dim=-1, stable=True).argsort(dim=-1)
