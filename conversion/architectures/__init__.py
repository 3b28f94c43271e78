"""The native architectures by name; those of one family share a file."""

from dataclasses import replace

from ..mapping.architecture import Architecture
from . import bart, bert, gpt, llama, t5
from .bart import BART, M2M_100, MARIAN, MBART, PEGASUS
from .beit import BEIT
from .bert import BERT, DISTILBERT, ROBERTA
from .dinov2 import DINOV2, DINOV2_WITH_REGISTERS
from .gpt import GPT2, GPTJ, OPENAI_GPT, OPT
from .gpt_neox import BLOOM, GPT_NEOX
from .llama import COHERE, GEMMA, GEMMA2, LLAMA, MISTRAL, OLMO2, PHI, QWEN2, QWEN3, STABLELM, STARCODER2
from .modernbert import MODERNBERT
from .swin import SWIN
from .t5 import T5
from .vit import DEIT, IJEPA, VIT, VIT_MSN

ALL = (
    GPT2, OPENAI_GPT, OPT, GPT_NEOX, GPTJ, BLOOM, LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA, GEMMA2, OLMO2, STARCODER2,
    STABLELM, PHI, COHERE, BERT, ROBERTA, DISTILBERT, MODERNBERT, MARIAN, BART, MBART, PEGASUS, M2M_100, T5,
    VIT, DEIT, VIT_MSN, IJEPA, DINOV2, DINOV2_WITH_REGISTERS, BEIT, SWIN,
)  # fmt: skip
VARIANTS = (*llama.VARIANTS, *gpt.VARIANTS, *bert.VARIANTS, *bart.VARIANTS, *t5.VARIANTS)
ARCHITECTURES: dict[str, Architecture] = {architecture.name: architecture for architecture in ALL}
ARCHITECTURES |= {entry.name: replace(entry, by_name=True) for entry in VARIANTS}
