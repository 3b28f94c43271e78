"""Special tokens, their ids and the template around a text, for each kind of model."""

from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import processors

from .options import ModelKind


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens of one kind of model, and the `TemplateProcessing` around one text and a pair of texts."""

    names: Mapping[str, str]  # tokenizer attribute (`pad_token`, ...) to token, in id order starting at 0
    single: str
    pair: str
    model_input_names: tuple[str, ...] = ("input_ids", "attention_mask")

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens in id order."""
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
