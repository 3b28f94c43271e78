"""A model as its own engine, which other tests of exporters compare it with."""

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedModel

from vanillaformer.conversion.exports import Engine
from vanillaformer.conversion.exports.checks import greedy, score


class Twin(Engine):
    """A model as its own engine.

    Args:
        model: The model.
        scores: Whether the engine gives scores.
        shift: What is added to the tokens that it makes, for one that is wrong.
    """

    def __init__(self, model: PreTrainedModel, scores: bool = True, shift: int = 0):
        settings = getattr(model, "generation_config", None) or GenerationConfig()
        super().__init__(type(model).__name__, model.config, settings)
        self.model, self.scores, self.shift = model.eval(), scores, shift

    @torch.no_grad()
    def generate(self, prompts, *, max_new_tokens, **options):
        made = [greedy(self.model, prompt, max_new_tokens, self) for prompt in prompts]
        return [[(token + self.shift) % 30 + 5 for token in row] for row in made] if self.shift else made

    @torch.no_grad()
    def score(self, prompts, continuations):
        if not self.scores:
            raise NotImplementedError
        return [score(self.model, *pair) for pair in zip(prompts, continuations)]

    @torch.no_grad()
    def classify(self, rows, token_type_ids=None):
        made = [self.model(torch.tensor([row])).logits[0] for row in rows]
        return pad_sequence(made, batch_first=True, padding_value=99.0).numpy()
