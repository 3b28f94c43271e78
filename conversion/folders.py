"""Convert saved models: the weights are checked, and tokenizer, generation config and card carried over."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from vanillaformer.configuration import VanillaConfig
from vanillaformer.configuration.image_encoder import image_sides
from vanillaformer.hub.atomic_files import new_folder
from vanillaformer.hub.card_merging import native_card
from vanillaformer.hub.checks import class_of, few, read_json
from vanillaformer.hub.file_names import CARD, CARRIED, CONFIG, GENERATION, IMAGE_PROCESSOR, TOKENIZERS, matching_files
from vanillaformer.hub.loading import open_config, open_image_processor, open_model, readable_length, saved_folder

from .convert import architecture_of, from_native, to_native
from .mapping.canonical import NATIVE_NEUTRAL_FIELDS, equal
from .tokens import ordinary_tokens, start_token

Model = TypeVar("Model", bound=PreTrainedModel)

TOLERANCE = 1e-5  # relative RMS error of the logits in float32
LENGTH = 12  # tokens of the random texts
HALF_TOLERANCE = 2e-2  # in bfloat16 or float16, where the order of additions matters
# Rates of dropout and of dropped layers: they do not change what a model computes, but fine-tuning depends on them
RATES = ("dropout", "attention_dropout", "activation_dropout", "layer_drop", "drop_path_rate")


class Conversion(NamedTuple):
    """The result of a conversion."""

    source: str
    target: str
    parameters: int
    error: float
    carried: list[str]
    lost: list[str]  # training settings that were lost


def convert_folder(
    source: str, destination: str | Path, to: str | None = None, back: bool = False, revision: str | None = None
) -> Conversion:
    """Convert the model saved in `source`, a folder or Hub id, and save it in `destination`, a new or empty folder.

    Our model is converted to the native architecture `to`, by default the one that it fits; with `back`, a native
    model is converted to ours. Raises ValueError where the source cannot be read or converted, the destination is not
    empty, or the logits differ.
    """
    with new_folder(destination) as folder:
        origin = saved_folder(source, revision, "SRC")
        carried = carried_files(origin)
        config = open_config(origin)
        if not back and not isinstance(config, VanillaConfig):
            raise ValueError(
                f"{origin}: model_type={config.model_type!r} is native already; use --from to convert it to ours"
            )
        saved: Any = load(class_of(config), origin)
        ours, native = (from_native(saved), saved) if back else (saved, to_native(saved, to))
        before, after = (native, ours) if back else (ours, native)
        error = logit_error(after, before)
        limit = TOLERANCE if before.dtype in (torch.float32, torch.float64) else HALF_TOLERANCE
        if not error <= limit:
            raise ValueError(
                f"{source}: the logits of the {type(after).__name__} differ by {error:.1e} from those of the "
                f"{type(before).__name__} (allowed {limit:.0e}): nothing was written"
            )
        after.save_pretrained(folder)
        names = carry(carried, folder, after)
        if CARD in carried:
            origins = f"the {type(before).__name__} in `{Path(source).name}`"
            note = f"Converted by vanillaformer from {origins}: a {type(after).__name__} that computes the same."
            card = carried[CARD].read_text(encoding="utf-8")
            card = (card if back else native_card(card, type(after).__name__, after.config.model_type)).rstrip("\n")
            (folder / CARD).write_text(f"{card}\n\n## Converted\n\n{note}\n", encoding="utf-8")
    lost = lost_settings(ours, native, back)
    return Conversion(type(before).__name__, type(after).__name__, after.num_parameters(), error, names, lost)


def load(model_class: type[Model], folder: Path) -> Model:
    """Return the model of a folder; raise ValueError if weights are missing, left over or damaged."""
    model, report = open_model(model_class, folder, f"SRC {folder}", output_loading_info=True)
    for problem in ("missing_keys", "unexpected_keys"):
        if report[problem]:
            found = f"{problem.replace('_', ' ')} in the weights of {model_class.__name__}: {few(report[problem])}"
            raise ValueError(f"{folder}: {found}")
    return model.eval()


@torch.no_grad()
def logit_error(one: PreTrainedModel, other: PreTrainedModel) -> float:
    """Return the relative RMS error between two models' logits, or states without a head, on random input."""
    inputs = random_inputs(next((model for model in (one, other) if isinstance(model.config, VanillaConfig)), one))
    outputs = [model.eval()(**inputs) for model in (one, other)]
    names = ("logits", "prediction_logits", "start_logits", "reconstruction", "last_hidden_state")
    first, second = (next(out[name] for name in names if out.get(name) is not None).double() for out in outputs)
    return ((first - second).norm() / second.norm()).item()


def random_inputs(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return a batch of random images, or of tokens with a padded second row, and a start token for the decoder."""
    config = model.config
    if model.main_input_name == "pixel_values":
        return {"pixel_values": random_images(config).to(model.device)}
    pad = getattr(config, "pad_token_id", None)
    # A classifier finds the end of a text by its padding; without a padding token it takes one text
    batch, length = 1 if pad is None else 2, min(LENGTH, getattr(config, "max_position_embeddings", LENGTH))
    ids, mask = random_words(config, config.vocab_size, batch, length), torch.ones(batch, length, dtype=torch.long)
    if pad is not None:
        mask[1, length - length // 4 :] = 0
        ids = ids.masked_fill(mask == 0, pad)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if config.is_encoder_decoder:
        vocabulary = getattr(config, "decoder_vocab_size", None) or config.vocab_size
        inputs["decoder_input_ids"] = random_words(config, vocabulary, batch, length)
        start = start_token(config, getattr(model, "generation_config", None))
        if start is not None:
            inputs["decoder_input_ids"][:, 0] = start
    if type(model).__name__.endswith("ForMultipleChoice"):  # the two texts are choices
        inputs = {name: tensor[None] for name, tensor in inputs.items()}
    return {name: tensor.to(model.device) for name, tensor in inputs.items()}


def random_images(config: PreTrainedConfig, batch: int = 2) -> torch.Tensor:
    """Return random images (B, C, height, width)."""
    shape = (batch, config.num_channels, *image_sides(config.image_size))
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def random_words(config: PreTrainedConfig, vocabulary: int, batch: int, length: int) -> torch.Tensor:
    """Return random tokens (B, T), none of them special."""
    words = torch.tensor(ordinary_tokens(config, vocabulary))
    return words[torch.randint(len(words), (batch, length), generator=torch.Generator().manual_seed(vocabulary))]


def carried_files(origin: Path) -> dict[str, Path]:
    """Return the files of tokenizers, image processor, templates, license and card, by their path in a model's folder.

    Raises ValueError if one of them or a config is a link out of the folder, to a file that may be private.
    """
    files = matching_files(origin, (CONFIG, GENERATION, *TOKENIZERS, *CARRIED))
    return {name: path for name, path in sorted(files.items()) if name not in (CONFIG, GENERATION)}


def carry(files: dict[str, Path], folder: Path, model: PreTrainedModel) -> list[str]:
    """Copy tokenizers, image processor, templates and license; return the names of files and folders."""
    names = [name for name in files if name != CARD]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(files[name], folder / name)
    processor, types = files.get(IMAGE_PROCESSOR), {"image_processor_type", "feature_extractor_type"}
    if processor and isinstance(model.config, VanillaConfig) and not types & read_json(processor).keys():
        open_image_processor(processor.parent, "SRC").save_pretrained(folder)  # typed by the native model
    source = getattr(model.config, "vocab_size", 0)
    target = getattr(model.config, "decoder_vocab_size", None) or source
    for name, rows in (("tokenizer.json", source), ("target_tokenizer/tokenizer.json", target)):
        if name in files and (needed := embedding_rows(files[name])) > rows:
            raise ValueError(f"{files[name]} makes {needed} tokens, but the model has vocab_size={rows}")
    for name in ("tokenizer_config.json", "target_tokenizer/tokenizer_config.json"):
        longest = readable_length(model.config)
        if name in files and longest is not None:
            settings = read_json(folder / name)
            stored = settings.get("model_max_length")
            settings["model_max_length"] = min(stored, longest) if isinstance(stored, int) else longest
            (folder / name).write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return sorted({name.split("/")[0] for name in names})


def embedding_rows(path: Path) -> int:
    """Return the number of rows in an embedding table that the tokens in a `tokenizer.json` need."""
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
        vocabulary = described["model"].get("vocab", [])
        ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
        added = [token["id"] for token in described.get("added_tokens") or []]
        return 1 + max([*ids, *added], default=-1)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from error


def lost_settings(ours: Any, native: PreTrainedModel, back: bool = False) -> list[str]:
    """Return the rates that a conversion to native, or `back`, has lost, each with its new value."""
    architecture = architecture_of(native.config)
    head = architecture.head_of(type(native).__name__)
    if back:
        fields = {field.name for field in dataclasses.fields(native.config)}
        before, after = native.config, architecture.to_native_config(ours.config, head)
        names = sorted(name for name in fields & NATIVE_NEUTRAL_FIELDS if "drop" in name and "summary" not in name)
    else:
        before, after = ours.config, architecture.to_our_config(native.config, head)
        names = [*RATES, *(["classifier_dropout"] if head in ("sequence", "token") else [])]
    pairs = {name: (getattr(before, name, None) or 0.0, getattr(after, name, None) or 0.0) for name in names}
    return [f"{name}={one} (now {other})" for name, (one, other) in pairs.items() if not equal(one, other)]
