"""The native architectures by name, one file each."""

from ..mapping.architecture import Architecture
from . import (
    bart,
    beit,
    bert,
    bloom,
    cohere,
    deit,
    dinov2,
    dinov2_with_registers,
    distilbert,
    gemma,
    gemma2,
    gpt2,
    gpt_neox,
    gptj,
    ijepa,
    llama,
    m2m_100,
    marian,
    mbart,
    mistral,
    modernbert,
    olmo2,
    openai_gpt,
    opt,
    pegasus,
    phi,
    qwen2,
    qwen3,
    roberta,
    stablelm,
    starcoder2,
    swin,
    t5,
    vit,
    vit_msn,
)

MODULES = (
    gpt2, openai_gpt, opt, gpt_neox, gptj, bloom, llama, mistral, qwen2, qwen3, gemma, gemma2, olmo2, starcoder2,
    stablelm, phi, cohere, bert, roberta, distilbert, modernbert, marian, bart, mbart, pegasus, m2m_100, t5,
    vit, deit, vit_msn, ijepa, dinov2, dinov2_with_registers, beit, swin,
)  # fmt: skip
ARCHITECTURES: dict[str, Architecture] = {module.ARCHITECTURE.name: module.ARCHITECTURE for module in MODULES}
