"""The native architectures by name; those of one family share a file."""

from dataclasses import replace

from ..mapping.architecture import Architecture
from . import bert_variants, gpt_variants, llama_variants, seq2seq_variants
from .bart import BART, M2M_100, MARIAN, MBART, PEGASUS
from .beit import BEIT
from .bert import BERT, DISTILBERT, ROBERTA
from .cohere import COHERE
from .dinov2 import DINOV2, DINOV2_WITH_REGISTERS
from .gemma import GEMMA, GEMMA2
from .gpt import GPT2, GPTJ, OPENAI_GPT
from .gpt_neox import BLOOM, GPT_NEOX
from .llama import LLAMA, MISTRAL, OLMO2, QWEN2, QWEN3
from .modernbert import MODERNBERT
from .opt import OPT
from .phi import PHI
from .stablelm import STABLELM
from .starcoder2 import STARCODER2
from .swin import SWIN
from .t5 import T5
from .vit import DEIT, IJEPA, VIT, VIT_MSN

ALL = (
    GPT2, OPENAI_GPT, OPT, GPT_NEOX, GPTJ, BLOOM, LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA, GEMMA2, OLMO2, STARCODER2,
    STABLELM, PHI, COHERE, BERT, ROBERTA, DISTILBERT, MODERNBERT, MARIAN, BART, MBART, PEGASUS, M2M_100, T5,
    VIT, DEIT, VIT_MSN, IJEPA, DINOV2, DINOV2_WITH_REGISTERS, BEIT, SWIN,
)  # fmt: skip
VARIANTS = (llama_variants, gpt_variants, bert_variants, seq2seq_variants)
ARCHITECTURES: dict[str, Architecture] = {architecture.name: architecture for architecture in ALL}
ARCHITECTURES |= {entry.name: replace(entry, by_name=True) for module in VARIANTS for entry in module.ALL}
