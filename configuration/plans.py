"""Plans by which transformers splits a model over several devices."""

# Heads and inner width are split over the devices, outputs are summed. The plan names every projection that a block
# can have; a model keeps the entries that it has (`modeling/base.py`).
STYLES = {"q_proj": "colwise", "k_proj": "colwise", "v_proj": "colwise", "o_proj": "rowwise"} | dict.fromkeys(
    ("q_norm", "k_norm"), "replicated_with_grad_allreduce"
)
TENSOR_PARALLEL_PLAN = {
    **{f"layers.*.{part}_attn.{name}": style for part in ("self", "cross") for name, style in STYLES.items()},
    **dict.fromkeys(("layers.*.mlp.gate_proj", "layers.*.mlp.up_proj"), "colwise"),
    "layers.*.mlp.down_proj": "rowwise",
}

# Modules gathered when used and then freed, and those that stay; the names are transformers' own, but for `merges`
IMAGE_FSDP_PLAN = {"layers.*": "free_full_weight", "merges.*": "free_full_weight", "norm": "keep_full_weight"}

# A norm over all heads, or with a weight for each, has to see all of them
WHOLE_HEADS = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "colwise_gather_output"), "o_proj": "rowwise_split_input"
}  # fmt: skip
