"""Transformers' pipelines, with a tokenizer of toy words or an image processor."""

from typing import Any

import pytest
import torch
from PIL import Image
from transformers import Pipeline, ViTImageProcessorPil, pipeline

from ..family import PIPELINES
from .base import Checks, not_applicable


class PipelineChecks(Checks):
    """One test for each task; a family serves those of its heads."""

    def pipeline(self, task: str, padding_side: str = "right") -> Pipeline:
        """Make a pipeline of a new model."""
        if task not in self.family.pipelines:
            not_applicable(f"the family declares no {task} pipeline")
        config = self.family.config()
        model = self.family.auto_classes[PIPELINES[task]](config).eval()
        if self.family.of_images:
            processor = ViTImageProcessorPil(size={"height": config.image_size, "width": config.image_size})
            return pipeline(task, model=model, image_processor=processor, device="cpu")
        return pipeline(task, model=model, tokenizer=self.toy_tokenizer(config, padding_side), device="cpu")

    def test_pipeline_text_generation(self) -> None:
        """A prompt that is padded on the left continues as it does alone."""
        generate = self.pipeline("text-generation", padding_side="left")
        greedy: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False}
        assert generate("w1 w2 w3", **greedy)[0]["generated_text"].startswith("w1 w2 w3")
        _, padded = generate(["w1 w2 w3", "w4"], batch_size=2, return_full_text=False, **greedy)
        assert padded == generate("w4", return_full_text=False, **greedy)

    def test_pipeline_fill_mask(self) -> None:
        fill = self.pipeline("fill-mask")
        assert len(fill(f"w1 {fill.tokenizer.mask_token} w3", top_k=3)) == 3

    def test_pipeline_text_classification(self) -> None:
        """All labels get a score, in a padded batch the same as alone."""
        classify = self.pipeline("text-classification")
        padded, _ = classify(["w1 w2", "w3 w4 w5 w6"], batch_size=2, top_k=None)
        alone = classify("w1 w2", top_k=None)
        assert len(padded) == classify.model.config.num_labels
        assert [entry["label"] for entry in padded] == [entry["label"] for entry in alone]
        assert [entry["score"] for entry in padded] == pytest.approx([entry["score"] for entry in alone], abs=5e-5)

    def test_pipeline_token_classification(self) -> None:
        assert len(self.pipeline("token-classification")("w1 w2 w3")) == 3

    def test_pipeline_feature_extraction(self) -> None:
        extract = self.pipeline("feature-extraction")
        assert torch.tensor(extract("w1 w2 w3")).shape[-1] == extract.model.config.hidden_size

    def test_pipeline_image_classification(self) -> None:
        """An image of any size and mode gets a score for each label."""
        classify = self.pipeline("image-classification")
        scores = classify(Image.linear_gradient("L"), top_k=5)
        assert len(scores) == classify.model.config.num_labels
        assert sum(entry["score"] for entry in scores) == pytest.approx(1, abs=1e-5)

    def test_pipeline_image_feature_extraction(self) -> None:
        extract = self.pipeline("image-feature-extraction")
        with torch.no_grad():
            width = extract.model(**self.family.make_inputs()).last_hidden_state.shape[-1]
        assert torch.tensor(extract(Image.linear_gradient("L"))).shape[-1] == width
