"""Published (and small) image encoders by name: the fields that differ from the config's defaults, and papers."""

from typing import Any

TWELVE_LAYERS = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
# Touvron et al. 2021, Ti: the smallest ViT
VIT_TINY = {
    "hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3, "initialization": "normal",
}  # fmt: skip

VIT_MINI = {
    "image_size": 32, "patch_size": 4, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "intermediate_size": 128, "position_embedding_type": "learned", "use_cls_token": False, "image_pooling": "mean",
    "initialization": "normal", "initializer_range": 0.08,
}  # fmt: skip

IMAGE_PRESETS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    # Dosovitskiy et al. 2021, shrunk to small images: mean pooling, and larger first weights than BERT's 0.02.
    "vit-mini": (VIT_MINI, ("dosovitskiy2021image",)),
    # The same with what makes it learn in fewer passes: early convolutions, rotary positions, wider heads.
    "vitc-mini": ({
        **VIT_MINI, "num_attention_heads": 2, "patch_embedding": "early_convolutions",
        "position_embedding_type": "rotary_2d",
    }, ("xiao2021early", "heo2024rotary")),
    # Dosovitskiy et al. 2021, B/16, and its smallest relative.
    "vit-tiny": (VIT_TINY, ("dosovitskiy2021image", "touvron2021training")),
    "vit-base": ({**TWELVE_LAYERS, "dropout": 0.1, "initialization": "normal"}, ("dosovitskiy2021image",)),
    # Touvron et al. 2021: Ti with the token that follows a teacher.
    "deit-tiny": ({**VIT_TINY, "use_distillation_token": True, "drop_path_rate": 0.1}, ("touvron2021training",)),
    # Liu et al. 2021, T: stages of 96, 192, 384 and 768 dimensions.
    "swin-tiny": ({
        "patch_size": 4, "hidden_size": 96, "depths": [2, 2, 6, 2], "num_attention_heads": 3, "window_size": 7,
        "position_embedding_type": "window_relative", "patch_norm": True, "norm_eps": 1e-5, "use_cls_token": False,
        "image_pooling": "mean", "drop_path_rate": 0.2, "initialization": "normal",
    }, ("liu2021swin",)),
    # Oquab et al. 2024, S/14 at the size of its last images.
    "dinov2-small": ({
        "image_size": 518, "patch_size": 14, "hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6,
        "layer_scale_init_value": 1e-5, "image_pooling": "first_and_mean", "use_mask_token": True,
        "initialization": "normal",
    }, ("oquab2024dinov2",)),
}  # fmt: skip
