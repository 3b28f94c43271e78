"""Builds one `unittest` class for each family, from transformers' mixins and the checks of this harness."""

import fnmatch
import functools
import os
import unittest
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tests.test_fsdp_mixin as fsdp
import tests.test_modeling_common as common
import tests.test_tensor_parallel_mixin as tensor_parallel
from tests.generation.test_utils import GenerationTesterMixin
from tests.test_configuration_common import ConfigTester
from tests.test_training_mixin import TrainingTesterMixin
from torch import nn
from transformers import PreTrainedConfig

from .checks import ContractChecks
from .distributed import use_auto_class_in_fsdp_tests
from .family import Family, ModelTester, load_families
from .name_tables import extend_name_tables
from .results import NOT_APPLICABLE

FSDP_RANKS = 4


class FamilyCase(unittest.TestCase):
    """What the test classes of all families share."""

    family: Family

    def setUp(self) -> None:
        family = self.family
        if not family.of_images:
            use_auto_class_in_fsdp_tests(family.language_model)
        self.model_tester = ModelTester(family)
        self.config_tester = ConfigTester(
            self, config_class=type(family.config()), has_text_modality=not family.of_images, **family.config_kwargs
        )

    @contextmanager
    def subTest(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        """A failure fails the whole test; a test counts as skipped when all its parts are."""
        try:
            yield
        except unittest.SkipTest as skip:
            self._skipped_parts.append(str(skip))
        else:
            self._finished_parts += 1

    def _callTestMethod(self, method: Callable[[], None]) -> None:
        self._skipped_parts: list[str] = []
        self._finished_parts = 0
        super()._callTestMethod(method)
        if self._skipped_parts and not self._finished_parts:
            raise unittest.SkipTest(self._skipped_parts[0])


class ImageTests(common.ModelTesterMixin):
    """Transformers' model tests for images: without those of token embeddings, as in its own image models' tests."""

    test_resize_embeddings = False

    def test_hidden_states_output(self) -> None:
        vars(self.model_tester).pop("encoder_seq_length", None)  # in models with windows that of the attentions
        super().test_hidden_states_output()

    def test_model_get_set_embeddings(self) -> None:
        for model_class in self.all_model_classes:
            model = model_class(self.family.config())
            assert isinstance(model.get_input_embeddings(), nn.Module)
            assert model.get_output_embeddings() is None


class TensorParallelTests(tensor_parallel.TensorParallelTesterMixin):
    """Transformers' tensor-parallel tests, without dropout: each model would draw other numbers."""

    def _get_tp_config(self, tie_word_embeddings: bool | None = None) -> PreTrainedConfig:
        config = super()._get_tp_config(tie_word_embeddings)
        for name in dropout_rates(config):
            setattr(config, name, 0.0)
        return config


class FSDPTests(fsdp.FSDPTesterMixin):
    """Transformers' FSDP tests, without dropout: each rank would draw other numbers than a single process."""

    def _get_tiny_config(self) -> tuple[type[PreTrainedConfig], dict[str, Any]]:
        config_class, fields = super()._get_tiny_config()
        return config_class, fields | dict.fromkeys(dropout_rates(self.family.config()), 0.0)


def dropout_rates(config: PreTrainedConfig) -> list[str]:
    """Return the names of a config's dropout rates."""
    return [name for name, value in config.to_dict().items() if "drop" in name and isinstance(value, float)]


def build_cases() -> dict[str, type[unittest.TestCase]]:
    """Build the test classes of the families that the environment names, by name."""
    wanted = os.environ["CONTRACT_FAMILIES"].split()
    families = [family for family in load_families(os.environ["CONTRACT_MODULE"]) if family.name in wanted]
    common.hasattr = hasattr_without_windows
    extend_name_tables(common, families)
    # None: the distributed tests run for every model with a plan, not only for some of transformers' own.
    tensor_parallel.TP_DISTRIBUTED_TEST_MODEL_TYPES = None
    fsdp.FSDP_DISTRIBUTED_TEST_MODEL_TYPES = None
    fsdp._get_available_fsdp_workers = lambda: FSDP_RANKS  # more than there may be cores: the models are tiny
    return {family.name: build_case(family) for family in families}


def hasattr_without_windows(instance: Any, name: str) -> bool:
    """Stand in for `hasattr` where tests set a sliding window of tokens, which windows of patches exclude."""
    return hasattr(instance, name) and not (name == "sliding_window" and getattr(instance, "window_size", None))


def build_case(family: Family) -> type[unittest.TestCase]:
    """Build the test class of one family."""
    model_classes = tuple(dict.fromkeys(family.auto_classes.values()))
    attributes = {
        "family": family,
        "all_model_classes": model_classes,
        "is_encoder_decoder": family.kind == "encoder_decoder",
        # The year of a model is read from a copyright line that only transformers' own files have.
        "test_can_init_all_missing_weights_before_2023": True,
        "__module__": "test_contract",
        **family.attributes,
    }
    case = type(family.name, (*mixins(family), FamilyCase), attributes)
    for test, excluded in family.skip_classes.items():
        setattr(case, test, without_classes(getattr(case, test), excluded))
    for pattern, reason in family.not_applicable.items():
        for test in fnmatch.filter(dir(case), pattern):
            setattr(case, test, skipping(reason))
    return case


def mixins(family: Family) -> list[type]:
    """Choose the tests that make sense for a family."""
    generates = any(model_class.can_generate() for model_class in family.auto_classes.values())
    is_seq2seq = family.kind == "encoder_decoder"
    chosen = {
        common.ModelTesterMixin: not family.of_images,
        ImageTests: family.of_images,
        GenerationTesterMixin: generates,
        ContractChecks: True,
        # It expects the text that it trained on after a prompt of one token; `Seq2SeqChecks` trains on pairs.
        TrainingTesterMixin: not is_seq2seq and not family.of_images,
        TensorParallelTests: generates,
        FSDPTests: not family.of_images,  # which give the models tokens
    }
    return [mixin for mixin, is_chosen in chosen.items() if is_chosen]


def skipping(reason: str) -> Callable[..., None]:
    """Return a test that does not apply."""

    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        raise unittest.SkipTest(NOT_APPLICABLE + reason)

    return run


def without_classes(test: Callable[..., None], excluded: tuple[type, ...]) -> Callable[..., None]:
    """Leave some classes out of one test."""

    @functools.wraps(test)
    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        self.all_model_classes = tuple(cls for cls in self.all_model_classes if cls not in excluded)
        test(self, *args, **kwargs)

    return run
