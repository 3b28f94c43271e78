import datasets
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SEQUENCE = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
ENCODER = {
    "pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    """Loaders write to a cache of the test's own, which it may disable, and show no progress."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    yield
    datasets.enable_caching()


def byte_tokenizer(special: dict[str, str], template: str) -> PreTrainedTokenizerFast:
    """One token per byte: ids are easy to tell by hand."""
    tokens = [*special.values(), *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    ids = [(token, number) for number, token in enumerate(special.values())]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=ids)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


@pytest.fixture
def translator_tokenizer():
    return byte_tokenizer(SEQUENCE, "$A </s>")


@pytest.fixture
def decoder_tokenizer():
    return byte_tokenizer(SEQUENCE, "<s> $A")


@pytest.fixture
def encoder_tokenizer():
    return byte_tokenizer(ENCODER, "[CLS] $A [SEP]")
