"""The base class of the models: what the parts support, and how their weights are initialized."""

import copy
import fnmatch
import sys
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_outputs import BaseModelOutputWithPast

from vanillaformer.configuration import BlockConfig, VanillaConfig
from vanillaformer.configuration.base import WHOLE_HEADS
from vanillaformer.configuration.options import POSITION_CHOICES, QUERY_KEY_NORM_CHOICES

from .acceleration import acceleration
from .parts.initialization import initialize

CACHE_NAME = "cache" if "cache" in BaseModelOutputWithPast.__dataclass_fields__ else "past_key_values"
"""The name of the cache among the arguments and outputs of models, which transformers 5.24 changed.

In these models it is `past_key_values`: `VanillaPreTrainedModel.__call__` takes the other name too.
"""

ENGINES = ("vllm", "sglang", "tgi")  # engines whose attention functions mask by themselves


class VanillaPreTrainedModel(PreTrainedModel):
    """Base of the models: declares to transformers what the parts support, and initializes weights."""

    config: BlockConfig
    base_model_prefix = "model"
    lora_targets = ("q_proj", "v_proj")  # queries and values, as in LoRA's paper (Hu et al. 2021, section 7.1)
    supports_gradient_checkpointing = True
    _no_split_modules: set[str] | list[str] = [  # noqa: RUF012 - the form transformers reads
        "SelfAttentionBlock",
        "CrossAttentionBlock",
        "ParallelSelfAttentionBlock",
        "ParallelCrossAttentionBlock",
        "WindowBlock",
        "ParallelWindowBlock",
    ]
    _skip_keys_device_placement = ["past_key_values", "cache"]  # noqa: RUF012
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    def __init__(self, config: VanillaConfig, *args: Any, **kwargs: Any):
        # Fields may have been set since the config was made: fail now, not when the trained model is saved
        config.validate()  # type: ignore[attr-defined]
        super().__init__(config, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if CACHE_NAME in kwargs:  # as `generate` calls it
            kwargs["past_key_values"] = kwargs.pop(CACHE_NAME)
        return super().__call__(*args, **kwargs)

    @property
    def _supports_sdpa(self) -> bool:  # type: ignore[override]  # a class attribute there: ours depends on the config
        return self.config.attention_obstacle("sdpa") is None

    @property
    def _supports_flash_attn(self) -> bool:  # type: ignore[override]
        return self.config.attention_obstacle("flash_attention_2") is None

    def _check_and_adjust_attn_implementation(self, attn_implementation: str | None, *args, **kwargs) -> str:
        # Before transformers' own checks, whose messages do not name our field
        if (reason := self.config.attention_obstacle(attn_implementation)) is not None:
            raise ValueError(reason)
        name = super()._check_and_adjust_attn_implementation(attn_implementation, *args, **kwargs)
        # transformers would silently leave the mask out
        if name is not None and "paged|" not in name and name not in {*ALL_MASK_ATTENTION_FUNCTIONS, *ENGINES}:
            raise ValueError(
                f"attn_implementation={name!r} has no mask function: padding and later tokens would be seen. Register "
                f"one, such as AttentionMaskInterface.register({name!r}, sdpa_mask)"
            )
        return name

    @classmethod
    def enter_name(cls, auto_class: str) -> None:
        """Add the class's name to the table of an Auto class, by which Trainer and cards recognize a task."""
        config_class: Any = cls.config_class
        getattr(transformers, auto_class)._model_mapping._model_mapping[config_class.model_type] = cls.__name__

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> Any:
        # All of its paged attention functions ignore keyword arguments that they do not know
        if (reason := self.config.attention_obstacle("paged|eager")) is not None:
            raise ValueError(f"continuous batching cannot serve this model: {reason}")
        return super().init_continuous_batching(*args, **kwargs)  # type: ignore[misc]  # of the models that generate

    def resize_position_embeddings(self, new_num_position_embeddings: int) -> None:
        """Let the model read texts of up to this many tokens; training scripts call this for longer texts.

        Position tables keep the rows that both lengths have; new rows of a learned one are initialized.
        """
        if not hasattr(self.config, "max_position_embeddings"):
            raise ValueError(f"a {type(self).__name__} has no positions, it reads texts of any length")
        config = copy.deepcopy(self.config)
        config.max_position_embeddings = new_num_position_embeddings
        with torch.device("meta"):
            resized = type(self)(config)  # has the new length of each table: that of a CTC decoder is longer
        self.config.max_position_embeddings = new_num_position_embeddings
        for name, module in resized.named_modules():
            if hasattr(module, "set_length"):  # a position table, or rotary frequencies
                table: Any = self.get_submodule(name)
                table.set_length(module.max_length, self._init_weights)

    def post_init(self) -> None:
        super().post_init()
        acceleration.prepare(self)
        if (peft := sys.modules.get("peft.utils.constants")) is not None:  # only if the program has imported it
            table = peft.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
            table.setdefault(self.config.model_type, list(self.lora_targets))
        # accelerate's FSDP wraps the classes named here, and fails for one that is not in this model
        self._no_split_modules = {*self._no_split_modules} & {type(module).__name__ for module in self.modules()}

    def init_parallel_plans(self) -> None:
        super().init_parallel_plans()
        tp_plan, fsdp_plan = self._tp_plan or {}, self._fsdp_plan or {}
        if tp_plan and POSITION_CHOICES[self.config.position_embedding_type].is_biased:
            # A bias per head is not split with the heads, so attention stays whole on every device
            tp_plan = {key: style for key, style in tp_plan.items() if "self_attn" not in key}
        elif tp_plan and QUERY_KEY_NORM_CHOICES[self.config.qk_norm].spans_heads:
            kept = {key: style for key, style in tp_plan.items() if not key.endswith(("q_norm", "k_norm"))}
            tp_plan = {key: WHOLE_HEADS.get(key.rsplit(".", 1)[-1], style) for key, style in kept.items()}
        # The config's plans name every module that a stack can have: keep those of this model
        names = [name for name, _ in self.named_modules()]
        self._tp_plan = {key: style for key, style in tp_plan.items() if fnmatch.filter(names, key)}
        self._fsdp_plan = {key: style for key, style in fsdp_plan.items() if fnmatch.filter(names, key)}

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        # transformers skips modules of custom code without direct tensors, such as the list of blocks, because
        # such code may overwrite loaded tensors; ours draws by `transformers.initialization`, which does not.
        super()._initialize_weights(module, is_custom_code=False)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)  # norms and rotary frequencies
        initialize(module, self.config)
        for name, value in getattr(module, "initial_values", dict)().items():
            init.copy_(getattr(module, name), value)
