"""Image models: the bidirectional stack on patches, with heads for classes and for masked patches."""

from typing import Any, cast

import torch
from torch import nn
from transformers.masking_utils import packed_sequence_mask_function
from transformers.modeling_outputs import BaseModelOutputWithPooling, ImageClassifierOutput, MaskedImageModelingOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from vanillaformer.configuration import BlockConfig, Stage, VanillaImageEncoderConfig
from vanillaformer.configuration.options import POSITION_CHOICES

from .base import VanillaPreTrainedModel
from .block import SelfAttentionBlock
from .parts.attention import Attention
from .parts.feed_forward import build_activation
from .parts.norms import build_norm
from .parts.packed_texts import bidirectional_mask
from .parts.patches import ImageEmbeddings
from .parts.pooling import IMAGE_POOLINGS
from .parts.position_schemes import Grid
from .parts.windows import PatchMerging, Sides, Windows, neighbors, stage_windows
from .stack import BIAS_PER_ROW, BIDIRECTIONAL_MASKS, Stack


class ImagePreTrainedModel(VanillaPreTrainedModel):
    """Base of the image models: declares their input to transformers."""

    config: VanillaImageEncoderConfig
    main_input_name = "pixel_values"
    input_modalities = ("image",)  # type: ignore[assignment]  # as transformers' own image models have it
    accepts_loss_kwargs = False  # losses are means: Trainer divides them when it accumulates gradients
    _input_embed_layer = "patch_embeddings"
    _keys_to_ignore_on_load_unexpected = [r"embeddings\.mask_token\."]  # noqa: RUF012 - of masked image models


class ImagePooler(nn.Module):
    """From the states to one vector: `φ(W norm(pool(h)) + b)`, norm and layer optional, (B, T, D) → (B, D or 2D)."""

    def __init__(self, config: VanillaImageEncoderConfig):
        super().__init__()
        width = config.pooled_width
        self.num_prefix_tokens = config.num_prefix_tokens
        self.pool = IMAGE_POOLINGS[config.image_pooling]
        self.norm = build_norm(config, width) if config.pooler_norm else nn.Identity()
        self.dense = nn.Linear(width, width) if config.pooler_act else nn.Identity()
        self.act_fn = build_activation(config.pooler_act) if config.pooler_act else nn.Identity()

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        pooled = self.pool(hidden_states, self.num_prefix_tokens, attention_mask)
        return self.act_fn(self.dense(self.norm(pooled)))


class VanillaImageEncoderModel(ImagePreTrainedModel, Stack):
    """The bidirectional stack on patches without a head: pixels (B, C, height, width) → states (B, T, D).

    The T tokens are class, distillation and register tokens, if the config has them, and then the patches, row by row.
    `hidden_states` are the first block's input and the blocks' outputs, before patches are merged between stages; as
    in transformers' own image models, the last one is not normalized. `attentions` are those of each block, with
    windows (B · windows, H, S, S).

    `add_pooling_layer` adds a `pooler_output`; `use_mask_token`, here or in the config, lets masked patches be
    replaced.
    """

    embeddings: ImageEmbeddings
    mask_functions = BIDIRECTIONAL_MASKS
    _can_record_outputs = {"hidden_states": SelfAttentionBlock, "attentions": Attention}  # noqa: RUF012

    def __init__(
        self, config: VanillaImageEncoderConfig, add_pooling_layer: bool = True, use_mask_token: bool = False
    ):
        self.use_mask_token = use_mask_token or config.use_mask_token
        super().__init__(config)
        self.merges = nn.ModuleList(PatchMerging(stage.config) for stage in config.stages[:-1])
        self.pooler = ImagePooler(config) if add_pooling_layer else None
        self.post_init()

    def block_configs(self, config: BlockConfig) -> list[BlockConfig]:
        self.stages = cast(VanillaImageEncoderConfig, config).stages
        return [stage.config for stage in self.stages for _ in range(stage.depth)]

    def build_stem(self, config: BlockConfig) -> None:
        self.embeddings = ImageEmbeddings(cast(VanillaImageEncoderConfig, config), self.use_mask_token)

    @merge_with_config_defaults
    @capture_outputs(tie_last_hidden_states=False)
    def forward(
        self,
        pixel_values: torch.Tensor,
        bool_masked_pos: torch.Tensor | None = None,
        interpolate_pos_encoding: bool | None = None,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPooling:
        """Return the states (B, T, D) and the pooled vector (B, D) of images (B, C, height, width).

        Patches where `bool_masked_pos` (B, N) is true are replaced by the mask token; `interpolate_pos_encoding`
        allows images of other sizes; tokens where `attention_mask` (B, T) is 0 are not attended to.
        """
        hidden_states, grid = self.embeddings(pixel_values, bool_masked_pos, interpolate_pos_encoding)
        hidden_states, attention_mask = self.run_stages(hidden_states, grid, attention_mask, **kwargs)
        hidden_states = self.norm(hidden_states)
        pooled = None if self.pooler is None else self.pooler(hidden_states, attention_mask)
        return BaseModelOutputWithPooling(last_hidden_state=hidden_states, pooler_output=pooled)

    def run_stages(
        self, x: torch.Tensor, grid: Sides, attention_mask: torch.Tensor | None, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the states after all blocks, and the mask (B, T) of the merged patches."""
        first, layers = 0, list(self.layer_drop(self.layers))
        for stage, merge in zip(self.stages, (None, *self.merges)):
            if merge is not None:
                if attention_mask is not None:
                    attention_mask = neighbors(attention_mask.unsqueeze(-1), grid).amax(-1)
                x, grid = merge(x, grid), ((grid[0] + 1) // 2, (grid[1] + 1) // 2)
            last = first + stage.depth
            biases, inputs = self.layer_inputs(x, grid, stage, range(first, last), attention_mask)
            for layer, bias, others in zip(layers[first:last], biases, inputs):
                x = layer(x, bias, **others, **kwargs)  # the bias is positional, as in `Stack.run_layers`
            first = last
        return x, attention_mask

    def layer_inputs(
        self, x: torch.Tensor, grid: Sides, stage: Stage, layers: range, attention_mask: torch.Tensor | None
    ) -> tuple[list[torch.Tensor | None], list[dict[str, Any]]]:
        """Return the position bias of each layer of a stage, and its other inputs besides the states."""
        scheme, types = self.embeddings.positions, [self.layer_types[idx] for idx in layers]
        if self.config.window_size is None:
            area, rows, masks = grid, x.shape[0], self.masks(x, attention_mask)
            inputs = [{"attention_mask": masks[layer_type]} for layer_type in types]
        else:
            area, pair = stage.window, stage_windows(grid, stage.window)
            rows = x.shape[0] * pair[0].count
            both = [
                {"windows": windows, "attention_mask": self.window_mask(windows, x, attention_mask)}
                for windows in pair
            ]
            inputs = [both[number % 2] for number in range(stage.depth)]
        positions: Any = Grid(*area, self.config.num_prefix_tokens)
        if not scheme.on_grid:
            positions = torch.arange(positions.prefix + area[0] * area[1], device=x.device)
        rotations = scheme.position_embeddings(x, positions if scheme.on_grid else positions.unsqueeze(0))
        inputs = [{"position_embeddings": rotations.get(kind), **others} for kind, others in zip(types, inputs)]
        return self.layer_biases(x, positions, layers, rows), inputs

    def layer_biases(self, x: torch.Tensor, positions: Any, layers: range, rows: int) -> list[torch.Tensor | None]:
        """Return the term of the attention scores of each layer (1 or rows, H, T, T), once for equal tables."""
        scheme = self.embeddings.positions
        if not POSITION_CHOICES[self.config.position_embedding_type].is_biased:
            return [None] * len(layers)
        rows = rows if self.config._attn_implementation in BIAS_PER_ROW else 1
        tables = [scheme.table_index(idx) for idx in layers]
        biases = {table: scheme.score_bias(x, positions, positions, table) for table in dict.fromkeys(tables)}
        return [biases[table].expand(rows, -1, -1, -1) for table in tables]

    def window_mask(self, windows: Windows, x: torch.Tensor, attention_mask: torch.Tensor | None) -> Any:
        """Return the mask of the patches of each window, in the form of the attention function."""
        regions = windows.regions(x, attention_mask)
        if regions is None:
            return None
        states = x.new_empty(*regions.shape, 1)
        return bidirectional_mask(self.config, states, None, texts=packed_sequence_mask_function(regions))


class VanillaImageEncoderForImageClassification(ImagePreTrainedModel):
    """Image classifier: `W pool(h) + b`, pixels (B, C, height, width) → logits (B, labels)."""

    def __init__(self, config: VanillaImageEncoderConfig):
        super().__init__(config)
        self.num_labels = cast(int, config.num_labels)
        self.model = VanillaImageEncoderModel(config)
        self.classifier = nn.Linear(config.pooled_width, self.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        pixel_values: torch.Tensor,
        labels: torch.Tensor | None = None,
        interpolate_pos_encoding: bool | None = None,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> ImageClassifierOutput:
        """Return logits (B, labels) and, given `labels` (B), the loss of `config.problem_type`."""
        outputs = self.model(
            pixel_values, interpolate_pos_encoding=interpolate_pos_encoding, attention_mask=attention_mask, **kwargs
        )
        logits = self.classifier(outputs.pooler_output)
        loss = None if labels is None else self.loss_function(labels, logits, self.config, **kwargs)
        return ImageClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class VanillaImageEncoderForMaskedImageModeling(ImagePreTrainedModel):
    """Masked image model (SimMIM, Xie et al. 2022): a linear map from each patch's state to its pixels.

    Shapes: pixels (B, C, height, width), masked patches (B, N) → reconstructed pixels (B, C, height, width).
    """

    def __init__(self, config: VanillaImageEncoderConfig):
        super().__init__(config)
        self.model = VanillaImageEncoderModel(config, add_pooling_layer=False, use_mask_token=True)
        self.decoder = nn.Linear(config.output_width, config.num_channels * config.output_stride**2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        pixel_values: torch.Tensor,
        bool_masked_pos: torch.Tensor | None = None,
        interpolate_pos_encoding: bool | None = None,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedImageModelingOutput:
        """Return the reconstructed pixels and, given `bool_masked_pos` (B, N), the mean error of masked pixels."""
        outputs = self.model(pixel_values, bool_masked_pos, interpolate_pos_encoding, attention_mask, **kwargs)
        (height, width), stride, patch = pixel_values.shape[-2:], self.config.output_stride, self.config.patch_size
        states = outputs.last_hidden_state[:, self.config.num_prefix_tokens :]
        pixels = self.decoder(states).transpose(1, 2)  # (B, C · stride · stride, N)
        pixels = pixels.unflatten(2, (-(-height // stride), -(-width // stride)))
        reconstruction = nn.functional.pixel_shuffle(pixels, stride)[..., :height, :width]
        loss = None
        if bool_masked_pos is not None:  # the mean absolute error of the pixels of masked patches
            mask = bool_masked_pos.view(-1, height // patch, width // patch)
            mask = mask.repeat_interleave(patch, 1).repeat_interleave(patch, 2).unsqueeze(1)  # (B, 1, height, width)
            error = nn.functional.l1_loss(pixel_values, reconstruction, reduction="none")
            loss = (error * mask).sum() / (mask.sum() + 1e-5) / self.config.num_channels
        return MaskedImageModelingOutput(loss, reconstruction, outputs.hidden_states, outputs.attentions)
