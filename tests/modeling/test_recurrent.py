"""The recurrent encoder-decoder against the same written with torch.nn, sentence by sentence, and its states."""

from typing import Any

import pytest
import torch
from refusals import refused
from torch import nn
from transformers import AutoModelForSeq2SeqLM
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from vanillaformer import VanillaRecurrentEncoderDecoderConfig, VanillaRecurrentEncoderDecoderModel

from . import toys
from .toys import assert_close, assert_refused

TORCH = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
SIZES: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 2, "encoder_layers": 2, "input_feeding": False,
    "decoder_vocab_size": None, "share_encoder_decoder_embeddings": True,
}  # fmt: skip
variants = pytest.mark.parametrize("fields", [
    {"cell": "gru", "cross_attention": "additive", "input_feeding": True},
    {"cell": "lstm", "cross_attention": "general", "input_feeding": True, "num_hidden_layers": 1},
    {"cell": "gru", "cross_attention": "additive"},
    {"cell": "rnn", "cross_attention": "general", "encoder_hidden_size": 5},
    {"cell": "lstm", "cross_attention": "dot", "lm_head_bias": True},
    {"cell": "gru", "cross_attention": "none", "bidirectional_encoder": False, "encoder_layers": 1},
], ids=lambda fields: "-".join(map(str, fields.values())))  # fmt: skip
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1], [1, 0, 1, 1, 0, 1]])


def toy(**fields: Any) -> Any:
    """A toy of one vocabulary, in double precision."""
    return toys.toy("recurrent_encoder_decoder", **(SIZES | fields)).double()


def words(batch: int, length: int, seed: int = 2) -> torch.Tensor:
    return toys.tokens(batch, length, SIZES["vocab_size"], seed)


class Plain(nn.Module):
    """The model as a tutorial of torch.nn writes it, for one sentence without padding."""

    def __init__(self, config: VanillaRecurrentEncoderDecoderConfig):
        super().__init__()
        cell, width, encoder_width = TORCH[config.cell], config.hidden_size, config.encoder_width
        self.config, self.encoder, self.decoder = config, nn.Module(), nn.Module()
        self.encoder.embed_tokens = nn.Embedding(config.vocab_size, width)
        sizes = width, config.encoder_hidden_size, config.encoder_layers
        self.encoder.rnn = cell(*sizes, bidirectional=config.bidirectional_encoder)
        self.decoder.embed_tokens = self.encoder.embed_tokens
        fed = width if config.input_feeding else 0
        self.decoder.rnn = cell(width + fed, width, config.num_hidden_layers)
        states = 1 + (config.cell == "lstm")
        self.decoder.bridge = nn.Linear(encoder_width, states * config.num_hidden_layers * width)
        attention = self.decoder.attention = nn.Module()
        if config.cross_attention != "none":
            attention.o_proj = nn.Linear(encoder_width + width, width, bias=False)
        if config.cross_attention == "general":
            attention.q_proj = nn.Linear(width, encoder_width, bias=False)
        if config.cross_attention == "additive":
            attention.q_proj = nn.Linear(width, width, bias=False)
            attention.k_proj = nn.Linear(encoder_width, width, bias=False)
            attention.score_proj = nn.Linear(width, 1, bias=False)

    def score(self, state: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        attention, kind = self.decoder.attention, self.config.cross_attention
        if kind == "additive":
            return attention.score_proj(torch.tanh(attention.q_proj(state) + attention.k_proj(source)))[0]
        return torch.dot(attention.q_proj(state) if kind == "general" else state, source)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        width, layers = self.config.hidden_size, self.config.num_hidden_layers
        encoded, _ = self.encoder.rnn(self.encoder.embed_tokens(source))  # (S, E), no batch
        half = self.config.encoder_hidden_size
        ends = torch.cat([encoded[-1, :half], encoded[0, half:]])
        state = torch.tanh(self.decoder.bridge(ends)).view(-1, layers, width)
        hidden = tuple(state) if self.config.cell == "lstm" else state[0]
        fed, outputs = encoded.new_zeros(width), []
        for token in target:
            x = self.decoder.embed_tokens(token)
            x = torch.cat([x, fed]) if self.config.input_feeding else x
            top, hidden = self.decoder.rnn(x[None], hidden)
            output = top[0]
            if self.config.cross_attention != "none":
                weights = torch.stack([self.score(top[0], annotation) for annotation in encoded]).softmax(0)
                output = torch.tanh(self.decoder.attention.o_proj(torch.cat([weights @ encoded, top[0]])))
            outputs.append(output)
            fed = output
        return torch.stack(outputs)


@variants
def test_states_and_gradients_are_those_of_torch_nn_for_each_sentence_of_a_padded_batch(fields):
    model = toy(**fields).model
    plain = Plain(model.config).double()
    plain.load_state_dict(model.state_dict())
    source, target = words(4, 6), words(4, 5, seed=3)
    ours = model(input_ids=source, attention_mask=MASK, decoder_input_ids=target).last_hidden_state
    theirs = torch.stack([plain(row[mask.bool()], line) for row, mask, line in zip(source, MASK, target)])
    assert_close(ours, theirs, "states", 1e-12)
    directions = torch.randn(ours.shape, generator=torch.Generator().manual_seed(4)).double()
    (ours * directions).sum().backward()
    (theirs * directions).sum().backward()
    expected = dict(plain.named_parameters())
    for name, parameter in model.named_parameters():
        assert_close(parameter.grad, expected[name].grad, f"gradient of {name}", 1e-10)


@variants
def test_generation_with_states_is_generation_without(fields):
    model = toy(**fields)
    source = words(4, 6)
    for search in ({}, {"num_beams": 4, "num_return_sequences": 2}, {"do_sample": True, "num_return_sequences": 2}):
        found = []
        for use_cache in (True, False):
            torch.manual_seed(0)
            options = {"max_new_tokens": 6, "return_dict_in_generate": True, "output_logits": True}
            inputs = {"input_ids": source, "attention_mask": MASK}
            found.append(model.generate(**inputs, **options, **search, use_cache=use_cache))
        cached, whole = found
        assert torch.equal(cached.sequences, whole.sequences)
        for one, other in zip(cached.logits, whole.logits):
            assert_close(one, other, "logits of a step", 1e-10)


@variants
def test_padding_of_the_target_passes_states_by(fields):
    model = toy(**fields)
    encoded = model.get_encoder()(words(1, 6))
    target = words(1, 4, seed=3)
    padded, mask = torch.zeros(1, 7, dtype=torch.long), torch.tensor([[0, 0, 1, 1, 0, 1, 1]])
    padded[mask.bool()] = target[0]
    alone = model(encoder_outputs=encoded, decoder_input_ids=target)
    first = model(encoder_outputs=encoded, decoder_input_ids=padded[:, :5], decoder_attention_mask=mask[:, :5])
    inputs = {"decoder_input_ids": padded[:, 5:], "decoder_attention_mask": mask, "encoder_outputs": encoded}
    second = model(**inputs, past_key_values=first.past_key_values)
    logits = torch.cat([first.logits, second.logits], dim=1)
    assert_close(logits[mask.bool()], alone.logits[0], "logits", 1e-12)
    assert second.past_key_values.get_seq_length() == 7
    before = [state.clone() for state in second.past_key_values.layers[0].states]
    inputs |= {"decoder_input_ids": padded[:, :2], "decoder_attention_mask": torch.zeros(1, 9)}
    model(**inputs, past_key_values=second.past_key_values)
    assert all(map(torch.equal, second.past_key_values.layers[0].states, before))


def test_a_target_is_read_in_one_call_and_keys_are_projected_once_for_all_steps():
    model, calls = toy(cross_attention="additive"), []
    for part in (model.model.decoder.rnn, model.model.decoder.attention.k_proj):
        part.register_forward_hook(lambda module, *_: calls.append(type(module).__name__))
    model(input_ids=words(2, 6), labels=words(2, 5))
    assert calls == ["Linear", "GRU"]
    calls.clear()
    model.generate(words(2, 6), max_new_tokens=5, min_new_tokens=5, num_beams=2)
    assert calls == ["Linear", *["GRU"] * 5]


def test_attention_weights_are_of_the_source_without_padding_and_a_row_of_it_is_finite():
    model = toy(cross_attention="general")
    inputs = {"input_ids": words(4, 6), "attention_mask": MASK, "decoder_input_ids": words(4, 5)}
    (weights,) = model(**inputs, output_attentions=True).cross_attentions
    assert weights.shape == (4, 1, 5, 6)
    assert_close(weights.sum(-1), torch.ones(4, 1, 5).double(), "sums", 1e-12)
    assert not weights[MASK[:, None, None].expand_as(weights) == 0].any()
    assert model(**inputs).cross_attentions is None
    model = toy()
    outputs = model(input_ids=words(2, 4), attention_mask=torch.tensor([[1] * 4, [0] * 4]), labels=words(2, 3))
    assert outputs.logits.isfinite().all()


@pytest.mark.parametrize("cell", TORCH)
def test_fresh_weights(cell):
    config = VanillaRecurrentEncoderDecoderConfig(**SIZES, cell=cell)
    layers = VanillaRecurrentEncoderDecoderModel(config).decoder.rnn
    for gate in layers.weight_hh_l1.split(8):
        assert_close(gate @ gate.T, torch.eye(8), "product with its transpose", 1e-5)
    assert layers.weight_ih_l0.abs().max() <= (6 / 16) ** 0.5
    expected = torch.zeros(len(layers.bias_ih_l0))
    if cell == "lstm":
        expected[8:16] = 1
    assert torch.equal(layers.bias_ih_l0, expected)
    assert not layers.bias_hh_l0.any()
    config.recurrent_initialization = "uniform"
    layers = VanillaRecurrentEncoderDecoderModel(config).decoder.rnn
    for parameter in layers.parameters():
        assert 0.1 < parameter.abs().max() <= 8**-0.5


def test_a_saved_model_is_the_same_with_more_target_tokens(tmp_path):
    model = toy(share_encoder_decoder_embeddings=False, decoder_vocab_size=30)
    model.resize_decoder_token_embeddings(35)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert type(loaded) is type(model)
    assert loaded.lm_head.weight is loaded.model.decoder.embed_tokens.weight
    assert loaded.config.to_dict() == model.config.to_dict() | {"_name_or_path": str(tmp_path)}
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


@pytest.mark.parametrize(("fields", "words_of_error"), [
    ({"cross_attention": "dot", "encoder_hidden_size": 8}, ["dot", "2 * encoder_hidden_size=8", "hidden_size=8"]),
    ({"cross_attention": "none", "input_feeding": True}, ["input_feeding=True", "'none'"]),
    ({"num_attention_heads": 4}, ["num_attention_heads", "Transformers"]),
    ({"bidirectional": True}, ["bidirectional"]),
    ({"decoder_vocab_size": 30}, ["one vocabulary", "decoder_vocab_size=30"]),
    ({"pad_token_id": 40}, ["pad_token_id=40"]), ({"attn_implementation": "sdpa"}, ["'sdpa'", "'eager'"]),
])  # fmt: skip
def test_fields_that_do_not_fit(fields, words_of_error):
    assert_refused(words_of_error, toy, **fields)


def test_a_cache_of_keys_and_values_is_refused():
    model = toy()
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    inputs = {"input_ids": words(1, 3), "decoder_input_ids": words(1, 2)}
    refused("EncoderDecoderCache", model, **inputs, past_key_values=cache)
    refused(r"\(batch, length\)", model, **inputs, attention_mask=torch.ones(1, 1, 3, 3))
    refused("cache_implementation='static'", model.generate, words(1, 3), cache_implementation="static")
