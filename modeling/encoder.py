"""BERT-style models: the bidirectional stack, with heads for masked tokens, pairs, texts, tokens, answers and choices.

Shape letters: B batch, C choices, T length, D model width, V vocabulary.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import nn
from transformers.modeling_outputs import (
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs, can_return_tuple

from vanillaformer.configuration import VanillaEncoderConfig

from .base import VanillaPreTrainedModel
from .heads import (
    IGNORE_INDEX,
    LMHeadMixin,
    PredictionHead,
    build_logits_transform,
    build_pooler,
    pool_states,
    smoothed_loss,
)
from .parts.ngrams import NoWideLogits, WideLogits
from .parts.packed_texts import one_text_per_row
from .parts.pooling import POOLINGS
from .stack import EncoderStack


class VanillaEncoderModel(EncoderStack):
    """The bidirectional stack without a head: token ids (B, T) → states (B, T, D)."""

    config: VanillaEncoderConfig


class EncoderMaskedLM(LMHeadMixin, VanillaPreTrainedModel):
    """Base of the two models that predict masked tokens: `softmax(W norm(φ(W' h + b')) + b)`, W tied by default."""

    config: VanillaEncoderConfig
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012 - the form transformers reads
    _tp_plan = {"lm_head": "colwise_gather_output"}  # noqa: RUF012
    _fsdp_plan = {"lm_head": "keep_full_weight"}  # noqa: RUF012

    def __init__(self, config: VanillaEncoderConfig):
        super().__init__(config)
        self.model = VanillaEncoderModel(config)
        self.transform = PredictionHead(config, config.head_act or config.hidden_act, norm=True)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.lm_head_bias)
        self.logits_transform = build_logits_transform(config)

    def transform_hidden_states(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.transform(hidden_states)


class VanillaEncoderForMaskedLM(EncoderMaskedLM):
    """Masked language model (Devlin et al. 2019): token ids (B, T), some of them [MASK] → logits (B, T, V)."""

    _keys_to_ignore_on_load_unexpected = [r"^pooler\.", r"^seq_relationship\."]  # noqa: RUF012 - of ForPreTraining

    def __init__(self, config: VanillaEncoderConfig):
        super().__init__(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        """Return logits (B, T, V) and, given `labels` (B, T) with -100 for no loss, the mean cross-entropy."""
        outputs = self.model(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        loss, logits = self.loss_and_logits(outputs.last_hidden_state, labels, **kwargs)
        return MaskedLMOutput(loss, logits, outputs.hidden_states, outputs.attentions)


@dataclass
class PreTrainingOutput(ModelOutput):
    """Output of `VanillaEncoderForPreTraining`, with the names of transformers' `BertForPreTrainingOutput`.

    The loss is the sum of those for which labels were given.
    """

    loss: torch.Tensor | None = None
    prediction_logits: torch.Tensor | None = None  # (B, T, V)
    seq_relationship_logits: torch.Tensor | None = None  # (B, 2): "B follows A", "B is from another text"
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None


class VanillaEncoderForPreTraining(EncoderMaskedLM):
    """BERT's pre-training (Devlin et al. 2019): masked tokens, and whether segment B follows segment A.

    The pair's head is a text classifier of two classes without dropout, by the config's `classifier_...` fields: by
    default `W tanh(W' h_[CLS] + b') + b`. A `VanillaEncoderForSequenceClassification` loads its `pooler` (W', b').

    Shapes: token ids (B, T) → logits (B, T, V) and (B, 2).
    """

    def __init__(self, config: VanillaEncoderConfig):
        super().__init__(config)
        self.pool = POOLINGS[config.classifier_pooling]
        self.pooler = build_pooler(config)
        self.seq_relationship = nn.Linear(config.hidden_size, 2)
        self.loss_type = "ForMaskedLM"  # transformers finds none for the class's name
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        next_sentence_label: torch.Tensor | None = None,
        num_pairs_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> PreTrainingOutput:
        """Return both logits and, given labels, the sum of the mean losses of tokens and of pairs.

        `labels` (B, T) is -100 for tokens without a loss; `next_sentence_label` (B) is 0 if segment B follows segment
        A, 1 if it is from another text. Without one of them the loss is that of the other.

        `num_items_in_batch` is the number N of masked tokens in all batches whose gradients are accumulated, and
        `num_pairs_in_batch` that of pairs, M. The loss of a batch is then `Σ CE(token)/N + Σ CE(pair)/M`, and the sum
        over the batches that of the large batch. Without M the pairs of a batch with n masked tokens count `n/N` times
        their mean.
        """
        outputs = self.model(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        hidden_states = outputs.last_hidden_state
        pair_logits = self.seq_relationship(self.pooler(pool_states(self.pool, hidden_states, attention_mask)))
        loss, logits = self.loss_and_logits(hidden_states, labels, **kwargs)
        if next_sentence_label is not None:
            pairs, num_items = next_sentence_label.view(-1).to(pair_logits.device), kwargs.get("num_items_in_batch")
            if num_pairs_in_batch is not None:
                pair_loss = smoothed_loss(pair_logits, pairs, num_items_in_batch=num_pairs_in_batch)
            else:
                pair_loss = nn.functional.cross_entropy(pair_logits.float(), pairs)
                if num_items is not None and labels is not None:  # times the batch's share of all masked tokens
                    pair_loss = pair_loss * (labels.ne(IGNORE_INDEX).sum() / num_items).to(pair_loss.device)
            loss = pair_loss if loss is None else loss + pair_loss
        return PreTrainingOutput(loss, logits, pair_logits, outputs.hidden_states, outputs.attentions)


class VanillaEncoderForSequenceClassification(VanillaPreTrainedModel):
    """Text classifier: `W φ(W' pool(h) + b') + b`, token ids (B, T) → logits (B, labels).

    With `wide_max_ngram`, each n-gram of the text adds to the logits, beside the stack.
    """

    config: VanillaEncoderConfig
    accepts_loss_kwargs = False  # its losses may be means: Trainer divides them when it accumulates gradients

    def __init__(self, config: VanillaEncoderConfig):
        super().__init__(config)
        self.num_labels = cast(int, config.num_labels)
        self.model = VanillaEncoderModel(config)
        self.pool = POOLINGS[config.classifier_pooling]
        self.pooler = build_pooler(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, self.num_labels)
        self.wide = WideLogits(config) if config.wide_max_ngram else NoWideLogits()
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutput:
        """Return logits (B, labels) and, given `labels` (B), the loss of `config.problem_type`.

        With `position_ids` that restart at 0, rows have several texts, whose logits and labels (N) are in order.
        """
        outputs = self.model(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        mask, states, ids = one_text_per_row(position_ids, attention_mask, outputs.last_hidden_state, input_ids)
        logits = self.wide(self.classifier(self.dropout(self.pooler(pool_states(self.pool, states, mask)))), ids, mask)
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config, **kwargs)
        return SequenceClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class VanillaEncoderForTokenClassification(VanillaPreTrainedModel):
    """Token classifier (named entities, parts of speech): token ids (B, T) → logits (B, T, labels)."""

    config: VanillaEncoderConfig

    def __init__(self, config: VanillaEncoderConfig):
        super().__init__(config)
        self.num_labels = cast(int, config.num_labels)
        self.model = VanillaEncoderModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, self.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> TokenClassifierOutput:
        """Return logits (B, T, labels) and, given `labels` (B, T) with -100 on padding, the mean cross-entropy."""
        outputs = self.model(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, config=self.config, **kwargs)
        return TokenClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class VanillaEncoderForQuestionAnswering(VanillaPreTrainedModel):
    """Answers as spans of a text (Devlin et al. 2019): token ids (B, T) → logits (B, T) of starts, and of ends.

    The logits are the two columns of `W h + b`.
    """

    config: VanillaEncoderConfig
    accepts_loss_kwargs = False  # its loss is a mean: Trainer divides it when it accumulates gradients

    def __init__(self, config: VanillaEncoderConfig):
        super().__init__(config)
        self.model = VanillaEncoderModel(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        start_positions: torch.Tensor | None = None,
        end_positions: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> QuestionAnsweringModelOutput:
        """Return both logits and, given both positions (B), the mean of their cross-entropies.

        A position that is not in the text, such as T, has no loss.
        """
        outputs = self.model(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        start_logits, end_logits = self.qa_outputs(outputs.last_hidden_state).unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = self.loss_function(start_logits, end_logits, start_positions, end_positions, **kwargs)
        return QuestionAnsweringModelOutput(loss, start_logits, end_logits, outputs.hidden_states, outputs.attentions)


class VanillaEncoderForMultipleChoice(VanillaPreTrainedModel):
    """Choice of one of several texts (Zellers et al. 2018): token ids (B, C, T) → logits (B, C).

    Each choice is scored as by a text classifier with one output, `w φ(W' pool(h) + b') + b`.
    """

    config: VanillaEncoderConfig
    accepts_loss_kwargs = False  # its loss is a mean: Trainer divides it when it accumulates gradients

    def __init__(self, config: VanillaEncoderConfig):
        super().__init__(config)
        self.model = VanillaEncoderModel(config)
        self.pool = POOLINGS[config.classifier_pooling]
        self.pooler = build_pooler(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MultipleChoiceModelOutput:
        """Return logits (B, C) and, given `labels` (B), the index of the right choice, the mean cross-entropy."""
        inputs = input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds  # (B, C, T, ...)
        choices = next(tensor.shape[1] for tensor in (input_ids, inputs_embeds) if tensor is not None)
        texts = [None if tensor is None else tensor.flatten(0, 1) for tensor in inputs]  # (BC, T, ...)
        outputs = self.model(*texts, **kwargs)
        pooled = self.pooler(pool_states(self.pool, outputs.last_hidden_state, texts[1]))
        logits = self.classifier(self.dropout(pooled)).view(-1, choices)
        loss = None if labels is None else smoothed_loss(logits, labels.view(-1))
        return MultipleChoiceModelOutput(loss, logits, outputs.hidden_states, outputs.attentions)
