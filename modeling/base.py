"""What every model class of the package has in common."""

import fnmatch

from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init

from .initialization import initialize


class VanillaPreTrainedModel(PreTrainedModel):
    """Declares to transformers what the parts can do, and draws fresh weights."""

    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["SelfAttentionBlock", "CrossAttentionBlock"]  # noqa: RUF012 - the form transformers reads
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    def init_parallel_plans(self) -> None:
        super().init_parallel_plans()
        # The config's plans name all that one stack can have: keep what this model has.
        names = [name for name, _ in self.named_modules()]
        self._tp_plan = {key: style for key, style in self._tp_plan.items() if fnmatch.filter(names, key)}
        self._fsdp_plan = {key: style for key, style in self._fsdp_plan.items() if fnmatch.filter(names, key)}

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        # transformers passes over modules of custom code that own no tensor, such as the list of blocks, for fear of
        # code that overwrites loaded tensors; ours draws through `transformers.initialization`, which does not.
        super()._initialize_weights(module, is_custom_code=False)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)  # norms and rotary frequencies
        initialize(module, self.config)
        for name, value in getattr(module, "initial_buffers", dict)().items():
            init.copy_(getattr(module, name), value)
