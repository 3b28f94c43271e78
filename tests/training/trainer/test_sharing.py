"""A model that another process has read is that model: its buffers, its ties, in any way it is built."""

import pickle

import pytest
import torch
import transformers
from refusals import refused
from torch import nn

from vanillaformer.configuration import preset
from vanillaformer.training.trainer.sharing import by_first, with_empty_weights

SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
MODELS = [
    *((transformers.AutoModelForCausalLM, "gpt-tiny", {**SMALL, "position_embedding_type": name})
      for name in ("rotary", "alibi", "sinusoidal", "relative")),
    (transformers.AutoModelForMaskedLM, "bert-tiny", SMALL),
    (transformers.AutoModelForSeq2SeqLM, "transformer-tiny", {}),
    (transformers.AutoModelForSeq2SeqLM, "gru-attention", {}),
    (transformers.AutoModelForImageClassification, "vit-mini", SMALL),
    (transformers.AutoModelForImageClassification, "swin-tiny", {}),
]  # fmt: skip


def ties(model: nn.Module) -> set[frozenset[str]]:
    """Return the names of each parameter."""
    named = list(model.named_parameters(remove_duplicate=False))
    return {frozenset(name for name, other in named if other is weight) for _, weight in named}


@pytest.mark.parametrize(("kind", "name", "fields"), MODELS)
def test_buffers_and_ties_of_a_model_without_weights(kind, name: str, fields: dict) -> None:
    config = preset(name, **fields)
    model = kind.from_config(config)
    sent = pickle.loads(pickle.dumps(with_empty_weights(model, "meta")))
    assert all(weight.is_meta for weight in sent.parameters())
    # As it is filled on other processes (DDP), and built on the meta device by transformers (--parallel)
    built = type(model).from_pretrained(None, config=config, state_dict=model.state_dict())
    for other in (with_empty_weights(sent, "cpu"), built):
        buffers, expected = dict(other.named_buffers()), dict(model.named_buffers())
        assert buffers.keys() == expected.keys()
        assert all(torch.equal(buffers[key], value) for key, value in expected.items())
        assert ties(other) == ties(model)
        assert [weight.shape for weight in other.parameters()] == [weight.shape for weight in model.parameters()]


def test_an_error_of_the_first_process() -> None:
    refused("missing", by_first, lambda: {}["missing"], error=KeyError)
