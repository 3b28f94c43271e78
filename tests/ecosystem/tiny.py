"""Tiny models with a trained tokenizer, as a run leaves them: what every tool of these tests is given."""

import random
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from modeling.toys import sharpen
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM, PreTrainedModel

import vanillaformer
from vanillaformer.data.dialogue import SEPARATOR, set_chat_template
from vanillaformer.tokenization import train

LOADERS = {
    vanillaformer.VanillaEncoderDecoderForConditionalGeneration: AutoModelForSeq2SeqLM,
    vanillaformer.VanillaDecoderForCausalLM: AutoModelForCausalLM,
    vanillaformer.VanillaEncoderForMaskedLM: AutoModelForMaskedLM,
}
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 64, "dropout": 0.0,
    "tie_word_embeddings": False  # or a random model repeats its last token
}  # fmt: skip
TEXTS = ["the old ship", "a small dog finds the red house", "one river"]


def sentences(count: int = 200, seed: int = 0) -> list[str]:
    """Sentences that have something to learn, the same ones each time."""
    draw = random.Random(seed)
    adjectives, nouns = ["old", "small", "red", "quiet"], ["dog", "ship", "house", "river", "teacher"]
    verbs, numbers = ["finds", "sees", "leaves"], ["a", "one", "the"]
    return [
        f"{draw.choice(numbers)} {draw.choice(adjectives)} {draw.choice(nouns)} "
        f"{draw.choice(verbs)} the {draw.choice(adjectives)} {draw.choice(nouns)}"
        for _ in range(count)
    ]


@cache
def tokenizer_of(kind: str) -> transformers.PreTrainedTokenizerFast:
    """A tokenizer of the sentences, whose every token is readable; that of a decoder knows dialogues."""
    extra = [SEPARATOR] if kind == "decoder" else []
    made = train(sentences(), algorithm="bpe", kind=kind, vocab_size=100, extra_special_tokens=extra)
    if kind == "decoder":
        set_chat_template(made)
    return made


def tiny(model_class: type[PreTrainedModel], **fields: Any) -> PreTrainedModel:
    """A model with sharp random weights: its greedy choices are no ties, and nothing hides behind a default."""
    config_class = model_class.config_class
    tokenizer = tokenizer_of(kind_of(model_class))
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    ids = {name: value for name, value in ids.items() if value is not None}
    return sharpen(model_class(config_class(vocab_size=len(tokenizer), **(ids | SIZES | fields)))).eval()


def kind_of(model_class: type[PreTrainedModel]) -> str:
    return model_class.config_class.model_type.removeprefix("vanilla_")


def save(model: PreTrainedModel, folder: Path) -> Path:
    """Write model and tokenizer, as a run does."""
    model.save_pretrained(folder)
    tokenizer_of(kind_of(type(model))).save_pretrained(folder)
    return folder


def batch_of(kind: str, texts: list[str] = TEXTS) -> dict[str, torch.Tensor]:
    """The texts as padded tensors, with targets for an encoder-decoder."""
    batch = dict(tokenizer_of(kind)(texts, padding=True, return_tensors="pt"))
    batch.pop("token_type_ids", None)
    if kind == "encoder_decoder":
        batch["decoder_input_ids"] = batch["input_ids"].flip(0)
    return batch
