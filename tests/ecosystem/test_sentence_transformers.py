"""sentence-transformers on our encoder: an embedding is the mean of the states of a text's tokens."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from modeling.toys import assert_close
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss

from vanillaformer import VanillaDecoderModel, VanillaEncoderForMaskedLM, VanillaEncoderModel

from .tiny import TEXTS, batch_of, kind_of, sentences, tiny, tokenizer_of


def means(model_class) -> torch.Tensor:
    """Mean states (B, D) of the texts, without their padding."""
    model, kind = tiny(model_class), kind_of(model_class)
    batch = batch_of(kind)
    if (tokenizer := tokenizer_of(kind)).chat_template is not None:  # with which they are messages
        messages = [[{"role": "user", "content": text}] for text in TEXTS]
        batch = tokenizer.apply_chat_template(messages, padding=True, return_dict=True, return_tensors="pt")
    with torch.no_grad():
        states = getattr(model, "model", model)(**batch).last_hidden_state
    kept = batch["attention_mask"].unsqueeze(-1)
    return (states * kept).sum(1) / kept.sum(1)


@pytest.mark.parametrize("model_class", [VanillaEncoderModel, VanillaDecoderModel, VanillaEncoderForMaskedLM])
def test_embeddings_are_mean_states(model_class, saved, tmp_path):
    """A folder is enough, also one with a head: sentence-transformers adds mean pooling of its stack's states."""
    made = SentenceTransformer(str(saved(model_class)), device="cpu")
    embeddings = made.encode(TEXTS)
    assert_close(torch.from_numpy(embeddings), means(model_class), "embeddings")
    assert np.allclose(made.encode(TEXTS[0]), embeddings[0], atol=1e-6), "padding changes an embedding"

    made.save_pretrained(str(tmp_path))
    loaded = SentenceTransformer(str(tmp_path), device="cpu")
    assert np.array_equal(loaded.encode(TEXTS), embeddings)
    similarity = loaded.similarity(embeddings, embeddings)
    assert torch.allclose(similarity.diagonal(), torch.ones(len(TEXTS)), atol=1e-6)
    assert similarity.min() < 0.99, "all texts have one embedding"


def test_its_trainer_brings_texts_that_belong_together_closer(saved, tmp_path):
    made = SentenceTransformer(str(saved(VanillaEncoderModel)), device="cpu")
    texts = sentences(32)
    pairs = Dataset.from_dict({"anchor": texts, "positive": [" ".join(text.split()[::-1]) for text in texts]})
    settings = SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path / "run"), max_steps=6, per_device_train_batch_size=16, learning_rate=1e-3,
        logging_steps=1, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = SentenceTransformerTrainer(made, settings, pairs, loss=MultipleNegativesRankingLoss(made))
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    made.save_pretrained(str(tmp_path / "saved"))
    assert np.array_equal(SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(TEXTS), made.encode(TEXTS))
