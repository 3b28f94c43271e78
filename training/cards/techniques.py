"""The techniques of a training run in words, each with the papers it comes from."""

from collections.abc import Mapping
from typing import Any, NamedTuple

OPTIMIZERS = {
    "adamw": ("AdamW", ("kingma2015adam", "loshchilov2019decoupled")),
    "radam": ("RAdam", ("liu2020variance",)),
    "muon": ("Muon for matrices, AdamW for the rest", ("jordan2024muon", "liu2025muon", "loshchilov2019decoupled")),
    "adafactor": ("Adafactor", ("shazeer2018adafactor",)),
}
SCHEDULES = {
    "inverse_sqrt": ("learning rate ∝ 1/√step", ("vaswani2017attention",)),
    "cosine": ("learning rate along a cosine", ("loshchilov2017sgdr",)),
    "linear": ("learning rate linearly to 0", ()),
    "constant": ("constant learning rate", ()),
    "constant_with_warmup": ("constant learning rate", ()),
}
OBJECTIVES = {
    "masked": ("masked language modelling", ("devlin2019bert",)),
    "mlm+nsp": ("masked language modelling and next-sentence prediction", ("devlin2019bert",)),
}


class Technique(NamedTuple):
    """A technique in words, and its papers."""

    words: str
    papers: tuple[str, ...] = ()


def techniques(settings: Mapping[str, Any], data: Mapping[str, Any]) -> list[Technique]:
    """Return the techniques that were used.

    Args:
        settings: Training arguments by name; absent ones were not used.
        data: Data arguments by name.
    """

    def given(name: str) -> Any:
        return settings.get(name) or 0

    found = [_optimizer(settings), _schedule(settings)]
    if settings.get("objective") in OBJECTIVES:
        objective, papers = OBJECTIVES[settings["objective"]]
        found = [Technique(f"{objective}, {given('mlm_probability'):.0%} of the tokens hidden", papers), *found]
    sampling = settings.get("scheduled_sampling")
    averaged, kept = given("average_checkpoints"), given("ema_decay")
    used = {
        Technique(f"label smoothing {given('label_smoothing_factor')}", ("szegedy2016rethinking",)): given(
            "label_smoothing_factor"
        ),
        Technique(f"R-Drop {given('r_drop')}", ("liang2021rdrop",)): given("r_drop"),
        Technique(f"scheduled sampling, {sampling}", ("bengio2015scheduled", "mihaylova2019scheduled")): (
            sampling not in (None, "none")
        ),
        Technique(f"token dropout {given('token_dropout')}", ("iyyer2015deep",)): given("token_dropout"),
        Technique(
            f"language-model loss beside the classifier's, weight {given('lm_loss_weight')}", ("radford2018improving",)
        ): given("lm_loss_weight"),
        Technique(f"LoRA of rank {given('lora_rank')}, merged", ("hu2022lora",)): given("lora_rank"),
        Technique("frozen parameters: " + ", ".join(map(str, settings.get("freeze") or ()))): given("freeze"),
        Technique(f"average of the last {averaged} checkpoints", ("vaswani2017attention",)): averaged,
        Technique(f"exponential moving average of the weights, decay {kept}", ("polyak1992acceleration",)): kept,
        Technique(f"overlapping blocks, one every {data.get('block_stride')} tokens"): data.get("block_stride"),
        Technique("packed rows whose texts do not see each other"): data.get("packing"),
        Technique("dialogues from their last turn to the first", ("li2016diversity",)): data.get("reverse_turns"),
        Technique("mixed precision, bfloat16"): given("bf16"),
        Technique("mixed precision, float16"): given("fp16"),
        Technique(f"gradients clipped to norm {given('max_grad_norm')}"): given("max_grad_norm"),
    }
    return [*found, *(technique for technique, is_used in used.items() if is_used)]


def _optimizer(settings: Mapping[str, Any]) -> Technique:
    name = str(settings.get("optim", "adamw_torch"))
    known = next((value for key, value in OPTIMIZERS.items() if name.startswith(key)), (f"optimizer {name}", ()))
    return Technique(*known)


def _schedule(settings: Mapping[str, Any]) -> Technique:
    name = str(getattr(settings.get("lr_scheduler_type"), "value", settings.get("lr_scheduler_type", "linear")))
    words, papers = SCHEDULES.get(name, (f"learning rate schedule {name}", ()))
    warmup = settings.get("warmup_steps") or 0
    steps = f"{warmup:.0%} of the steps" if 0 < warmup < 1 else f"{warmup:,.0f} steps"
    return Technique(words + (f" after a warm-up over {steps}" if warmup else ""), papers)
