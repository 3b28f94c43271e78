"""What engines are compared with."""

from typing import Any

import torch
from transformers import PreTrainedModel

END, NEW = 3, 9


@torch.no_grad()
def continuation(model: PreTrainedModel, prompt: list[int], **options: Any) -> list[int]:
    """What `generate` makes of a prompt, without the tokens at its two ends."""
    ids = torch.tensor([prompt])
    made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, **options)[0].tolist()
    made = made[1 if model.config.is_encoder_decoder else len(prompt) :]
    return made[: made.index(END)] if END in made else made
