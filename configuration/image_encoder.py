"""The image encoder: ViT and its relatives, for image classification and masked image modeling."""

from typing import Any, NamedTuple, cast

from huggingface_hub.dataclasses import strict

from .base import IMAGE_FSDP_PLAN, BlockConfig, ConfigView
from .fields import Derived, above_zero, activation, non_negative, positive
from .options import POSITION_CHOICES, ImagePooling, ImagePosition, PatchEmbedding
from .rules import LARGEST

# Fields of `BlockConfig` that only text models read
TEXT_FIELDS = ("position_offset", "value_residual", "lm_head_bias", "logit_scale", "final_logit_softcapping")


def image_sides(size: int | list[int] | tuple[int, ...]) -> list[int]:
    """Return height and width, given both or one number."""
    return list(size) if isinstance(size, list | tuple) else [size, size]


class Stage(NamedTuple):
    """Layers of one width on one grid of patches."""

    config: BlockConfig  # config of its parts
    depth: int  # number of layers
    grid: tuple[int, int]  # rows and columns of patches
    window: tuple[int, int]  # rows and columns of a window, at most those of the grid; the grid itself without windows


@strict
class VanillaImageEncoderConfig(BlockConfig):
    """A stack of bidirectional self-attention blocks on the patches of an image (ViT, Dosovitskiy et al. 2021).

    Args:
        image_size: Height and width of the images in pixels, one number or a list of both.
        patch_size: Height and width of a patch, which divides those of the image.
        num_channels: Number of channels of a pixel.
        patch_embedding: How pixels become patch vectors: `convolution`, `linear` or `early_convolutions`.
        patch_norm: Normalize the patch vectors (Swin), before masked ones are replaced and positions are added.
        use_cls_token: Put a trained class token in front of the patches.
        use_distillation_token: Put a second token after it, which was trained to follow a teacher (DeiT).
        num_register_tokens: Number of trained tokens without positions, between those and the patches (Darcet et al.
            2024); with them positions are interpolated with antialiasing, as published.
        use_mask_token: Give every model the trained vector that replaces masked patches, not only masked image
            models.
        image_pooling: How the states become one vector: `first` (the class token), `mean` over the patches, or
            `first_and_mean`, concatenated.
        pooler_norm: Normalize that vector (BEiT).
        pooler_act: Activation of a layer after pooling; `None` omits that layer.
        max_position_embeddings: Number of rows of a position table: one per patch, class and distillation token.
        rope_2d_theta: Base frequency of `rotary_2d` positions.
        depths: Number of layers of each stage (Swin, Liu et al. 2021): between two stages every 2 by 2 patches are
            merged into one, and width, inner width and number of heads double. Default: one stage.
        stage_heads: Number of heads of each stage, if it does not double.
        window_size: Rows and columns of the windows in which patches attend to each other (Swin); in every second
            layer of a stage they are shifted by half a window. Default: all patches attend to each other.

    The fields of `BlockConfig` describe the blocks.
    """

    model_type = "vanilla_image_encoder"
    base_model_fsdp_plan = IMAGE_FSDP_PLAN
    derived_fields = BlockConfig.derived_fields | {
        "logit_scale": lambda config: None,
        "num_hidden_layers": lambda config: sum(config.depths or [BlockConfig.num_hidden_layers]),
        "max_position_embeddings": lambda config: config.num_positions,
    }

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
    position_embedding_type: ImagePosition = "learned"  # type: ignore[assignment]  # more than a text has
    max_position_embeddings: Derived[int] = positive(default=None)
    rope_2d_theta: float | int = above_zero(default=100.0)
    num_hidden_layers: Derived[int] = positive(default=None)
    depths: list[int] | tuple[int, ...] | None = None
    stage_heads: list[int] | tuple[int, ...] | None = None
    window_size: int | None = positive(default=None)  # type: ignore[assignment]  # texts have none

    def __post_init__(self, **kwargs: Any) -> None:
        self._check_image_size()  # before sizes are derived from them
        self._check_depths()
        for name in ("image_size", "depths", "stage_heads"):
            if isinstance(getattr(self, name), tuple):
                setattr(self, name, list(getattr(self, name)))  # as read from `config.json`
        super().__post_init__(**kwargs)

    def _check_image_size(self) -> None:
        sizes = image_sides(self.image_size)
        largest = LARGEST["image_size"]
        if len(sizes) != 2 or not all(type(size) is int and 1 <= size <= largest for size in sizes):
            raise ValueError(
                f"image_size must be an integer from 1 to {largest:,} or a list of two, got {self.image_size!r}"
            )
        if any(size % self.patch_size for size in sizes):
            raise ValueError(
                f"image_size={self.image_size} must be a multiple of patch_size={self.patch_size} in both directions"
            )

    def _check_depths(self) -> None:
        if self.depths is not None and not (self.depths and all(type(n) is int and n > 0 for n in self.depths)):
            raise ValueError(f"depths must be a list of integers of at least 1, got {self.depths!r}")
        if self.depths is not None and len(self.depths) > 16:
            raise ValueError(f"depths must have at most 16 stages, got {len(self.depths)}")
        if self.stage_heads is not None and len(self.stage_heads) != self.num_stages:
            raise ValueError(f"stage_heads={self.stage_heads} must have an entry for each of depths={self.depths}")

    @property
    def stages(self) -> list[Stage]:
        """The stages, by default a single one."""
        stages, grid = [], self.grid
        for number, depth in enumerate(self.depths or [self.num_hidden_layers]):
            heads = self.stage_heads[number] if self.stage_heads else self.num_attention_heads * 2**number
            fields = {
                "hidden_size": self.hidden_size * 2**number,
                "intermediate_size": self.intermediate_size * 2**number,
                "num_attention_heads": heads,
                "num_key_value_heads": self.num_key_value_heads * heads // self.num_attention_heads,
                "head_dim": self.head_dim * self.num_attention_heads * 2**number // heads,
            }
            size = self.window_size or max(grid)
            window = (min(size, grid[0]), min(size, grid[1]))
            stages.append(Stage(cast(BlockConfig, ConfigView(self, **fields)), depth, grid, window))
            grid = ((grid[0] + 1) // 2, (grid[1] + 1) // 2)
        return stages

    @property
    def num_stages(self) -> int:
        """Number of stages."""
        return len(self.depths) if self.depths else 1

    @property
    def output_stride(self) -> int:
        """Height and width in pixels of the area that one of the last states represents."""
        return self.patch_size * 2 ** (self.num_stages - 1)

    @property
    def output_width(self) -> int:
        """Width of the last states."""
        return self.hidden_size * 2 ** (self.num_stages - 1)

    @property
    def grid(self) -> tuple[int, int]:
        """Number of rows and columns of patches."""
        height, width = image_sides(self.image_size)
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
        return self.output_width * (2 if self.image_pooling == "first_and_mean" else 1)

    def validate_block_image(self) -> None:
        """Sizes of image, patches and positions agree, and the pooled token exists."""
        self._check_image_size()
        if self.max_position_embeddings != self.num_positions:
            raise ValueError(
                f"max_position_embeddings={self.max_position_embeddings} must be the number of patches, class and "
                f"distillation tokens, {self.num_positions}, or be left out"
            )
        if self.patch_embedding == "early_convolutions" and self.patch_size.bit_count() != 1:
            raise ValueError(
                f"patch_embedding='early_convolutions' halves an image repeatedly: patch_size={self.patch_size} "
                "must be a power of 2"
            )
        if self.use_mask_token:
            self.check_masking()
        if "first" in self.image_pooling and not self.use_cls_token:
            raise ValueError(
                f"image_pooling={self.image_pooling!r} reads the class token: it needs use_cls_token=True"
            )
        if self.use_distillation_token and not self.use_cls_token:
            raise ValueError("use_distillation_token=True is a second token after the class token: use_cls_token=True")

    def check_masking(self) -> None:
        """Raise ValueError if neighbors would see a masked patch."""
        if self.patch_embedding == "early_convolutions":
            raise ValueError(
                "patch_embedding='early_convolutions' mixes neighboring patches, so that masked ones would be seen: "
                "masked image models need convolution or linear"
            )

    def validate_block_stages(self) -> None:
        """Stages have layers, heads and positions that fit their widths."""
        self._check_depths()
        if self.depths is not None and self.num_hidden_layers != sum(self.depths):
            raise ValueError(
                f"num_hidden_layers={self.num_hidden_layers} must be the sum of depths={self.depths}, or be left out"
            )
        for number, heads in enumerate(self.stage_heads or []):
            width = self.head_dim * self.num_attention_heads * 2**number
            is_count = type(heads) is int and heads >= 1
            if not is_count or width % heads or heads * self.num_key_value_heads % self.num_attention_heads:
                raise ValueError(
                    f"stage_heads={self.stage_heads} must be integers that divide the widths of their stages and keep "
                    f"the number of heads per key/value head: {heads!r} does not fit a width of {width}"
                )
        if not POSITION_CHOICES[self.position_embedding_type].has_stages and self.num_stages > 1:
            allowed = [name for name, choice in POSITION_CHOICES.items() if choice.has_stages]
            raise ValueError(
                f"depths={self.depths} needs position_embedding_type to be one of {', '.join(allowed)}, "
                f"got {self.position_embedding_type!r}"
            )

    def validate_block_windows(self) -> None:
        """Models with windows or several stages have no tokens but patches, and positions that fit them."""
        name = "window_size" if self.window_size is not None else "depths" if self.num_stages > 1 else None
        if name is not None and self.num_prefix_tokens:
            raise ValueError(
                f"{name}={getattr(self, name)} has no position for tokens other than patches: use_cls_token must be "
                f"False and num_register_tokens 0"
            )
        if name is not None and self.sliding_window is not None:
            raise ValueError(
                f"{name}={getattr(self, name)} and sliding_window={self.sliding_window} exclude each other"
            )
        if (self.position_embedding_type == "window_relative") > (self.window_size is not None):
            raise ValueError("position_embedding_type='window_relative' needs a window_size")
        if self.position_embedding_type == "grid_relative" and self.window_size is not None:
            raise ValueError(
                "position_embedding_type='grid_relative' is the bias of a whole image: with window_size="
                f"{self.window_size} it is 'window_relative'"
            )

    def validate_block_grid_positions(self) -> None:
        """Sines and rotations come in pairs for rows and for columns, and heads of all stages rotate alike."""
        for scheme, name in (("sinusoidal_2d", "hidden_size"), ("rotary_2d", "head_dim")):
            if self.position_embedding_type == scheme and getattr(self, name) % 4:
                raise ValueError(
                    f"position_embedding_type={scheme!r} needs {name} to be a multiple of 4, got {getattr(self, name)}"
                )
        if "rotary" in self.position_embedding_type and self.stage_heads is not None:
            raise ValueError(
                f"position_embedding_type={self.position_embedding_type!r} needs heads of one width: "
                f"stage_heads={self.stage_heads} must be left out"
            )

    def attention_obstacle(self, implementation: str | None) -> str | None:
        """Return why an attention implementation cannot compute what the config describes, or `None`."""
        if self.window_size is not None and isinstance(implementation, str) and "flash" in implementation:
            return (
                f"attn_implementation={implementation!r} has no masks: window_size={self.window_size} needs 'eager', "
                "'sdpa' or 'flex_attention'"
            )
        return super().attention_obstacle(implementation)

    def validate_block_text_fields(self) -> None:
        """Fields of text models keep their defaults."""
        for name in TEXT_FIELDS:
            if getattr(self, name) != getattr(type(self), name):
                raise ValueError(f"{name}={getattr(self, name)!r} has no effect on images")
