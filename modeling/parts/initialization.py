"""Initialization schemes; `INITIALIZATIONS` is the list of choices, `initialize` has the table of formulas."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import initialization as init

from vanillaformer.configuration import BlockConfig

LAST_MAPS = ("o_proj.weight", "down_proj.weight")  # output projections of sublayers
# The maps between input and output of a sublayer, without queries and keys: what schemes by depth scale
VALUE_MAPS = ("v_proj.weight", "o_proj.weight", "up_proj.weight", "down_proj.weight")
# The maps from a model's width to its outputs, apart from `lm_head`, whose logits are scaled
HEADS = ("classifier", "score", "qa_outputs", "seq_relationship", "length_head", "decoder", "gate")


def blocks_of(module: nn.Module) -> list[Any]:
    """Return the blocks in a stack's list of blocks, nothing for another module.

    The list is initialized after the parts of its blocks, and may draw their weights again.
    """
    if isinstance(module, nn.ModuleList) and len(module) > 0 and hasattr(module[0], "sublayers"):
        return list(module)
    return []


def stream_width(table: nn.Embedding) -> int:
    """Return the width D of the stack of a table, which may differ between the two stacks of a model."""
    return getattr(table, "stream_width", table.embedding_dim)  # T5's bias table has a column per head


def normal(module: nn.Module, config: BlockConfig) -> None:
    """Linear maps and embeddings from N(0, range²)."""
    if isinstance(module, nn.Linear | nn.Conv2d | nn.Embedding):
        init.normal_(module.weight, mean=0.0, std=config.initializer_range)


def gpt2(module: nn.Module, config: BlockConfig) -> None:
    """As `normal`, but the last map of each sublayer from N(0, range² / N), N being the sublayers in the stack."""
    normal(module, config)
    if blocks := blocks_of(module):
        std = config.initializer_range / (blocks[0].sublayers * len(blocks)) ** 0.5
        for name, parameter in module.named_parameters():
            if name.endswith(LAST_MAPS):
                init.normal_(parameter, mean=0.0, std=std)


def xavier(module: nn.Module, config: BlockConfig) -> None:
    """Linear maps uniform in ±√(6 / (fan in + fan out)), embeddings from N(0, 1/D)."""
    if isinstance(module, nn.Linear):
        init.xavier_uniform_(module.weight)
    elif isinstance(module, nn.Conv2d):  # a linear map of patches (MAE, He et al. 2022), which do not overlap
        bound = (6 / (module.weight[0].numel() + module.out_channels)) ** 0.5
        init.uniform_(module.weight, -bound, bound)
    elif isinstance(module, nn.Embedding):
        init.normal_(module.weight, mean=0.0, std=stream_width(module) ** -0.5)


def t5(module: Any, config: BlockConfig) -> None:
    """Linear maps from N(0, 1/fan in), queries divided by √K, embeddings and output layer from N(0, 1)."""
    if isinstance(module, nn.Linear | nn.Conv2d):
        init.normal_(module.weight, mean=0.0, std=module.weight[0].numel() ** -0.5)
    elif isinstance(module, nn.Embedding):
        init.normal_(module.weight, mean=0.0, std=1.0)
    if hasattr(module, "q_proj"):  # an attention module; a projection does not know which one it is
        init.normal_(module.q_proj.weight, mean=0.0, std=(module.q_proj.in_features * module.head_dim) ** -0.5)
    if hasattr(module, "relative_attention_bias"):
        for table in module.relative_attention_bias:
            init.normal_(table.weight, mean=0.0, std=stream_width(table) ** -0.5)
    if hasattr(module, "lm_head"):
        init.normal_(module.lm_head.weight, mean=0.0, std=1.0)


def deepnorm(module: nn.Module, config: BlockConfig) -> None:
    """As `xavier`, but with gain β by depth on values, outputs and feed-forward layers."""
    xavier(module, config)
    if blocks := blocks_of(module):
        _, gain = config.deepnorm_scales(cross_attention=blocks[0].sublayers == 3)
        for name, parameter in module.named_parameters():
            if name.endswith(VALUE_MAPS):
                init.xavier_uniform_(parameter, gain=gain)


def t_fixup(module: nn.Module, config: BlockConfig) -> None:
    """As `xavier`, but values, outputs, feed-forward layers and embeddings by 0.67 N^-¼, with a decoder (9M)^-¼."""
    xavier(module, config)
    decoder_scale = (9 * config.num_hidden_layers) ** -0.25
    if isinstance(module, nn.Embedding):
        scale = decoder_scale if config.is_encoder_decoder else 0.67 * config.num_hidden_layers**-0.25
        init.normal_(module.weight, mean=0.0, std=scale * stream_width(module) ** -0.5)
    if blocks := blocks_of(module):
        gain = decoder_scale if blocks[0].sublayers == 3 else 0.67 * len(blocks) ** -0.25
        for name, parameter in module.named_parameters():
            if name.endswith(VALUE_MAPS):
                init.xavier_uniform_(parameter, gain=gain)


def ds_init(module: nn.Module, config: BlockConfig) -> None:
    """As `xavier`, but all maps of block l, counted from 1, by 1/√l."""
    xavier(module, config)
    for number, block in enumerate(blocks_of(module), start=1):
        for part in block.modules():
            if isinstance(part, nn.Linear):
                init.xavier_uniform_(part.weight, gain=number**-0.5)


def mimetic(module: nn.Module, config: BlockConfig) -> None:
    """As `normal`, but self-attention like that of trained models: W_Qᵀ W_K ≈ 0.7 (Z + I), W_O W_V ≈ 0.4 (Z - I).

    The first product is that of each head; Z is noise of variance 1/D.
    """
    normal(module, config)
    for block in blocks_of(module):
        draw_mimetic(block.self_attn)


def draw_mimetic(attention: Any) -> None:
    """Draw the maps of one self-attention so that their products are close to ± the identity, by truncated SVD."""
    width, head_dim, groups = attention.q_proj.in_features, attention.head_dim, attention.num_key_value_groups
    key_heads = attention.k_proj.out_features // head_dim
    if attention.q_proj.weight.is_meta:
        return
    queries, keys = [], []
    for _ in range(key_heads):  # query heads that share keys also share the product
        left, right = low_rank_factors(0.7, 0.7, width, head_dim)
        queries += [left.T] * groups
        keys.append(right)
    init.copy_(attention.q_proj.weight, torch.cat(queries))
    init.copy_(attention.k_proj.weight, torch.cat(keys))
    left, right = low_rank_factors(0.4, -0.4, width, key_heads * head_dim)  # (D, G·K) and (G·K, D)
    shared = left.unflatten(1, (key_heads, 1, head_dim)).expand(-1, -1, groups, -1).flatten(1) / groups
    init.copy_(attention.o_proj.weight, shared)
    init.copy_(attention.v_proj.weight, right)


def low_rank_factors(noise: float, diagonal: float, width: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (D, R) and (R, D), the best approximation of `noise · Z + diagonal · I` with Z ~ N(0, 1/D)."""
    matrix = noise * torch.randn(width, width) / width**0.5 + diagonal * torch.eye(width)
    u, s, v = torch.linalg.svd(matrix)
    root = s[:rank].sqrt()
    return u[:, :rank] * root, root[:, None] * v[:rank]


def mup(module: Any, config: BlockConfig) -> None:
    """Linear maps from N(0, 1/fan in), queries 0, embeddings and the output layer from N(0, 1/base_width).

    Heads, whose outputs do not grow with the width, are from N(0, base_width / fan in²).
    """
    if isinstance(module, nn.Linear | nn.Conv2d):
        init.normal_(module.weight, mean=0.0, std=module.weight[0].numel() ** -0.5)
    if hasattr(module, "q_proj"):
        init.zeros_(module.q_proj.weight)
    for head in [getattr(module, name, None) for name in HEADS]:
        if isinstance(head, nn.Linear):
            init.normal_(head.weight, mean=0.0, std=config.base_width**0.5 / head.in_features)
    tables = [module] if isinstance(module, nn.Embedding) else filter(None, [getattr(module, "lm_head", None)])
    for table in tables:
        init.normal_(table.weight, mean=0.0, std=config.base_width**-0.5)


def zero_output(module: nn.Module, config: BlockConfig) -> None:
    """As `xavier`, but the last map of each sublayer is 0: blocks start as the identity."""
    xavier(module, config)
    for name, parameter in module.named_parameters() if blocks_of(module) else ():
        if name.endswith(LAST_MAPS):
            init.zeros_(parameter)


INITIALIZATIONS: dict[str, Callable[[Any, BlockConfig], None]] = {
    "normal": normal,
    "gpt2": gpt2,
    "xavier": xavier,
    "t5": t5,
    "deepnorm": deepnorm,
    "t_fixup": t_fixup,
    "dt_fixup": xavier,
    "ds_init": ds_init,
    "admin": xavier,
    "mimetic": mimetic,
    "gradinit": xavier,
    "mup": mup,
    "zero_output": zero_output,
}


@torch.no_grad()
def initialize(module: nn.Module, config: BlockConfig) -> None:
    """Draw the weights of one module by `config.initialization`; transformers calls this for each, inner ones first.

    N is the number of blocks, M that of a decoder with cross-attention, l a block's number from 1; "values" are the
    value, output and feed-forward maps. U(γ) is uniform in ±γ√(6 / (fan in + fan out)).

    | name        | linear maps  | values                           | embeddings   | paper                       |
    | ----------- | ------------ | -------------------------------- | ------------ | --------------------------- |
    | normal      | N(0, range²) | as linear maps                   | N(0, range²) | BERT, Devlin et al. 2019    |
    | gpt2        | N(0, range²) | last maps / √(sums in the stack) | N(0, range²) | GPT-2, Radford et al. 2019  |
    | xavier      | U(1)         | as linear maps                   | N(0, 1/D)    | Glorot and Bengio 2010      |
    | t5          | N(0, 1/in)   | as linear maps, queries / √K     | N(0, 1)      | T5, Raffel et al. 2020      |
    | deepnorm    | U(1)         | U(β), see `deepnorm_scales`      | N(0, 1/D)    | DeepNet, Wang et al. 2022   |
    | t_fixup     | U(1)         | U(0.67 N^-¼) or U((9M)^-¼)       | the same /√D | T-Fixup, Huang et al. 2020  |
    | dt_fixup    | U(1)         | U(1), scaled: `measured.py`      | N(0, 1/D)    | DT-Fixup, Xu et al. 2021    |
    | ds_init     | U(1/√l)      | as linear maps                   | N(0, 1/D)    | DS-Init, Zhang et al. 2019  |
    | admin       | U(1)         | as linear maps; ω: `measured.py` | N(0, 1/D)    | Admin, Liu et al. 2020      |
    | mimetic     | N(0, range²) | W_O W_V ≈ 0.4 (Z - I)            | N(0, range²) | Trockman and Kolter 2023    |
    | gradinit    | U(1)         | all scaled: `measured.py`        | N(0, 1/D)    | GradInit, Zhu et al. 2021   |
    | mup         | N(0, 1/in)   | queries 0; heads N(0, base/in²)  | N(0, 1/base) | muP, Yang et al. 2021, D.2  |
    | zero_output | U(1)         | last maps of a sublayer 0        | N(0, 1/D)    | Fixup, Zhang et al. 2019    |

    Biases start at 0, norms at the identity. `transformers.initialization` skips tensors loaded from a checkpoint.
    """
    INITIALIZATIONS[config.initialization](module, config)
    if isinstance(module, nn.Linear | nn.Conv2d) and module.bias is not None:
        init.zeros_(module.bias)
