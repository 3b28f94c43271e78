"""The loss by position, whose weighted mean is the model's loss."""

import numpy as np
import pytest
import torch
from modeling.toys import ALL_KINDS, inputs_of, toy

from vanillaformer import VanillaEncoderForPreTraining, VanillaEncoderForSequenceClassification
from vanillaformer.exploration.losses import held_out_loss, loss_by_position

from .test_ablation import rows_of


@pytest.mark.parametrize("kind", ["encoder_decoder", "decoder", "encoder", "recurrent_encoder_decoder", "pretraining"])
def test_the_means_weighted_by_their_numbers_are_the_loss(kind):
    head = VanillaEncoderForPreTraining if kind == "pretraining" else None
    kind = "encoder" if head else kind
    model, rows = toy(kind, head).double(), rows_of(kind)
    means, counts = loss_by_position(model, rows)
    assert counts.sum() == sum(int((model.targets(batch["labels"]) != -100).sum()) for batch in rows)
    assert np.isnan(means[counts == 0]).all()
    loss = held_out_loss(model, rows)  # computed in float32
    assert np.nansum(means * counts) / counts.sum() == pytest.approx(loss, rel=1e-6)


def test_a_position_is_that_of_the_predicted_token():
    model, labels = toy("decoder").double(), rows_of("decoder")[0]["labels"][:1].clone()
    labels[:, :] = -100
    labels[0, 3] = 5
    batch = {"input_ids": rows_of("decoder")[0]["input_ids"][:1], "labels": labels}
    means, counts = loss_by_position(model, [batch])
    assert counts.tolist() == [0, 0, 0, 1, 0, 0, 0]
    log_probabilities = model(**batch).logits[0, 2].log_softmax(dim=-1)
    assert means[3] == pytest.approx(-log_probabilities[5].item())


def test_a_loss_that_is_not_of_single_tokens_has_no_positions():
    classifier = toy("encoder", VanillaEncoderForSequenceClassification, num_labels=3)
    rows = [inputs_of("encoder") | {"labels": torch.tensor([0, 2, 1])}]
    ctc = ALL_KINDS["encoder_decoder"][1]
    for model in (classifier, toy("encoder_decoder", ctc, decoding="ctc", tie_word_embeddings=True)):
        with pytest.raises(ValueError, match="has no loss of each token"):
            loss_by_position(model, rows)
