"""The native architectures by name; each family has a file."""

from dataclasses import replace

from ..mapping.architecture import Architecture
from . import bart, beit, bert, dinov2, gpt, llama, modernbert, swin, t5, vit

ALL = (
    gpt.GPT2, gpt.OPENAI_GPT, gpt.OPT, llama.GPT_NEOX, gpt.GPTJ, llama.BLOOM, llama.LLAMA, llama.MISTRAL, llama.QWEN2,
    llama.QWEN3, llama.GEMMA, llama.GEMMA2, llama.OLMO2, llama.STARCODER2, llama.STABLELM, llama.PHI, llama.COHERE,
    bert.BERT, bert.ROBERTA, bert.DISTILBERT, modernbert.MODERNBERT, bart.MARIAN, bart.BART, bart.MBART, bart.PEGASUS,
    bart.M2M_100, t5.T5, vit.VIT, vit.DEIT, vit.VIT_MSN, vit.IJEPA, dinov2.DINOV2, dinov2.DINOV2_WITH_REGISTERS,
    beit.BEIT, swin.SWIN,
)  # fmt: skip
VARIANTS = (*llama.VARIANTS, *gpt.VARIANTS, *bert.VARIANTS, *bart.VARIANTS, *t5.VARIANTS)
ARCHITECTURES: dict[str, Architecture] = {architecture.name: architecture for architecture in ALL}
ARCHITECTURES |= {entry.name: replace(entry, by_name=True) for entry in VARIANTS}
