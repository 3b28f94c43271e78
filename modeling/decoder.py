"""GPT-style models: the causal stack, with a language-model head or a classifier."""

from typing import cast

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.modeling_layers import GenericForSequenceClassification
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.modeling_utils import slice_logits_to_keep
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple

from vanillaformer.configuration import VanillaDecoderConfig

from .base import CACHE_NAME, VanillaPreTrainedModel
from .generation import VanillaGenerationMixin
from .heads import LMHeadMixin, build_logits_transform
from .stack import DecoderStack


class VanillaDecoderModel(DecoderStack):
    """The causal stack without a head: token ids (B, T) → states (B, T, D)."""

    config: VanillaDecoderConfig


class VanillaDecoderForCausalLM(LMHeadMixin, VanillaPreTrainedModel, VanillaGenerationMixin):
    """Language model (Radford et al. 2018): `p(x_t | x_<t) = softmax(W h_(t-1))`, W tied by default."""

    config: VanillaDecoderConfig
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012 - the form transformers reads
    _tp_plan = {"lm_head": "colwise_gather_output"}  # noqa: RUF012
    _pp_plan: dict = {"lm_head": (["hidden_states"], ["logits"])}  # noqa: RUF012
    _fsdp_plan = {"lm_head": "keep_full_weight"}  # noqa: RUF012
    predicts_next_token = True

    def __init__(self, config: VanillaDecoderConfig):
        super().__init__(config)
        self.model = VanillaDecoderModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.lm_head_bias)
        self.logits_transform = build_logits_transform(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs: Unpack[TransformersKwargs],
    ) -> CausalLMOutputWithPast:
        """Return next-token logits (B, T, V) and, given `labels` (B, T), the mean cross-entropy of the next tokens.

        `labels` are the input ids, or -100 for no loss; they are shifted by one here. `logits_to_keep` selects the
        positions of the logits: a number of last ones, 0 for all, or a tensor of indices.
        """
        if use_cache is None and labels is not None:
            use_cache = False
        inputs = input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, token_type_ids
        outputs = self.model(*inputs, use_cache=use_cache, **kwargs)
        hidden_states = slice_logits_to_keep(outputs.last_hidden_state, logits_to_keep)
        loss, logits = self.loss_and_logits(hidden_states, labels, **kwargs)
        cache = getattr(outputs, CACHE_NAME)
        return CausalLMOutputWithPast(loss, logits, cache, outputs.hidden_states, outputs.attentions)


class VanillaDecoderForSequenceClassification(GenericForSequenceClassification, VanillaPreTrainedModel):
    """Classifier on the last token that is not padding (Radford et al. 2018): (B, T) → logits (B, labels)."""

    config: VanillaDecoderConfig
    accepts_loss_kwargs = False  # its loss is a mean: Trainer divides it when it accumulates gradients

    def __init__(self, config: VanillaDecoderConfig):
        # Not `super()`: the mixin makes the inner model by `AutoModel`, with which the copy of this code in a saved
        # model's folder is not registered
        VanillaPreTrainedModel.__init__(self, config)
        self.num_labels = cast(int, config.num_labels)
        self.model = VanillaDecoderModel(config)
        self.score = nn.Linear(config.hidden_size, self.num_labels, bias=False)
        self.post_init()
