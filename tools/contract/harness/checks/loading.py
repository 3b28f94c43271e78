"""Saving and loading: Auto classes, shards, heads on base models, number types."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, PreTrainedModel

from .base import Checks, main_output


class LoadingChecks(Checks):
    """What is saved is what is loaded, through every door."""

    def auto_items(self) -> Iterator[tuple[Any, type[PreTrainedModel]]]:
        """Yield each Auto class with the model class that it must lead to."""
        for name, model_class in self.family.auto_classes.items():
            yield getattr(transformers, name), model_class

    def test_auto_classes_resolve(self) -> None:
        config = self.family.config()
        assert type(AutoConfig.for_model(config.model_type)) is type(config)
        for auto_class, model_class in self.auto_items():
            assert type(auto_class.from_config(self.family.config())) is model_class

    def test_auto_classes_save_load(self) -> None:
        """An Auto class finds class and weights of a saved model, all of them."""
        for auto_class, model_class in self.auto_items():
            config, inputs = self.inputs_for(model_class)
            model = model_class(config).eval()
            with tempfile.TemporaryDirectory() as folder:
                model.save_pretrained(folder)
                loaded, info = auto_class.from_pretrained(folder, output_loading_info=True)
            assert type(loaded) is model_class
            problems = ("missing_keys", "unexpected_keys", "mismatched_keys")
            assert not any(info[problem] for problem in problems), f"{model_class.__name__}: {info}"
            assert not loaded.training, "from_pretrained must return a model in evaluation mode"
            check_equal(loaded, model, inputs)

    def test_sharded_checkpoint(self) -> None:
        for model_class in self.all_model_classes:
            config, inputs = self.inputs_for(model_class)
            model = model_class(config).eval()
            with tempfile.TemporaryDirectory() as folder:
                model.save_pretrained(folder, max_shard_size="20KB")
                assert len(list(Path(folder).glob("*.safetensors"))) > 1
                loaded = model_class.from_pretrained(folder)
            check_equal(loaded, model, inputs)

    def test_head_from_base_checkpoint_and_back(self) -> None:
        """A head takes the weights of a saved base model, and a base model those of a saved head."""
        base_class = self.family.auto_classes["AutoModel"]
        for model_class in self.all_model_classes:
            if model_class is base_class:
                continue
            base, head = base_class(self.family.config()), model_class(self.family.config())
            with tempfile.TemporaryDirectory() as folder:
                base.save_pretrained(folder)
                weights = model_class.from_pretrained(folder).base_model.state_dict()
            shared = base.state_dict().keys() & weights.keys()
            assert shared, model_class.__name__
            for name in shared:
                torch.testing.assert_close(weights[name], base.state_dict()[name], msg=f"not loaded: {name}")
            with tempfile.TemporaryDirectory() as folder:
                head.save_pretrained(folder)
                _, info = base_class.from_pretrained(folder, output_loading_info=True)
            assert not shared & set(info["missing_keys"]), f"from {model_class.__name__}: {info['missing_keys']}"

    def test_dtype_and_device_map_loading(self) -> None:
        for model_class in self.all_model_classes:
            with tempfile.TemporaryDirectory() as folder:
                model_class(self.family.config()).to(torch.bfloat16).save_pretrained(folder)
                assert model_class.from_pretrained(folder).dtype == torch.bfloat16
                assert model_class.from_pretrained(folder, dtype=torch.float32).dtype == torch.float32
                mapped = model_class.from_pretrained(folder, device_map="cpu", dtype="auto")
            assert {parameter.device.type for parameter in mapped.parameters()} == {"cpu"}


def check_equal(model: PreTrainedModel, expected: PreTrainedModel, inputs: dict[str, torch.Tensor]) -> None:
    """Check that two models give the same output."""
    with torch.no_grad():
        torch.testing.assert_close(main_output(model(**inputs)), main_output(expected(**inputs)))
