"""An input of a model, with everything that the figures show: tokens, right answers, the recording.

Shape letters: B batch, T length, S length of the source.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import PreTrainedTokenizerBase

from vanillaformer.data.images import read_image
from vanillaformer.hub.checks import file_errors
from vanillaformer.inference import tasks
from vanillaformer.modeling.heads import IGNORE_INDEX

from .recording import Recording, record, stacks

CONTINUATION = 20  # tokens that a language model adds to the text, for the page only
Answers = tuple[str, torch.Tensor | None, Callable[[int], str]]  # `output`, `targets` and `answers` of an `Example`


@dataclass
class Example:
    """A model with one input, recorded."""

    recording: Recording  # the forward pass; `recording.model` is the model
    tokens: dict[str, list[str]]  # their texts, by stack: "encoder" and "decoder"
    text: str  # the input; for an image, its name
    output: str = ""  # the model's output as text
    # The right token at each position of the last stack (T), -100 where there is none; None without tokens to predict
    targets: torch.Tensor | None = None
    answers: Callable[[int], str] = str  # returns the name of a logit's index: a token, or a class
    tokenizer: Any = None  # None for an image
    rows: Sequence[dict[str, Any]] = ()  # batches of held-out rows with labels, for the figures of the loss
    replacement: Literal["zero", "mean"] = "zero"  # replacement of an ablated head's output
    against: dict[str, Any] | None = None  # inputs of the same shapes to compare with, for the figure of patching
    notes: list[str] = field(default_factory=list)  # sentences at the top of the page, such as what was truncated

    @property
    def model(self) -> Any:
        return self.recording.model

    @property
    def predicted(self) -> list[str]:
        """Names of the right tokens, which the positions of the last stack predict; empty where there is none."""
        ids = [] if self.targets is None else self.targets.tolist()
        return ["" if token == IGNORE_INDEX else self.answers(token) for token in ids]


def text_example(
    loaded: tasks.LoadedModel, text: str, target: str | None = None, cut: Mapping[str, Any] | None = None
) -> Example:
    """Run a model (`vanillaformer.inference.tasks.load`) on a text and return the example.

    An encoder-decoder reads the target, or else the output of the model's `generate`, in one pass. `cut` are arguments
    of `loaded.encode`, which truncates a text that is too long; without them that is an error.
    """
    stacks(loaded.model)  # refuses other models before they generate
    function = tasks.task_of(loaded.architecture, "")[1]
    if target is not None and function is not tasks.translate:
        raise ValueError(f"--target {target!r}: {loaded.architecture} reads no target, encoder-decoders do")
    text = loaded.prefix + text if function is tasks.translate and text.strip() else text
    if cut is None:
        inputs = encoded(loaded.model, loaded.tokenizer, text, "--text")
    else:
        inputs = dict(loaded.encode([text], **cut))
    if function is tasks.translate:
        return translation_example(loaded, inputs, text, target)
    recording, names = record(loaded.model, inputs), token_names(loaded.tokenizer, inputs["input_ids"][0])
    tokens = dict.fromkeys(stacks(loaded.model), names)
    return Example(recording, tokens, text, *ANSWERS[function](loaded, recording, text), tokenizer=loaded.tokenizer)


def encoded(model: Any, tokenizer: Any, text: str, option: str, side: str = "text") -> dict[str, torch.Tensor]:
    """Return a text, or a `text_target`, as a batch of one; raises ValueError if it has no tokens, or too many."""
    if not text.strip():
        raise ValueError(f"{option} {text!r} is empty")
    with file_errors(f"{option}: the model's tokenizer cannot encode the text"):
        batch = tokenizer(**{side: [text]}, return_tensors="pt")
    length, limit = batch["input_ids"].shape[1], getattr(model.config, "max_position_embeddings", None)
    if limit is not None and length > limit:
        raise ValueError(f"{option}: the text has {length:,} tokens, the model handles no more than {limit:,}")
    return dict(batch.to(model.device))


def token_names(tokenizer: PreTrainedTokenizerBase, ids: torch.Tensor) -> list[str]:
    return [name_of(tokenizer, token) for token in ids.tolist()]


def name_of(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    return str(tokenizer.decode([token]))


def translation_example(
    loaded: tasks.LoadedModel, inputs: dict[str, torch.Tensor], text: str, target: str | None
) -> Example:
    """Return the example of an encoder-decoder."""
    model, tokenizer = loaded.model, loaded.target_tokenizer
    labels = model.generate(**inputs, **loaded.with_length({}, 1))[:, 1:]
    output = str(tokenizer.decode(labels[0], skip_special_tokens=True))
    if target is not None:
        labels = encoded(model, tokenizer, target, "--target", "text_target")["input_ids"]
    decoding, notes = getattr(model.config, "decoding", "autoregressive"), []
    read = model.prepare_decoder_input_ids_from_labels(labels)
    recording = record(model, inputs if decoding == "ctc" else inputs | {"decoder_input_ids": read})
    if decoding == "mask_predict":
        read = labels
        notes.append("All tokens of the output are hidden from the decoder, as in the first of the model's steps.")
    if decoding == "ctc":
        if target is not None:
            raise ValueError(f"--target {target!r}: the decoder of a model with decoding=ctc reads no target")
        read = labels = recording.logits.argmax(dim=-1)
        notes.append("The tokens of the decoder are frames, each with the token or blank that it predicts.")
    tokens = {"encoder": token_names(loaded.tokenizer, inputs["input_ids"][0])}
    tokens["decoder"] = token_names(tokenizer, read[0])
    answers = partial(name_of, tokenizer)
    return Example(recording, tokens, text, output, labels[0], answers, loaded.tokenizer, notes=notes)


def continuation(loaded: tasks.LoadedModel, recording: Recording, text: str) -> Answers:
    model, ids = loaded.model, recording.inputs["input_ids"][0]
    limit = getattr(model.config, "max_position_embeddings", None)
    room = CONTINUATION if limit is None else min(CONTINUATION, limit - len(ids))
    # unset the saved max_length: given both, transformers warns
    options = {"max_new_tokens": room, "max_length": None}
    output = model.generate(**recording.inputs, **options)[0, len(ids) :] if room else ids[:0]
    targets = torch.cat([ids[1:], ids.new_full((1,), IGNORE_INDEX)])
    answer = str(loaded.tokenizer.decode(output, skip_special_tokens=True))
    return answer, targets, partial(name_of, loaded.tokenizer)


def filled_text(loaded: tasks.LoadedModel, recording: Recording, text: str) -> Answers:
    tokenizer, ids = loaded.tokenizer, recording.inputs["input_ids"][0]
    targets = torch.where(ids == tokenizer.mask_token_id, recording.logits[0].argmax(dim=-1), ids)
    return str(tokenizer.decode(targets, skip_special_tokens=True)), targets, partial(name_of, tokenizer)


def likeliest_class(loaded: tasks.LoadedModel, recording: Recording, text: str) -> Answers:
    names = loaded.model.config.id2label
    return likeliest(recording, names), None, names.__getitem__


def tags(loaded: tasks.LoadedModel, recording: Recording, text: str) -> Answers:
    entities = tasks.find_entities(loaded, [text])[0]
    return entities, recording.logits[0].argmax(dim=-1), loaded.model.config.id2label.__getitem__


ANSWERS: dict[Any, Callable[[tasks.LoadedModel, Recording, str], Answers]] = {
    tasks.continue_prompts: continuation,
    tasks.fill_masks: filled_text,
    tasks.classify: likeliest_class,
    tasks.find_entities: tags,
}
"""By the function of the model's task; for a masked language model, the right token of a mask is the one filled in."""


def likeliest(recording: Recording, names: Mapping[int, str]) -> str:
    """Return the likeliest class, or all labels above 0.5, with probabilities, or the number, as `generate` does."""
    row, problem = recording.logits[0].float(), recording.model.config.problem_type
    if problem == "regression":
        return f"{float(row[0]):.4f}"
    several = problem == "multi_label_classification"
    values = row.sigmoid() if several or len(row) == 1 else row.softmax(dim=-1)
    chosen = (values > 0.5).nonzero().flatten().tolist() if several else [int(values.argmax())]
    return ", ".join(f"{names[label]} ({float(values[label]):.1%})" for label in chosen)


def image_example(model: Any, processor: Any, path: Path) -> Example:
    """Run an image classifier on an image and return the example."""
    pixels = processor([read_image(path)], return_tensors="pt")["pixel_values"].to(model.device, model.dtype)
    recording, config, names = record(model, {"pixel_values": pixels}), model.config, model.config.id2label
    patches = [f"{row},{column}" for row in range(config.grid[0]) for column in range(config.grid[1])]
    tokens = {"encoder": [f"[{number}]" for number in range(config.num_prefix_tokens)] + patches}
    return Example(recording, tokens, path.name, likeliest(recording, names), answers=names.__getitem__)
