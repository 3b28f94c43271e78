"""Plans by which transformers splits a model over several devices."""

from .block import BlockFields
from .options import POSITION_CHOICES, QUERY_KEY_NORM_CHOICES

# Heads and inner width are split over the devices, outputs are summed. The plan names every projection that a block
# can have; a model keeps the entries that it has (`modeling/base.py`).
COLWISE = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
TENSOR_PARALLEL_PLAN = {
    f"layers.*.{part}.{projection}": "colwise" if projection in COLWISE else "rowwise"
    for part, projections in (
        ("self_attn", ("q_proj", "k_proj", "v_proj", "o_proj")),
        ("cross_attn", ("q_proj", "k_proj", "v_proj", "o_proj")),
        ("mlp", ("gate_proj", "up_proj", "down_proj")),
    )
    for projection in projections
} | {
    f"layers.*.{part}.{norm}": "replicated_with_grad_allreduce"
    for part in ("self_attn", "cross_attn")
    for norm in ("q_norm", "k_norm")
}

# What is gathered when it is used and freed again, and what stays; the names are transformers' own, but for `merges`
IMAGE_FSDP_PLAN = {"layers.*": "free_full_weight", "merges.*": "free_full_weight", "norm": "keep_full_weight"}

# A norm over all heads, or with a weight for each, has to see all of them
WHOLE_HEADS = {
    "q_proj": "colwise_gather_output",
    "k_proj": "colwise_gather_output",
    "v_proj": "colwise_gather_output",
    "o_proj": "rowwise_split_input",
}


def tensor_parallel_plan(config: BlockFields, plan: dict[str, str]) -> dict[str, str]:
    """Return the plan that fits the fields of a config.

    A bias per head that is not split as the heads are keeps attention whole on every device.
    """
    if POSITION_CHOICES[config.position_embedding_type].is_biased:
        return {key: style for key, style in plan.items() if "self_attn" not in key}
    if QUERY_KEY_NORM_CHOICES[config.qk_norm].spans_heads:
        kept = {key: style for key, style in plan.items() if not key.endswith(("q_norm", "k_norm"))}
        return {key: WHOLE_HEADS.get(key.rsplit(".", 1)[-1], style) for key, style in kept.items()}
    return plan
