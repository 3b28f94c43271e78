"""Encoder-decoders with a tokenizer, with a collator, and trained until they memorize a batch."""

import torch
from transformers import DataCollatorForSeq2Seq, PreTrainedModel

from .base import Checks, not_applicable

STEPS = 250


class Seq2SeqChecks(Checks):
    """What transformers has no mixin or pipeline for."""

    def new_seq2seq_model(self) -> PreTrainedModel:
        """Make a model in evaluation mode; skip where the family is no encoder-decoder."""
        if self.family.kind != "encoder_decoder":
            not_applicable("the family is no encoder-decoder")
        return self.family.auto_classes["AutoModelForSeq2SeqLM"](self.family.config()).eval()

    def test_seq2seq_text_to_text(self) -> None:
        """Tokenizer, beam search, decoding."""
        model = self.new_seq2seq_model()
        tokenizer = self.toy_tokenizer(model.config)
        source = tokenizer(["w1 w2 w3", "w4 w5"], return_tensors="pt", padding=True, return_token_type_ids=False)
        target = model.generate(**source, max_new_tokens=5, num_beams=2)
        assert len(tokenizer.batch_decode(target, skip_special_tokens=True)) == 2

    def test_seq2seq_overfit(self) -> None:
        """A model trained on one batch generates the targets, which are unlike the sources."""
        model = self.new_seq2seq_model().train()
        _, inputs = self.model_tester.prepare_config_and_inputs_for_common()
        inputs = {name: value[:3] for name, value in inputs.items() if not name.startswith("decoder_")}
        labels = torch.randint(3, model.config.vocab_size, (3, 6), generator=torch.Generator().manual_seed(4))
        labels[:, -1] = model.config.eos_token_id
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
        losses = []
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = model(**inputs, labels=labels).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.1 * losses[0]
        model.eval()
        for options in ({}, {"use_cache": False}, {"num_beams": 3}):
            target = model.generate(**inputs, max_new_tokens=6, do_sample=False, **options)
            assert torch.equal(target[:, 1:7], labels), f"{options}: {target} instead of {labels}"

    def test_data_collator_seq2seq(self) -> None:
        """The collator can ask the model for decoder inputs, which are those that it makes of the labels itself."""
        model = self.new_seq2seq_model()
        collate = DataCollatorForSeq2Seq(self.toy_tokenizer(model.config), model=model)
        batch = collate([{"input_ids": [5, 6, 7], "labels": [8, 9]}, {"input_ids": [5, 6], "labels": [8, 9, 10]}])
        batch.pop("token_type_ids", None)
        assert "decoder_input_ids" in batch, "the model lacks prepare_decoder_input_ids_from_labels"
        with torch.no_grad():
            loss = model(**batch).loss
            del batch["decoder_input_ids"]
            torch.testing.assert_close(model(**batch).loss, loss)
