"""BERT-style models: the bidirectional stack, with heads for masked tokens, texts and tokens."""

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.modeling_outputs import MaskedLMOutput, SequenceClassifierOutput, TokenClassifierOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple

from vanillaformer.configuration import VanillaEncoderConfig

from .base import VanillaPreTrainedModel
from .heads import TokenScores, build_logit_shape
from .norms import build_norm
from .pooling import POOLINGS
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


class VanillaEncoderForMaskedLM(TokenScores, VanillaPreTrainedModel):
    """Masked language model (Devlin et al. 2019): predicts the tokens behind [MASK]; W maybe tied."""

    config: VanillaEncoderConfig
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012 - the form transformers reads
    _tp_plan = {"lm_head": "colwise_gather_output"}  # noqa: RUF012
    _fsdp_plan = {"lm_head": "keep_full_weight"}  # noqa: RUF012

    def __init__(self, config: VanillaEncoderConfig):
        super().__init__(config)
        self.model = VanillaEncoderModel(config)
        self.transform = HeadTransform(config, config.hidden_act, norm=True)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.lm_head_bias)
        self.shape_logits = build_logit_shape(config)
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
        loss, logits = self.score_tokens(self.transform(outputs.last_hidden_state), labels, **kwargs)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class VanillaEncoderForSequenceClassification(VanillaPreTrainedModel):
    """Classifier of texts: `W φ(W' pool(h) + b') + b`, token ids (B, T) → logits (B, labels)."""

    config: VanillaEncoderConfig
    accepts_loss_kwargs = False  # some of its losses are means: Trainer divides them when it accumulates gradients

    def __init__(self, config: VanillaEncoderConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = VanillaEncoderModel(config)
        self.pool = POOLINGS[config.classifier_pooling]
        self.transform = nn.Identity()
        if config.classifier_act is not None:
            self.transform = HeadTransform(config, config.classifier_act, config.classifier_norm)
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
        states = outputs.last_hidden_state
        mask = torch.ones(states.shape[:2], device=states.device) if attention_mask is None else attention_mask
        if mask.ndim != 2:
            raise ValueError(f"pooling needs an attention_mask of shape (batch, length), got {tuple(mask.shape)}")
        logits = self.classifier(self.dropout(self.transform(self.pool(states, mask))))
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
