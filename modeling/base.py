"""What every model class of the package has in common."""

import fnmatch
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init

from vanillaformer.configuration import BlockConfig, tensor_parallel_plan

from .adapters import register_targets
from .parts.initialization import initialize


class VanillaPreTrainedModel(PreTrainedModel):
    """Declares to transformers what the parts can do, and draws fresh weights."""

    config: BlockConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = [  # noqa: RUF012 - the form transformers reads
        "SelfAttentionBlock",
        "CrossAttentionBlock",
        "ParallelSelfAttentionBlock",
        "ParallelCrossAttentionBlock",
    ]
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    def __init__(self, config: BlockConfig, *args: Any, **kwargs: Any):
        # Fields may have been set since the config was made: what saving would refuse is refused before training
        config.validate()  # type: ignore[attr-defined]
        super().__init__(config, *args, **kwargs)

    @property
    def _supports_sdpa(self) -> bool:
        return self.config.attention_obstacle("sdpa") is None

    @property
    def _supports_flash_attn(self) -> bool:
        return self.config.attention_obstacle("flash_attention_2") is None

    def _check_and_adjust_attn_implementation(self, attn_implementation: str | None, *args, **kwargs) -> str:
        # Before transformers' own checks, whose messages do not know the field that stands in the way
        if (reason := self.config.attention_obstacle(attn_implementation)) is not None:
            raise ValueError(reason)
        return super()._check_and_adjust_attn_implementation(attn_implementation, *args, **kwargs)

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> Any:
        # Its paged attention functions pass over what they do not know; whichever it would choose, the answer is one
        if (reason := self.config.attention_obstacle("paged|eager")) is not None:
            raise ValueError(f"continuous batching cannot serve this model: {reason}")
        return super().init_continuous_batching(*args, **kwargs)

    def post_init(self) -> None:
        super().post_init()
        register_targets(self.config)
        # accelerate's FSDP wraps what is named here, and stops at a class that this model has no module of
        self._no_split_modules &= {type(module).__name__ for module in self.modules()}  # type: ignore[operator]

    def init_parallel_plans(self) -> None:
        super().init_parallel_plans()
        # The config's plans name all that one stack can have: keep what this model has.
        names = [name for name, _ in self.named_modules()]
        plan = tensor_parallel_plan(self.config, self._tp_plan)
        self._tp_plan = {key: style for key, style in plan.items() if fnmatch.filter(names, key)}
        self._fsdp_plan = {key: style for key, style in self._fsdp_plan.items() if fnmatch.filter(names, key)}

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        # transformers passes over modules of custom code that own no tensor, such as the list of blocks, for fear of
        # code that overwrites loaded tensors; ours draws through `transformers.initialization`, which does not.
        super()._initialize_weights(module, is_custom_code=False)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)  # norms and rotary frequencies
        initialize(module, self.config)
        for name, value in getattr(module, "initial_values", dict)().items():
            init.copy_(getattr(module, name), value)
