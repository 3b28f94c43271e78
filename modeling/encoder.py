"""BERT-style models: the bidirectional stack, with heads for masked tokens, pairs of sentences, texts and tokens."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.modeling_outputs import MaskedLMOutput, SequenceClassifierOutput, TokenClassifierOutput
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs, can_return_tuple

from vanillaformer.configuration import VanillaEncoderConfig

from .base import VanillaPreTrainedModel
from .heads import TokenScores, build_logit_shape
from .parts.norms import build_norm
from .parts.pooling import POOLINGS
from .stack import EncoderStack


class VanillaEncoderModel(EncoderStack):
    """The bidirectional stack without a head: token ids (B, T) → states (B, T, D)."""

    config: VanillaEncoderConfig


class HeadTransform(nn.Module):
    """What BERT puts in front of an output layer or classifier: `norm(φ(W h + b))`, (..., D) → (..., D).

    Args:
        config: The model's config.
        act: Name of the activation φ.
        norm: Whether to normalise.
    """

    def __init__(self, config: VanillaEncoderConfig, act: str, norm: bool):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=config.head_bias)
        self.act_fn = ACT2FN[act]
        self.norm = build_norm(config) if norm else nn.Identity()

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.norm(self.act_fn(self.dense(hidden_states)))


def pool_states(
    pool: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    states: torch.Tensor,
    attention_mask: torch.Tensor | None,
) -> torch.Tensor:
    """Return one vector per text, (B, T, D) → (B, D), by one of `POOLINGS`; without a mask nothing is padding."""
    mask = torch.ones(states.shape[:2], device=states.device) if attention_mask is None else attention_mask
    if mask.ndim != 2:
        raise ValueError(f"pooling needs an attention_mask of shape (batch, length), got {tuple(mask.shape)}")
    return pool(states, mask)


class VanillaEncoderForMaskedLM(TokenScores, VanillaPreTrainedModel):
    """Masked language model (Devlin et al. 2019): predicts the tokens behind [MASK]; W maybe tied."""

    config: VanillaEncoderConfig
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012 - the form transformers reads
    _tp_plan = {"lm_head": "colwise_gather_output"}  # noqa: RUF012
    _fsdp_plan = {"lm_head": "keep_full_weight"}  # noqa: RUF012
    _keys_to_ignore_on_load_unexpected = [r"^pooler\.", r"^seq_relationship\."]  # noqa: RUF012 - of ForPreTraining

    def __init__(self, config: VanillaEncoderConfig):
        super().__init__(config)
        self.model = VanillaEncoderModel(config)
        self.transform = HeadTransform(config, config.head_act or config.hidden_act, norm=True)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.lm_head_bias)
        self.shape_logits = build_logit_shape(config)
        self.post_init()

    def before_head(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.transform(hidden_states)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        """Return logits (B, T, V) and, given `labels` (B, T) with -100 where no loss is wanted, the cross-entropy."""
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        loss, logits = self.score_tokens(outputs.last_hidden_state, labels, **kwargs)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


@dataclass
class PreTrainingOutput(ModelOutput):
    """What `VanillaEncoderForPreTraining` returns, under the names of transformers' `BertForPreTrainingOutput`.

    Args:
        loss: Sum of the losses whose labels were given.
        prediction_logits: Logits of the tokens (B, T, V).
        seq_relationship_logits: Logits of "B follows A" and "B is from elsewhere" (B, 2).
        hidden_states: States before the first and behind each block, if asked for.
        attentions: Attention weights of each block, if asked for.
    """

    loss: torch.Tensor | None = None
    prediction_logits: torch.Tensor | None = None
    seq_relationship_logits: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None


class VanillaEncoderForPreTraining(TokenScores, VanillaPreTrainedModel):
    """BERT as it was pre-trained (Devlin et al. 2019): masked tokens, and whether segment B follows segment A.

    The head of the tokens is that of `VanillaEncoderForMaskedLM`. That of the pair is a text classifier's of two
    classes, in the form the config's `classifier_...` fields give it, without dropout: by default
    `W tanh(W' h_[CLS] + b') + b`. `pooler` (W', b') is where a `VanillaEncoderForSequenceClassification` goes on from.

    Shapes: token ids (B, T) → logits (B, T, V) and (B, 2).
    """

    config: VanillaEncoderConfig
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012
    _tp_plan = {"lm_head": "colwise_gather_output"}  # noqa: RUF012
    _fsdp_plan = {"lm_head": "keep_full_weight"}  # noqa: RUF012

    def __init__(self, config: VanillaEncoderConfig):
        super().__init__(config)
        self.model = VanillaEncoderModel(config)
        self.transform = HeadTransform(config, config.head_act or config.hidden_act, norm=True)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.lm_head_bias)
        self.shape_logits = build_logit_shape(config)
        self.pool = POOLINGS[config.classifier_pooling]
        self.pooler = nn.Identity()
        if config.classifier_act is not None:
            self.pooler = HeadTransform(config, config.classifier_act, config.classifier_norm)
        self.seq_relationship = nn.Linear(config.hidden_size, 2)
        self.loss_type = "ForMaskedLM"  # by the class's name transformers would find none
        self.post_init()

    def before_head(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.transform(hidden_states)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        next_sentence_label: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> PreTrainingOutput:
        """Return both logits and, given labels, the sum of the mean losses of tokens and of pairs.

        `labels` (B, T) has -100 where no loss is wanted; `next_sentence_label` (B) is 0 where segment B follows
        segment A, 1 where it is from elsewhere. Without one of them the loss is that of the other alone.

        `num_items_in_batch`, the number N of masked tokens in all batches whose gradients are accumulated, scales
        the loss of a batch with n of them to `n/N (mean over its tokens + mean over its pairs)`: the sum over the
        batches is the exact mean over the tokens, and for the pairs a mean that weighs batches by their masked
        tokens, which is the exact one where all batches have as many per pair.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        states = outputs.last_hidden_state
        pair_logits = self.seq_relationship(self.pooler(pool_states(self.pool, states, attention_mask)))
        loss, logits = self.score_tokens(states, labels, **kwargs)
        if next_sentence_label is not None:
            pair_loss = self.score_pairs(pair_logits, next_sentence_label, labels, kwargs.get("num_items_in_batch"))
            loss = pair_loss if loss is None else loss + pair_loss
        return PreTrainingOutput(
            loss=loss,
            prediction_logits=logits,
            seq_relationship_logits=pair_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def score_pairs(
        self,
        logits: torch.Tensor,
        next_sentence_label: torch.Tensor,
        labels: torch.Tensor | None,
        num_items_in_batch: torch.Tensor | int | None,
    ) -> torch.Tensor:
        """Return the mean cross-entropy of the pairs, times the batch's share of all masked tokens if it is known."""
        loss = nn.functional.cross_entropy(logits.float(), next_sentence_label.view(-1).to(logits.device))
        if num_items_in_batch is None or labels is None:
            return loss
        return loss * (labels.ne(-100).sum() / num_items_in_batch).to(loss.device)


class VanillaEncoderForSequenceClassification(VanillaPreTrainedModel):
    """Classifier of texts: `W φ(W' pool(h) + b') + b`, token ids (B, T) → logits (B, labels)."""

    config: VanillaEncoderConfig
    accepts_loss_kwargs = False  # some of its losses are means: Trainer divides them when it accumulates gradients

    def __init__(self, config: VanillaEncoderConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = VanillaEncoderModel(config)
        self.pool = POOLINGS[config.classifier_pooling]
        self.pooler = nn.Identity()
        if config.classifier_act is not None:
            self.pooler = HeadTransform(config, config.classifier_act, config.classifier_norm)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutput:
        """Return logits (B, labels) and, given `labels` (B), the loss of `config.problem_type`."""
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        pooled = pool_states(self.pool, outputs.last_hidden_state, attention_mask)
        logits = self.classifier(self.dropout(self.pooler(pooled)))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config, **kwargs)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class VanillaEncoderForTokenClassification(VanillaPreTrainedModel):
    """Classifier of tokens (named entities, parts of speech): token ids (B, T) → logits (B, T, labels)."""

    config: VanillaEncoderConfig

    def __init__(self, config: VanillaEncoderConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = VanillaEncoderModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> TokenClassifierOutput:
        """Return logits (B, T, labels) and, given `labels` (B, T) with -100 on padding, the mean cross-entropy."""
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, config=self.config, **kwargs)
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )
