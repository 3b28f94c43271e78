"""Native models: trained as models of ours where our config fields can express them, saved in their native form."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from vanillaformer.configuration import VanillaConfig
from vanillaformer.console.reporting import report
from vanillaformer.conversion.convert import choose_architecture, give_back, head_of_ours, take_over, to_native
from vanillaformer.hub.checks import open_config, read_json
from vanillaformer.hub.file_names import CONFIG, IMAGE_PROCESSOR, TOKENIZERS, matching_files
from vanillaformer.modeling.base import VanillaPreTrainedModel

TOKENIZER_CONFIG = "tokenizer_config.json"
KEPT = tuple(name for name in TOKENIZERS if name != IMAGE_PROCESSOR)  # images are scaled as in training
DECIDED = {"truncation_side": "right", "src_lang": None, "tgt_lang": None}
"""Settings of a tokenizer that training decides, with their defaults."""
AS_THEY_ARE = "models divided among processes are saved as the class that they are"
UNKNOWN = 10**20  # model_max_length of a tokenizer without a limit


def as_ours(model: PreTrainedModel, save_as: str | None, args: Any, checkpoint: Path | None) -> PreTrainedModel:
    """Return our model with the weights of a native one, or the native one where no model of ours can express it.

    `save_as` is the form to save, `native` or `vanilla`; by default it is kept. Training that resumes from the
    checkpoint of a native model continues with that. Raises ValueError where the model cannot be saved in this form.
    """
    name, divided = type(model).__name__, args.parallel is not None
    if isinstance(model, VanillaPreTrainedModel):
        if save_as == "native" and divided:
            raise ValueError(f"--save_as native: {AS_THEY_ARE}")
        if save_as == "native":
            choose_architecture(model.config, head_of_ours(model), None)
        return model
    config = checkpoint / CONFIG if checkpoint is not None else None
    if config is not None and config.is_file() and not isinstance(open_config(config.parent), VanillaConfig):
        return model
    implementation = model.config._attn_implementation
    try:
        if divided:
            raise ValueError(AS_THEY_ARE)
        ours = take_over(model)
    except ValueError as error:
        if save_as == "vanilla":
            raise ValueError(f"--save_as vanilla: {error}") from error
        report(f"Training the {name} as it is, without packing and the chunked loss: {error}")
        return model
    if ours.config._attn_implementation != implementation:
        ours.set_attn_implementation(implementation)
    if save_as == "vanilla":
        del ours.native_form
    else:
        report(f"Training the {name} as a {type(ours).__name__}, which computes the same; it is saved as a {name}.")
    return ours


@contextmanager
def native_form(trainer: Any, folder: Path, *, save_as: str | None, origin: Path | None) -> Iterator[None]:
    """Replace a trainer's model by its native form while it is saved in a folder, if it is to be saved in that form.

    The tokenizer files in `origin`, the folder of the native model, are kept as they are.
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    came_in = getattr(model, "native_form", None) is not None
    wrapped = trainer.model, trainer.model_wrapped
    if trainer.args.should_save and (came_in or save_as == "native"):
        trainer.model = trainer.model_wrapped = give_back(model) if came_in else to_native(model)
    try:
        yield
    finally:
        trainer.model, trainer.model_wrapped = wrapped
    if trainer.args.should_save and came_in and origin is not None:
        keep_tokenizer(origin, folder)


def keep_tokenizer(origin: Path, folder: Path) -> None:
    """Replace the saved tokenizer files by the original ones of a model.

    A tokenizer without `model_max_length` gets it: without it, no text can be cut to fit. The side at which long texts
    are cut, and the languages, are those of the training.
    """
    saved: dict[str, Any] = {}
    for path in matching_files(folder, KEPT).values():
        if path == folder / TOKENIZER_CONFIG:
            saved = read_json(path)
        path.unlink()
    for name, path in matching_files(origin, KEPT).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(path.read_bytes())
    path = folder / TOKENIZER_CONFIG
    if not saved:
        return
    settings = read_json(path) if path.is_file() else {}
    now, before = ({**DECIDED, **each} for each in (saved, settings))
    changes = {name: now[name] for name in DECIDED if now[name] != before[name]}
    if settings.get("model_max_length", UNKNOWN) >= UNKNOWN:
        changes["model_max_length"] = saved.get("model_max_length")
    if changes:
        path.write_text(json.dumps(settings | changes, indent=2, ensure_ascii=False) + "\n")
