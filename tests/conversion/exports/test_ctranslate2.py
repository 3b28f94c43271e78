"""Every option that CTranslate2 has, computed by it and by our model; every other one refused by its name."""

import copy
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from modeling.axes import ROTARY, Value, is_allowed, mixture, packed, single_values
from modeling.toys import KINDS, relative_error, sharpen, tokens, toy, toy_config
from refusals import refused
from torch import nn
from transformers import PreTrainedModel

import vanillaformer
from vanillaformer.conversion.exports import EXPORTERS, Engine, EngineModel, ExportJob, export, load_engine
from vanillaformer.conversion.exports.ctranslate2.specs import ACTIVATIONS

from . import END, NEW, continuation

pytest.importorskip("ctranslate2", reason="pip install 'vanillaformer[ctranslate2]'")

EXPORTER = EXPORTERS["ctranslate2"]
SCORES = 1e-4
START = 2
ROPE = {"rope_type": "default", "rope_theta": 50.0}
# Of which the axes have no value that the engine takes
MORE: list[Value] = [ROTARY | fields for fields in (
    {"rotary_layers": [False, True]}, {"rope_parameters": ROPE | {"rope_type": "yarn", "factor": 9.0}},
    {"sliding_window": 3, "layer_types": ["full_attention"], "rope_parameters": {"full_attention": ROPE}},
)]  # fmt: skip


def obstacles(kind: str, fields: Value) -> list[str]:
    return EXPORTER.obstacles(KINDS[kind][1], toy_config(kind, **fields))


def is_taken(kind: str, fields: Value) -> bool:
    return is_allowed(kind, fields) and not obstacles(kind, fields)


def runnable(*kinds: str) -> list[tuple[str, Value | int]]:
    """Configs in which every value stands that the engine has, and numbers of mixtures, made when they are needed."""
    found: list[tuple[str, Value | int]] = []
    for kind in kinds:
        taken = packed(kind, is_taken) + [fields for fields in MORE if is_taken(kind, fields)]
        found += [(kind, fields) for fields in (*taken, *range(12))]
    return found


def on_engine(model: PreTrainedModel, folder: Path, quantization: str = "float32") -> Engine:
    """The engine, without the comparison that belongs to an export."""
    folder.mkdir()
    job = ExportJob(model, folder, quantization)
    EXPORTER.write(job)
    EXPORTER.write_record(job)
    return load_engine(folder)


def rows_of(lengths: tuple[int, ...] = (7, 1, 3, 4), seed: int = 2) -> list[list[int]]:
    return [row[:length].tolist() for row, length in zip(tokens(len(lengths), max(lengths), seed=seed), lengths)]


@torch.no_grad()
def log_probabilities(model: PreTrainedModel, row: list[int], more: list[int]) -> torch.Tensor:
    if model.config.is_encoder_decoder:
        logits = model(torch.tensor([row]), decoder_input_ids=torch.tensor([[START, *more]])).logits[0, :-1]
    else:
        logits = model(torch.tensor([row + more])).logits[0, len(row) - 1 : -1]
    return logits.log_softmax(-1)[torch.arange(len(more)), torch.tensor(more)]


@pytest.mark.parametrize(("kind", "fields"), runnable("encoder_decoder", "decoder"))
def test_greedy_tokens_and_scores(kind, fields, tmp_path):
    model = toy(kind, **(mixture(kind, fields, is_taken) if isinstance(fields, int) else fields))
    engine = on_engine(model, tmp_path / "export")
    rows = rows_of()
    expected = [continuation(model, row) for row in rows]
    assert engine.generate(rows, max_new_tokens=NEW) == expected
    more = [found or [5] for found in expected]
    scores = [torch.tensor(found) for found in engine.score(rows, more)]
    truth = [log_probabilities(model, *pair) for pair in zip(rows, more)]
    assert relative_error(torch.cat(scores), torch.cat(truth)) <= SCORES


@pytest.mark.parametrize(("kind", "fields"), runnable("encoder"))
@torch.no_grad()
def test_logits_of_an_encoder(kind, fields, tmp_path):
    model = toy(kind, **(mixture(kind, fields, is_taken) if isinstance(fields, int) else fields))
    engine = on_engine(model, tmp_path / "export")
    rows = rows_of()
    kinds = model.config.type_vocab_size
    types = [[(place + 1) % kinds for place in range(len(row))] for row in rows] if kinds else None
    found = torch.from_numpy(engine.classify(rows, types))
    for number, row in enumerate(rows):
        given = {} if types is None else {"token_type_ids": torch.tensor([types[number]])}
        assert relative_error(found[number, : len(row)], model(torch.tensor([row]), **given).logits[0]) <= SCORES


@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("feed_forward", ["plain", "gated"])
def test_activations(act, feed_forward, tmp_path):
    model = toy("decoder", hidden_act=act, feed_forward=feed_forward)
    engine = on_engine(model, tmp_path / "export")
    row, more = rows_of()[0], [9, 20, 11]
    (scores,) = engine.score([row], [more])
    assert relative_error(torch.tensor(scores), log_probabilities(model, row, more)) <= SCORES


@pytest.mark.parametrize("name", [
    "VanillaEncoderForSequenceClassification", "VanillaEncoderForTokenClassification", "VanillaEncoderForPreTraining",
    "VanillaDecoderForSequenceClassification",
])  # fmt: skip
@pytest.mark.parametrize("fields", [
    {}, {"num_labels": 5, "classifier_pooling": "mean", "classifier_norm": True}, {"classifier_pooling": "last"},
])  # fmt: skip
@torch.no_grad()
def test_heads_that_the_engine_does_not_have_run_after_it(name, fields, tmp_path):
    model_class = getattr(vanillaformer, name)
    kind = "encoder" if "Encoder" in name else "decoder"
    fields = {key: value for key, value in fields.items() if kind == "encoder" or "classifier" not in key}
    model = toy(kind, model_class, **fields)
    engine = on_engine(model, tmp_path / "export")
    rows = rows_of()
    found = torch.from_numpy(engine.classify(rows))
    for row, got in zip(rows, found):
        out = model(torch.tensor([row]), attention_mask=torch.ones(1, len(row), dtype=torch.long))
        truth = (out.prediction_logits if "prediction_logits" in out else out.logits)[0]
        assert relative_error(got if got.ndim == 1 else got[: len(row)], truth) <= SCORES
    refused(f"{name} does not generate text", engine.generate, rows, max_new_tokens=2)


@torch.no_grad()
def rounded(model: PreTrainedModel, quantization: str) -> PreTrainedModel:
    """A copy whose stack has each row of a matrix in 127 steps and the rest in half precision, computed by hand."""
    model = copy.deepcopy(model)
    half = {"float16": torch.float16, "bfloat16": torch.bfloat16}.get(quantization.removeprefix("int8_"))
    matrices = [module.weight for module in model.modules() if isinstance(module, (nn.Linear, nn.Embedding))]
    in_float32 = set()
    if not model.can_generate():  # our own head stays unchanged, even one that shares the table of the embeddings
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.clone())
        in_float32 = {name for name, _ in model.named_parameters() if not name.startswith("model.")}
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if name in in_float32:
            continue
        if "int8" in quantization and "positions" not in name and any(value is matrix for matrix in matrices):
            step = value.abs().amax(1, keepdim=True) / 63
            value.copy_((value / step).round() * step)
        elif half is not None:
            value.copy_(value.to(half))
    return model


@torch.no_grad()
def answers(model: PreTrainedModel, rows: list[list[int]], more: list[list[int]]) -> torch.Tensor:
    """The logits of an encoder, the log-probabilities of continuations otherwise."""
    if model.can_generate():
        return torch.cat([log_probabilities(model, *pair) for pair in zip(rows, more)])
    return torch.cat([model(torch.tensor([row])).logits[0] for row in rows])


@pytest.mark.parametrize("quantization", [name for name in EXPORTER.quantizations if name != "float32"])
@pytest.mark.parametrize("kind", KINDS)
def test_rounded_weights_are_those_rounded_by_hand(kind, quantization, tmp_path):
    """In float32 the engine multiplies without rounding: what it computes then depends on the stored weights alone.

    What its kernels for 8 bits make of it is up to the comparison that ends an export.
    """
    model = toy(kind)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    report = export(model, tmp_path / "export", "ctranslate2", quantization=quantization)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert ("relative error" if kind == "encoder" else "greedy tokens equal") in report
    engine, rows = load_engine(tmp_path / "export"), rows_of()
    engine.model_options["compute_type"] = "float32"
    engine.close()
    more = [[5, 9, 7]] * len(rows)
    if kind == "encoder":
        found = np.concatenate([engine.classify([row])[0] for row in rows])
    else:
        found = np.concatenate(engine.score(rows, more))
    expected = answers(rounded(model, quantization), rows, more)
    assert relative_error(torch.from_numpy(found), expected) <= SCORES
    assert relative_error(expected, answers(model, rows, more)) > 1e-4, "weights that rounding does not change"


def test_a_bfloat16_model_is_compared_in_float32(tmp_path):
    model = toy("encoder_decoder").to(torch.bfloat16)
    assert "48 of 48" in export(model, tmp_path / "export", "ctranslate2")
    assert model.dtype == torch.bfloat16


@pytest.mark.parametrize("kind", ["encoder_decoder", "decoder"])
def test_beams(kind, tmp_path):
    """Without a length penalty both stop at the same texts; with one, transformers looks on for longer ones.

    With early stopping both stop with as many finished texts as beams, whatever the length penalty.
    """
    model = toy(kind, scale_embedding=True)
    engine = on_engine(model, tmp_path / "export")
    rows = rows_of((5, 6, 3, 4, 2, 6, 5, 4))
    for penalty, stop in ((0.0, False), (0.6, True), (2.0, True)):
        options = {"num_beams": 4, "length_penalty": penalty, "early_stopping": stop}
        expected = [continuation(model, row, **options) for row in rows]
        assert engine.generate(rows, max_new_tokens=NEW, **options) == expected
        assert stop or expected != [continuation(model, row) for row in rows], "beams find what greedy search finds"
    refused("early_stopping='never'", engine.generate, rows, max_new_tokens=NEW, num_beams=4, early_stopping="never")


def test_sampling_is_among_fifty_tokens_by_default(tmp_path):
    model = toy("decoder", vocab_size=400)
    engine = on_engine(model, tmp_path / "export")
    rows = [[5, 6, 7]] * 200
    options = {"max_new_tokens": 1, "do_sample": True, "temperature": 100.0, "seed": 1}
    best = model(torch.tensor(rows[:1])).logits[0, -1].topk(50).indices.tolist()
    drawn = {token for row in engine.generate(rows, **options) for token in row}
    assert len(drawn) > 25
    assert drawn <= set(best)
    assert not {token for row in engine.generate(rows, **options, top_k=0) for token in row} <= set(best)


@torch.no_grad()
def test_a_translation_starts_from_the_token_of_the_generation_config(tmp_path):
    model = toy("encoder_decoder")
    model.generation_config.update(decoder_start_token_id=7, eos_token_id=END, max_new_tokens=NEW)
    assert "48 of 48" in export(model, tmp_path / "export", "ctranslate2")
    ids = torch.tensor([[5, 6, 7, 8]])
    expected = model.generate(ids, max_new_tokens=NEW, do_sample=False)
    made = EngineModel(load_engine(tmp_path / "export")).generate(ids)
    assert made[0].tolist() == expected[0, : made.shape[1]].tolist()
    assert made[0, 0] == 7


@pytest.mark.parametrize("kind", ["encoder_decoder", "decoder"])
def test_sampling(kind, tmp_path):
    engine = on_engine(sharpen(toy(kind), focus=0.5), tmp_path / "export")
    rows = rows_of()
    options = {"max_new_tokens": NEW, "do_sample": True, "temperature": 3.0}
    drawn = [engine.generate(rows, **options, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    greedy = engine.generate(rows, max_new_tokens=NEW)
    assert drawn[0] != greedy
    assert engine.generate(rows, **options, top_k=1, seed=1) == greedy
    assert engine.generate(rows, **options, top_p=1e-6, seed=1) == greedy


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


ALIBI = {"position_embedding_type": "alibi"}


@pytest.mark.parametrize(("kind", "fields"), [("encoder_decoder", {}), ("decoder", {}), ("decoder", ALIBI)])
def test_threads_that_divide_the_rows(kind, fields, tmp_path, three_threads):
    model = toy(kind, **fields)
    engine = on_engine(model, tmp_path / "export")
    assert torch.get_num_threads() == 3, "as before"
    rows = rows_of((5, 6, 1, 3, 4, 2, 6, 5, 4, 2))
    for beams in (1, 3):
        search = {"num_beams": beams, "length_penalty": 0.0} if beams > 1 else {}
        expected = [continuation(model, row, **search) for row in rows]
        assert engine.generate(rows, max_new_tokens=NEW, **search) == expected
        assert engine.generate(rows[:1], max_new_tokens=NEW, **search) == expected[:1]
    assert set(engine.runners) == {not fields}
    options = {"max_new_tokens": NEW, "do_sample": True, "temperature": 3.0, "seed": 1}
    engine.prepared = 2048
    assert engine.generate(rows, **options) == engine.generate(rows, **options)
    assert engine.prepared == 0, "a seed loads the model again, and nothing is prepared in it"
    scores = engine.score(rows, [[5, 9, 7]] * len(rows))
    truth = torch.cat([log_probabilities(model, row, [5, 9, 7]) for row in rows])
    assert relative_error(torch.tensor(scores).flatten(), truth) <= SCORES


@pytest.mark.parametrize(("kind", "ends", "length"), [
    ("encoder_decoder", 7, 0), ("decoder", [3, 7], 0), ("decoder", [3, 8], NEW), ("decoder", None, NEW),
])  # fmt: skip
def test_a_text_has_any_of_several_ends_or_none_and_may_end_before_it_begins(kind, ends, length, tmp_path):
    model = toy(kind, lm_head_bias=True, tie_word_embeddings=False, eos_token_id=ends)
    with torch.no_grad():
        model.lm_head.bias[7] = 1e4  # its only answer
    engine = on_engine(model, tmp_path / "export")
    assert [len(made) for made in engine.generate(rows_of(), max_new_tokens=NEW)] == [length] * 4


@pytest.mark.parametrize("kind", ["encoder_decoder", "decoder"])
def test_a_text_longer_than_the_position_table(kind, tmp_path):
    engine = on_engine(toy(kind, position_embedding_type="learned"), tmp_path / "export")
    refused(r"CTranslate2: .*\(max_position_embeddings=24\)", engine.generate, [[5] * 25], max_new_tokens=3)
    refused("row 1 has no tokens", engine.generate, [[5], []], max_new_tokens=3)
    refused("is not a classifier", engine.classify, [[5]])


def test_no_special_tokens_at_all(tmp_path):
    ids = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    assert "48 of 48" in export(toy("decoder", **ids), tmp_path / "export", "ctranslate2")


def test_a_long_source_is_not_cut(tmp_path):
    model = toy("encoder_decoder", max_position_embeddings=1100)
    engine = on_engine(model, tmp_path / "export")
    row = tokens(1, 1090)[0].tolist()
    other = [5 if place > 1050 else token for place, token in enumerate(row)]
    more = [[5, 9, 7]]
    (long,), (changed,) = engine.score([row], more), engine.score([other], more)
    assert relative_error(torch.tensor(long), log_probabilities(model, row, more[0])) <= SCORES
    assert not np.allclose(long, changed)


@pytest.mark.parametrize("positions", ["rotary", "none", "alibi"])
def test_more_tokens_than_the_engine_prepares_for(positions, tmp_path):
    model = toy("decoder", position_embedding_type=positions, num_hidden_layers=1)
    engine = on_engine(model, tmp_path / "export")
    row, more = tokens(1, 2100)[0].tolist(), [5, 9, 7]
    (scores,) = engine.score([row], [more])
    assert relative_error(torch.tensor(scores), log_probabilities(model, row, more)) <= SCORES
    fresh = load_engine(tmp_path / "export")
    assert fresh.generate([row], max_new_tokens=3) == [continuation(model, row)[:3]]


# Beside the values of the axes that are refused for themselves
@pytest.mark.parametrize(("kind", "fields"), [
    ("decoder", {"block_layout": "parallel", "norm_placement": "sandwich"}),
    ("decoder", {"norm_bias": True, "norm": "rms_norm"}), ("encoder_decoder", {"decoder_start_token_id": None}),
    ("decoder", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "partial_rotary_factor": 0.5}}),
    ("encoder_decoder", {"sliding_window": 3, "layer_types": ["full_attention"],
                         "encoder_layer_types": ["sliding_attention"]}),
])  # fmt: skip
def test_refusals_name_the_field(kind, fields):
    (obstacle,) = obstacles(kind, fields)
    assert obstacle.startswith(f"{next(iter(fields))}=")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_refused_is_named_and_would_be_computed_wrong(kind, tmp_path, monkeypatch):
    """A refusal that is not needed would keep people from an engine that serves them."""
    needless, rejected = [], [(fields, obstacles(kind, fields)) for fields in single_values(kind)]
    monkeypatch.setattr(type(EXPORTER), "obstacles", lambda *_: [])
    for number, (fields, found) in enumerate(rejected):
        assert {obstacle.split("=")[0] for obstacle in found} <= fields.keys()
        if not found or any(name in found[0] for name in ("dynamic", "longrope")):
            continue  # those two are right up to a length
        try:
            EXPORTER.export(ExportJob(toy(kind, **fields), tmp_path / str(number)))
        except (AttributeError, KeyError, ValueError):
            continue
        needless.append(fields)
    assert not needless
