"""The techniques of training, each described once: the setting that turns it on, its words in a card, its papers."""

from collections.abc import Mapping
from typing import Any, NamedTuple

Settings = Mapping[str, Any]


class Technique(NamedTuple):
    """A technique.

    Attributes:
        words: What a card says, formatted with the settings.
        papers: The papers it comes from, by their keys in `references.bib`.
    """

    words: str
    papers: tuple[str, ...] = ()


# By the beginning of `optim`
OPTIMIZERS = {
    "adamw": Technique("AdamW", ("kingma2015adam", "loshchilov2019decoupled")),
    "radam": Technique("RAdam", ("liu2020variance",)),
    "muon": Technique(
        "Muon for matrices, AdamW for the rest", ("jordan2024muon", "liu2025muon", "loshchilov2019decoupled")
    ),
    "adafactor": Technique("Adafactor", ("shazeer2018adafactor",)),
}
# By `lr_scheduler_type`
SCHEDULES = {
    "inverse_sqrt": Technique("learning rate ∝ 1/√step", ("vaswani2017attention",)),
    "cosine": Technique("learning rate along a cosine", ("loshchilov2017sgdr",)),
    "linear": Technique("learning rate linearly to 0"),
    "constant": Technique("constant learning rate"),
    "constant_with_warmup": Technique("constant learning rate"),
}
# By `objective`
OBJECTIVES = {
    "masked": Technique("masked language modeling, {mlm_probability:.0%} of the tokens hidden", ("devlin2019bert",)),
    "masked_image": Technique("masked image modeling, {mask_ratio:.0%} of the patches hidden", ("xie2022simmim",)),
    "mlm+nsp": Technique(
        "masked language modeling and next-sentence prediction, {mlm_probability:.0%} of the tokens hidden",
        ("devlin2019bert",),
    ),
}
# By the training or data argument that turns it on
TECHNIQUES = {
    "label_smoothing_factor": Technique("label smoothing {label_smoothing_factor}", ("szegedy2016rethinking",)),
    "r_drop": Technique("R-Drop {r_drop}", ("liang2021rdrop",)),
    "guided_attention": Technique(
        "guided attention, weight {guided_attention}, width {guided_attention_sigma}", ("tachibana2018efficiently",)
    ),
    "scheduled_sampling": Technique(
        "scheduled sampling, {scheduled_sampling}", ("bengio2015scheduled", "mihaylova2019scheduled")
    ),
    "flip": Technique("mirrored images ({flip})"),
    "shift": Technique("images shifted by up to {shift} pixels"),
    "random_erasing": Technique("random erasing, probability {random_erasing}", ("zhong2020random",)),
    "mixup": Technique("mixup, Beta({mixup}, {mixup})", ("zhang2018mixup",)),
    "token_dropout": Technique("token dropout {token_dropout}", ("iyyer2015deep",)),
    "lm_loss_weight": Technique(
        "language-model loss beside the classifier's, weight {lm_loss_weight}", ("radford2018improving",)
    ),
    "ensemble": Technique(
        "distilled from the mean of {ensemble} models trained with other seeds",
        ("hinton2015distilling", "beyer2022knowledge"),
    ),
    "lora_rank": Technique("LoRA of rank {lora_rank}, merged", ("hu2022lora",)),
    "freeze": Technique("frozen parameters: {freeze}"),
    "average_checkpoints": Technique(
        "average of the last {average_checkpoints} checkpoints", ("vaswani2017attention",)
    ),
    "ema_decay": Technique(
        "exponential moving average of the weights, decay {ema_decay}", ("polyak1992acceleration",)
    ),
    "temperature": Technique(
        "probabilities calibrated by temperature scaling, {temperature:.3g}", ("guo2017calibration",)
    ),
    "block_stride": Technique("overlapping blocks, one every {block_stride} tokens"),
    "packing": Technique("packed rows whose texts do not see each other"),
    "reverse_turns": Technique("dialogues from their last turn to the first", ("li2016diversity",)),
    "bf16": Technique("mixed precision, bfloat16"),
    "fp16": Technique("mixed precision, float16"),
    "max_grad_norm": Technique("gradients clipped to norm {max_grad_norm}"),
}


def techniques(training: Settings, data: Settings) -> list[Technique]:
    """Return the techniques that were used, with their words filled in.

    Args:
        training: Training arguments by name; absent ones were not used.
        data: Data arguments by name.
    """
    settings = {**data, **training}
    objective = OBJECTIVES.get(settings.get("objective", ""))
    used = [entry for name, entry in TECHNIQUES.items() if settings.get(name) and settings[name] != "none"]
    found = [*([objective] if objective else []), _optimizer(settings), _schedule(settings), *used]
    shown = {
        "mlm_probability": 0,
        "mask_ratio": 0,
        **settings,
        "freeze": ", ".join(map(str, settings.get("freeze") or ())),
    }
    return [technique._replace(words=technique.words.format_map(shown)) for technique in found]


def _optimizer(settings: Settings) -> Technique:
    name = str(settings.get("optim", "adamw_torch"))
    return next((entry for key, entry in OPTIMIZERS.items() if name.startswith(key)), Technique(f"optimizer {name}"))


def _schedule(settings: Settings) -> Technique:
    name = str(getattr(settings.get("lr_scheduler_type"), "value", settings.get("lr_scheduler_type", "linear")))
    schedule = SCHEDULES.get(name, Technique(f"learning rate schedule {name}"))
    warmup = settings.get("warmup_steps") or 0
    steps = f"{warmup:.0%} of the steps" if 0 < warmup < 1 else f"{warmup:,.0f} steps"
    return schedule._replace(words=schedule.words + (f" after a warm-up over {steps}" if warmup else ""))
