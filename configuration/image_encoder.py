"""The image encoder: ViT and its relatives, classifiers of images and masked image models."""

from typing import Any

from huggingface_hub.dataclasses import strict

from .base import BlockConfig
from .fields import Derived, activation, non_negative, positive
from .options import ImagePooling, PatchEmbedding
from .rules import LARGEST

# Fields of `BlockConfig` that only language models read
TEXT_FIELDS = ("position_offset", "lm_head_bias", "logit_scale", "final_logit_softcapping")


@strict
class VanillaImageEncoderConfig(BlockConfig):
    """A stack of bidirectional self-attention blocks on the patches of an image (ViT, Dosovitskiy et al. 2021).

    Args:
        image_size: Height and width of the images in pixels, one number or a list of both.
        patch_size: Height and width of a patch, which divides those of the image.
        num_channels: Number of channels of a pixel.
        patch_embedding: From pixels to patch vectors: `convolution` or `linear`.
        patch_norm: Normalize the patch vectors (Swin), before masked ones are replaced and positions are added.
        use_cls_token: Put a trained class token in front of the patches.
        use_distillation_token: Put a second one after it, which was trained to follow a teacher (DeiT).
        num_register_tokens: Number of trained tokens without a position between those and the patches (Darcet et al.
            2024).
        use_mask_token: Give every model the trained vector that replaces masked patches, not only masked image
            models.
        image_pooling: From the states to one vector: `first` (the class token), `mean` over the patches, or
            `first_and_mean`, one after the other.
        pooler_norm: Normalize that vector (BEiT).
        pooler_act: Activation of a layer after pooling; `None` leaves that layer out.
        max_position_embeddings: Number of rows of a position table: one per patch, class and distillation token.

    The fields of `BlockConfig` describe the blocks.
    """

    model_type = "vanilla_image_encoder"
    derived_fields = BlockConfig.derived_fields | {"max_position_embeddings": lambda config: config.num_positions}

    image_size: int | list[int] | tuple[int, int] = 224
    patch_size: int = positive(default=16)
    num_channels: int = positive(default=3)
    patch_embedding: PatchEmbedding = "convolution"
    patch_norm: bool = False
    use_cls_token: bool = True
    use_distillation_token: bool = False
    num_register_tokens: int = non_negative(default=0)
    use_mask_token: bool = False
    image_pooling: ImagePooling = "first"
    pooler_norm: bool = False
    pooler_act: str | None = activation(default=None)
    hidden_act: str = activation(default="gelu")
    norm_eps: float | int = non_negative(default=1e-6)
    max_position_embeddings: Derived[int] = positive(default=None)

    def __post_init__(self, **kwargs: Any) -> None:
        self._check_image_size()  # before the number of positions is derived from it
        if isinstance(self.image_size, tuple):
            self.image_size = list(self.image_size)  # as it is read from `config.json`
        super().__post_init__(**kwargs)

    def _check_image_size(self) -> None:
        sizes = self.image_size if isinstance(self.image_size, list | tuple) else [self.image_size] * 2
        largest = LARGEST["image_size"]
        if len(sizes) != 2 or not all(type(size) is int and 1 <= size <= largest for size in sizes):
            raise ValueError(
                f"image_size must be an integer from 1 to {largest:,} or a list of two, got {self.image_size!r}"
            )
        if any(size % self.patch_size for size in sizes):
            raise ValueError(
                f"image_size={self.image_size} must be a multiple of patch_size={self.patch_size} in both directions"
            )

    @property
    def grid(self) -> tuple[int, int]:
        """Number of rows and columns of patches."""
        size = self.image_size
        height, width = size if isinstance(size, list | tuple) else (size, size)
        return height // self.patch_size, width // self.patch_size

    @property
    def num_patches(self) -> int:
        """Number of patches N."""
        return self.grid[0] * self.grid[1]

    @property
    def num_prefix_tokens(self) -> int:
        """Number of tokens before the patches: class, distillation and register tokens."""
        return self.num_placed_tokens + self.num_register_tokens

    @property
    def num_placed_tokens(self) -> int:
        """Number of tokens before the patches that have a position: class and distillation token."""
        return self.use_cls_token + self.use_distillation_token

    @property
    def num_positions(self) -> int:
        """Number of tokens that have a position."""
        return self.num_patches + self.num_placed_tokens

    @property
    def pooled_width(self) -> int:
        """Width of the pooled vector, the input of the classifier."""
        return self.hidden_size * (2 if self.image_pooling == "first_and_mean" else 1)

    def validate_block_image(self) -> None:
        """Sizes of image, patches and positions agree, and the pooled token exists."""
        self._check_image_size()
        if self.max_position_embeddings != self.num_positions:
            raise ValueError(
                f"max_position_embeddings={self.max_position_embeddings} must be the number of patches, class and "
                f"distillation tokens, {self.num_positions}, or be left out"
            )
        if "first" in self.image_pooling and not self.use_cls_token:
            raise ValueError(
                f"image_pooling={self.image_pooling!r} reads the class token: it needs use_cls_token=True"
            )
        if self.use_distillation_token and not self.use_cls_token:
            raise ValueError("use_distillation_token=True is a second token after the class token: use_cls_token=True")

    def validate_block_text_fields(self) -> None:
        """Fields of language models keep their defaults."""
        for name in TEXT_FIELDS:
            if getattr(self, name) != getattr(type(self), name):
                raise ValueError(f"{name}={getattr(self, name)!r} has no effect on images")
