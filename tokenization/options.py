"""The names and settings a tokenizer is trained with, and the special tokens of each kind of model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tokenizers import processors

TokenizerAlgorithm = Literal["byte_level_bpe", "bpe", "unigram", "wordpiece", "word", "character", "chinese_character"]
ModelKind = Literal["encoder_decoder", "decoder", "encoder"]
MODEL_KINDS: dict[str, ModelKind] = {  # by `model_type`
    "vanilla_encoder_decoder": "encoder_decoder",
    "vanilla_recurrent_encoder_decoder": "encoder_decoder",
    "vanilla_decoder": "decoder",
    "vanilla_encoder": "encoder",
}


@dataclass(frozen=True)
class TrainingOptions:
    """The options of every algorithm."""

    vocab_size: int  # upper limit of the whole vocabulary, special tokens included
    special_tokens: tuple[str, ...]  # all of them in id order: token `i` gets id `i`
    unk_token: str  # the one for text that the vocabulary does not cover
    declared_tokens: tuple[str, ...] = ()  # special tokens that a user declared, which are part of texts
    min_frequency: int | None = None  # least count of a word, character or pair; None: the algorithm's default
    lowercase: bool = False
    split_digits: bool = False  # each digit is a token
    strip_punctuation: bool = False  # drops punctuation and other symbols; only for `word`
    show_progress: bool = False

    @property
    def control_tokens(self) -> tuple[str, ...]:
        """The special tokens that are not part of a text."""
        return tuple(token for token in self.special_tokens if token not in self.declared_tokens)

    @property
    def room(self) -> int:
        return self.vocab_size - len(self.special_tokens)

    def require_room(self, size: int, reason: str) -> None:
        """Raise ValueError unless `size` tokens fit in addition to the special ones."""
        if self.room < size:
            raise ValueError(
                f"vocab_size={self.vocab_size} is too small: {len(self.special_tokens)} special tokens and {reason} "
                f"need at least {len(self.special_tokens) + size}"
            )


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens of one kind of model, and the `TemplateProcessing` around one text and a pair of texts."""

    names: Mapping[str, str]  # tokenizer attribute (`pad_token`, ...) to token, in id order starting at 0
    single: str
    pair: str
    model_input_names: tuple[str, ...] = ("input_ids", "attention_mask")

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(self.names.values())

    def post_processor(self) -> processors.TemplateProcessing:
        """The step that puts the special tokens around encoded texts."""
        ids = [(token, index) for index, token in enumerate(self.tokens)]
        return processors.TemplateProcessing(single=self.single, pair=self.pair, special_tokens=ids)


_SEQUENCE_NAMES = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
_ENCODER_NAMES = {f"{name.lower()}_token": f"[{name}]" for name in ("PAD", "UNK", "CLS", "SEP", "MASK")}

# The decoder's template has no </s>: a prompt must not end in the token that ends a document.
SPECIAL_TOKENS: dict[ModelKind, SpecialTokens] = {
    "encoder_decoder": SpecialTokens(_SEQUENCE_NAMES, single="$A </s>", pair="$A </s> $B:1 </s>:1"),
    "decoder": SpecialTokens(_SEQUENCE_NAMES, single="<s> $A", pair="<s> $A $B:1"),
    "encoder": SpecialTokens(
        _ENCODER_NAMES,
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        model_input_names=("input_ids", "token_type_ids", "attention_mask"),
    ),
}
