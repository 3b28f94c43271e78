"""The comparison before an export is done: it sees what is wrong, and only that."""

import numpy as np
import pytest
import torch
from modeling.toys import toy

from vanillaformer.conversion.exports.checks import NEAR, agreement, check, gaps_to_best, greedy, random_rows

from .twin import Twin


def changed(kind: str, by: float):
    """A toy with one layer's weights a little off."""
    model = toy(kind)
    with torch.no_grad():
        block = (model.model.decoder if kind == "encoder_decoder" else model.model).layers[1]
        block.mlp.down_proj.weight.add_(by * torch.randn_like(block.mlp.down_proj.weight))
    return model


@pytest.mark.parametrize("kind", ["encoder_decoder", "decoder", "encoder"])
def test_the_same_model_passes(kind):
    report = check(toy(kind), Twin(toy(kind)), exact=True)
    assert "48 of 48 greedy tokens equal, log-probabilities 0.0e+00 apart" in report or "error of 0.0e+00" in report


@pytest.mark.parametrize("kind", ["encoder_decoder", "decoder", "encoder"])
@pytest.mark.parametrize(("by", "exact", "passes"), [(0.01, True, False), (0.01, False, True), (3.0, False, False)])
def test_another_model_does_not(kind, by, exact, passes):
    if passes:
        assert "equal" in check(toy(kind), Twin(changed(kind, by)), exact)
        return
    with pytest.raises(ValueError, match=r"the engine's? (continues|answers|log-probabilities|logits)"):
        check(toy(kind), Twin(changed(kind, by)), exact)


def test_tokens_alone_are_compared_where_the_engine_has_no_scores():
    assert check(toy("decoder"), Twin(toy("decoder"), scores=False), exact=True) == "48 of 48 greedy tokens equal"
    with pytest.raises(ValueError, match="the engine continues"):
        check(toy("decoder"), Twin(changed("decoder", 1.0), scores=False), exact=True)


def test_the_model_is_read_as_it_will_be_used():
    model = toy("decoder", dropout=0.5).train()
    assert "48 of 48" in check(model, Twin(toy("decoder")), exact=True)
    assert model.training


@torch.no_grad()
def test_equally_good_tokens_may_change_places():
    model = toy("decoder", tie_word_embeddings=False)
    best = greedy(model, [5, 6], 1, Twin(model))[0]
    model.lm_head.weight[best - 1] = model.lm_head.weight[best]  # now two are best
    assert gaps_to_best(model, [5, 6], [best], 1, Twin(model)) == [0.0]
    assert gaps_to_best(model, [5, 6], [best - 1], 1, Twin(model)) == pytest.approx([0.0], abs=1e-5)
    assert gaps_to_best(model, [5, 6], [(best + 5) % 37], 1, Twin(model))[0] > 0.1


@torch.no_grad()
def test_each_token_is_judged_after_those_that_the_engine_made():
    """One other token does not make all that follow it wrong."""
    model = toy("decoder", eos_token_id=3)
    first = greedy(model, [5, 6], 1, Twin(model))[0]
    other = first + 1 if first + 1 != 3 else first + 2
    made = [other, *greedy(model, [5, 6, other], 3, Twin(model))]
    losses = gaps_to_best(model, [5, 6], made, 4, Twin(model))
    assert losses[0] > 1e-3
    assert losses[1:] == [0.0] * 3
    ended = gaps_to_best(model, [5, 6], made[:2], 4, Twin(model))  # an engine that ends there has chosen the end
    row = model(torch.tensor([[5, 6, *made[:2]]])).logits[0, -1].log_softmax(-1)
    assert ended[:2] == pytest.approx(losses[:2], abs=1e-5)
    assert ended[2] == pytest.approx((row.max() - row[3]).item(), abs=1e-5)


def test_the_share_of_equal_tokens_of_rounded_weights_is_at_least_nine_tenths():
    assert agreement([0.0] * 9 + [3.0], "tokens", exact=False).startswith("9 of 10 tokens equal (or within 0.25 of")
    assert agreement([NEAR] * 9 + [3.0], "tokens", exact=False)
    with pytest.raises(ValueError, match=r"8 of 10 tokens equal \(or within 0.25 .*\); at least 90% must be"):
        agreement([0.0] * 8 + [0.3] * 2, "tokens", exact=False)


def test_other_tokens_are_refused_whatever_the_scores_are():
    with pytest.raises(ValueError, match=r"not our model's: \d+ of 48 greedy tokens equal .* at least 90% must be"):
        check(toy("decoder"), Twin(toy("decoder"), shift=5), exact=False)


def test_random_rows_leave_out_special_tokens_and_leave_room():
    model = toy("decoder", max_position_embeddings=10)
    rows = random_rows(model.config, new_tokens=5)
    assert [len(row) for row in rows] == [5, 1, 5, 2]
    assert not {0, 2, 3} & {token for row in rows for token in row}
    assert len(np.unique([token for row in rows for token in row])) > 4
