"""Stands in for transformers' `ExportTesterMixin`: torch.export, transformers' exporter, torch.compile."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.export import Dim
from transformers import PreTrainedModel
from transformers.exporters.exporter_dynamo import DynamoConfig, DynamoExporter

from ..family import Inputs
from .base import Checks


class ExportTesterMixin(Checks):
    """Exported and compiled models give the same outputs and gradients, for each class of a family."""

    def models(self) -> Iterator[tuple[PreTrainedModel, Inputs]]:
        """Yield a new model of each class, with its inputs."""
        for model_class in self.all_model_classes:
            config, inputs = self.inputs_for(model_class)
            torch.manual_seed(0)
            torch._dynamo.reset()
            yield model_class(config).eval(), inputs
        torch._dynamo.reset()

    def test_export_plain(self) -> None:
        """`torch.export`, without a cache among the outputs."""
        for model, inputs in self.models():
            model.config.use_cache = False
            with torch.no_grad():
                program = torch.export.export(model, args=(), kwargs=inputs, strict=False)
                check_outputs(program.module()(**inputs), model(**inputs))

    def test_export_plain_dynamic_batch_and_length(self) -> None:
        """The exported program also takes batches of other sizes and lengths."""
        for model, inputs in self.models():
            model.config.use_cache = False
            dynamic = {name: {0: Dim.AUTO, 1: Dim.AUTO} for name in inputs}
            smaller = {name: value[:2, :-2].contiguous() for name, value in inputs.items()}
            if self.family.of_images:  # whose second axis are channels
                dynamic, smaller = {"pixel_values": {0: Dim.AUTO}}, {"pixel_values": inputs["pixel_values"][:2]}
            with torch.no_grad():
                program = torch.export.export(model, args=(), kwargs=inputs, strict=False, dynamic_shapes=dynamic)
                check_outputs(program.module()(**smaller), model(**smaller))

    def test_export_dynamo_exporter(self) -> None:
        """Transformers' own exporter; the cache among the outputs changes its form and is not compared."""
        for model, inputs in self.models():
            with torch.no_grad():
                expected = model(**inputs)
                program = DynamoExporter().export(model, dict(inputs), config=DynamoConfig())
                expected = {name: value for name, value in expected.items() if "past" not in name}
                check_outputs(program(**inputs), expected)

    def test_compile_forward_fullgraph(self) -> None:
        """`torch.compile` finds no break in the graph."""
        for model, inputs in self.models():
            with torch.no_grad():
                expected = model(**inputs)
                check_outputs(torch.compile(model, backend="eager", fullgraph=True)(**inputs), expected)

    def test_compile_backward(self) -> None:
        """A compiled model has the same loss and the same gradients."""
        for model, inputs in self.models():
            inputs = self._prepare_for_class(inputs, type(model), return_labels=True)
            if "labels" not in inputs:
                continue
            expected_loss, expected_gradients = loss_and_gradients(model, model, inputs)
            compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
            loss, gradients = loss_and_gradients(model, compiled, inputs)
            torch.testing.assert_close(loss, expected_loss, atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(gradients, expected_gradients, atol=1e-4, rtol=1e-3)


def loss_and_gradients(model: PreTrainedModel, run: Any, inputs: Inputs) -> tuple[torch.Tensor, Inputs]:
    """Return the loss of `run`, a form of `model`, and the gradients of `model`'s parameters by name."""
    model.zero_grad()
    loss = run(**inputs).loss
    loss.backward()
    return loss, {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def check_outputs(outputs: Any, expected: Any) -> None:
    """Check that the tensors among the expected outputs are all there, and equal."""
    outputs, expected = tensors(outputs), tensors(expected)
    assert expected, "no tensor among the expected outputs"
    assert not expected.keys() - outputs.keys()
    torch.testing.assert_close({name: outputs[name] for name in expected}, expected, atol=1e-4, rtol=1e-4)


def tensors(outputs: Any) -> dict[str, torch.Tensor]:
    """Collect the tensors among the outputs, also those of tuples, by name."""
    found: dict[str, torch.Tensor] = {}
    for name, value in outputs.items():
        entries = value if isinstance(value, tuple | list) else [value]
        found |= {f"{name}.{index}": entry for index, entry in enumerate(entries) if isinstance(entry, torch.Tensor)}
    return found
