"""Random configs over all fields: valid ones build, train, generate and reload; invalid ones are refused by name.

And the configs of other tests: every two values that a config takes meet in one of them, and no field is left out.

`VANILLAFORMER_FUZZ` is the number of valid ones, `VANILLAFORMER_FUZZ_SEED` the seed that all are drawn from.
"""

import copy
import itertools
import os
import tempfile
from random import Random
from typing import Any, get_args

import pytest
import torch
from transformers import PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import vanillaformer
from vanillaformer.configuration import options
from vanillaformer.configuration.options import FIELD_READERS

from . import axes as module
from .axes import APART, AROUND, CONFIGS, axes, is_allowed, merged, names_of, own_fields
from .random_configs import KEYWORDS, LENGTH, NEW, batch_for, drawn_values, valid_fields
from .toys import assert_close, assert_refused

every_kind = pytest.mark.parametrize("kind", CONFIGS)
SEED = int(os.environ.get("VANILLAFORMER_FUZZ_SEED", "0"))
VALID = int(os.environ.get("VANILLAFORMER_FUZZ", "60"))
# Without residuals a stream of a few dimensions may fade to what float32 has no numbers for
NOTHING = 1e-38
HEADS: dict[str, list[type[PreTrainedModel]]] = {
    "encoder_decoder": [vanillaformer.VanillaEncoderDecoderForConditionalGeneration],
    "decoder": [vanillaformer.VanillaDecoderForCausalLM, vanillaformer.VanillaDecoderForSequenceClassification],
    "encoder": [vanillaformer.VanillaEncoderForMaskedLM, vanillaformer.VanillaEncoderForSequenceClassification,
                vanillaformer.VanillaEncoderForTokenClassification],
}  # fmt: skip


def check_generates(model: PreTrainedModel, ids: torch.Tensor) -> None:
    """Generate with a cache, and compare the logits with those of a pass over all that was written."""
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, min_new_tokens=NEW, max_new_tokens=NEW,
        use_cache=True, return_dict_in_generate=True, output_logits=True,
    )  # fmt: skip
    written = output.sequences
    if model.config.is_encoder_decoder:
        full = model(ids, decoder_input_ids=written[:, :-1], use_cache=False).logits
    else:
        full = model(written[:, :-1], use_cache=False).logits[:, LENGTH - 1 :]
    assert full.shape[1] == NEW
    logits = torch.stack(output.logits, dim=1)
    if full.abs().max() > NOTHING:
        assert_close(logits, full, "logits of the generated tokens", 1e-4)
    else:
        assert logits.abs().max() <= NOTHING


@pytest.mark.parametrize("number", range(VALID))
@pytest.mark.filterwarnings("ignore")
def test_a_valid_config_builds_trains_generates_and_comes_back(number):
    draw = Random(f"{SEED} {number}")
    kind = draw.choice(sorted(CONFIGS))
    fields, model_class = valid_fields(draw, kind), draw.choice(HEADS[kind])
    print(f"{model_class.__name__} with {fields}")
    torch.manual_seed(SEED)
    model = model_class(CONFIGS[kind](**fields)).train()
    inputs = batch_for(model)
    loss = model(**inputs).loss
    assert torch.isfinite(loss), "the loss is not finite"
    loss.backward()
    for name, parameter in model.named_parameters():
        left_out = parameter.grad is None and (model.config.layer_drop > 0 or not parameter.requires_grad)
        assert left_out or parameter.grad is not None, f"{name} has no gradient"
        assert left_out or torch.isfinite(parameter.grad).all(), f"the gradient of {name} is not finite"
    model.eval().requires_grad_(False)
    if model.can_generate():
        # in float64: a norm over two or three dimensions can multiply the rounding of float32 by thousands
        check_generates(copy.deepcopy(model).double(), inputs["input_ids"])
    expected = model(**inputs).logits
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        loaded = model_class.from_pretrained(folder).eval().requires_grad_(False)
    for parameter in loaded.parameters():
        parameter.data = parameter.data.clone()  # out of the file: kernels round by where in memory a tensor lies
    assert torch.equal(loaded(**inputs).logits, expected), "the loaded model is another one"


@every_kind
def test_every_field_is_drawn(kind):
    names = {*own_fields(kind), *KEYWORDS} - {"decoding", "max_length_difference", "ctc_upsampling"}
    names -= set() if kind == "encoder_decoder" else {"encoder_layer_types"}
    assert {name for values in drawn_values(kind).values() for value in values for name in value} >= names


def wrong_values(kind: str, name: str) -> list[Any]:
    if name in WRONG:
        return WRONG[name]
    members = get_args(own_fields(kind)[name]) or (own_fields(kind)[name],)
    nothing = [] if type(None) in members else [None]
    if names := names_of(own_fields(kind)[name]):
        return [*nothing, 3, 1.5, [], {}, "nonsense"] + ([] if True in names else [True])
    if str in members:
        return [*nothing, 3, [], "nonsense"]
    if float in members:
        return [*nothing, "1", [], -1.0, float("nan"), float("inf"), {}]
    zero = [] if name in ("position_offset", "type_vocab_size", "wide_max_ngram") else [0]
    return [*nothing, 1.5, "1", [], -1, {}, (1,), *zero]


ROPE = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
WRONG: dict[str, list[Any]] = {
    "attention_bias": [None, "q_proj", 3, ["q_proj", "q_proj"], ["out_proj"], {}, [3]],
    "rotary_layers": [True, "yes", [], [1, 0], {}],
    "layer_types": [5, True, [], "full_attention", ["nonsense"], [3], [None], [[]], {}],
    "rope_parameters": [
        3, "linear", [ROPE], {"rope_type": "spiral"}, {"rope_type": 3}, {"rope_type": ["linear"]},
        ROPE | {"rope_theta": "big"}, ROPE | {"rope_theta": 0}, ROPE | {"rope_theta": None}, ROPE | {"factor": "big"},
        ROPE | {"factor": None}, ROPE | {"factor": 0}, ROPE | {"factor": -1.0}, ROPE | {"factor": float("nan")},
        ROPE | {"partial_rotary_factor": 2}, ROPE | {"partial_rotary_factor": "half"},
        {"rope_type": "linear", "rope_theta": 1e4}, {"rope_type": "yarn", "rope_theta": 1e4},
        {"rope_type": "longrope", "rope_theta": 1e4}, {"rope_type": "llama3", "rope_theta": 1e4},
        {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": 3, "long_factor": "x", "factor": 2.0},
        {"full_attention": 3, "sliding_attention": ROPE}, {"half_attention": ROPE},
    ],
    "eos_token_id": ["3", 3.5, [3, "x"], 10**6, -1, {}, [10**6]],
    **{name: ["3", 3.5, [3], 10**6, -1] for name in ("pad_token_id", "bos_token_id", "decoder_start_token_id")},
    **{f"relative_attention_{name}": [0, 1.5, "8", None] for name in ("num_buckets", "max_distance")},
}  # fmt: skip
WRONG["encoder_layer_types"] = WRONG["layer_types"]


@every_kind
@pytest.mark.filterwarnings("ignore")
def test_a_wrong_value_in_a_valid_config_is_refused_with_an_error_that_names_the_field(kind):
    names = [*own_fields(kind), *(KEYWORDS if kind == "encoder_decoder" else KEYWORDS[:2])]
    valid = [valid_fields(Random(f"{SEED} {number}"), kind) for number in range(20)]
    for number, (name, value) in enumerate((key, value) for key in names for value in wrong_values(kind, key)):
        fields = valid[number % len(valid)]
        if name == "rope_parameters":
            fields = {key: fields[key] for key in fields if key not in FIELD_READERS}
            fields |= {"position_embedding_type": "rotary", "head_dim": 4, "initialization": None}
        print(f"{name}={value!r} in {fields}")
        parts = [name] if value and isinstance(value, list | dict) else [name, str(value)]  # of many, the wrong one
        assert_refused(parts, CONFIGS[kind], **fields | {name: value})


@every_kind
def test_every_two_values_that_a_config_accepts_meet_in_a_config(kind):
    met, paired = set(), [(axis, values) for axis, values in axes(kind).items() if axis != module.UNPAIRED]
    for row, fields in zip(module.pair_cover(kind).rows, module.cover(kind), strict=True):
        assert is_allowed(kind, fields)
        assert fields.items() <= (AROUND | merged(kind, row.items())).items()
        met |= set(itertools.combinations([(axis, row[axis]) for axis, _ in paired if axis in row], 2))
    places = [(axis, number) for axis, values in paired for number in range(len(values))]
    missing = [pair for pair in itertools.combinations(places, 2) if pair[0][0] != pair[1][0] and pair not in met]
    together = [fields for pair in missing if (fields := merged(kind, pair)) is not None]
    assert 10 < len(together) < 100
    for fields in together:
        assert not is_allowed(kind, AROUND | fields), f"{fields} never meet, but can"


@every_kind
def test_every_field_has_values_that_are_accepted_beside_the_toys_other_ones_or_stands_apart(kind):
    for axis, values in axes(kind).items():
        assert values, f"{axis} is a new field of {CONFIGS[kind].__name__}: it needs a line in VALUES"
        for value in values:
            assert is_allowed(kind, AROUND | value), f"{axis}: what {value} needs beside it belongs into NEEDS"


# They have tests of their own: classifiers, ways of decoding, recurrent models
OF_OTHERS = ("Pooling", "Decoding", "Cell", "CrossAttentionScore", "RecurrentInitialization")


def test_every_name_of_an_option_and_scaling_is_a_value_and_what_stands_apart_is_no_axis():
    found = {
        (name, value) for kind in module.ALL_CONFIGS for values in axes(kind).values() for fields in values
        for name, value in fields.items() if isinstance(value, str)
    }  # fmt: skip
    values = {value for _, value in found}
    values |= {value for fields in module.VALUES["sliding_window"] for value in fields.get("layer_types", [])}
    for name, literal in vars(options).items():
        if get_args(literal) and name not in OF_OTHERS:
            assert values >= set(get_args(literal)), name
    assert set(module.ROPES) == {"default", *ROPE_INIT_FUNCTIONS}
    assert {name for kind in CONFIGS for name in own_fields(kind)} >= APART
    assert not APART & {axis for kind in CONFIGS for axis in axes(kind)}
