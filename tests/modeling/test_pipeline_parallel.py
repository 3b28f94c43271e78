"""A decoder cut into the stages of transformers' pipeline: what comes in as embeddings is not embedded again."""

import copy

import torch
from transformers.distributed.pipeline_parallel import PipelineIdentityLayer

from .toys import assert_close, every_value, inputs_of, toy


@every_value("decoder")
def test_two_stages_give_the_logits_of_the_whole(kind, overrides):
    whole = toy(kind, **overrides)
    first, last = copy.deepcopy(whole), copy.deepcopy(whole)
    first.model.layers[1] = first.model.norm = PipelineIdentityLayer()
    last.model.layers[0] = PipelineIdentityLayer()
    inputs = inputs_of(kind)
    rest = {name: value for name, value in inputs.items() if name != "input_ids"}
    with torch.no_grad():
        states = first.model(**inputs).last_hidden_state
        assert_close(last(inputs_embeds=states, **rest).logits, whole(**inputs).logits, "logits of the last stage")
