"""Training by other libraries: Trainer and PEFT."""

import tempfile
import unittest

import torch
from peft import LoraConfig, get_peft_model
from transformers import PreTrainedModel, Trainer, TrainingArguments

from .base import Checks, not_applicable


class TrainingChecks(Checks):
    """Trainer with a checkpoint, the loss it asks for, and LoRA."""

    def classes_with_loss(self) -> list[type[PreTrainedModel]]:
        """Return the heads whose inputs have labels."""
        label_names = {"labels", "start_positions"}
        classes = [cls for cls in self.all_model_classes if label_names & self.inputs_for(cls, labels=True)[1].keys()]
        if not classes:
            raise unittest.SkipTest("no class has a loss")
        return classes

    def test_trainer_smoke(self) -> None:
        """Trainer trains, evaluates, and comes to the same weights from a checkpoint."""
        for model_class in self.classes_with_loss():
            config, inputs = self.inputs_for(model_class, labels=True)
            rows = [dict(zip(inputs, row)) for row in zip(*inputs.values())]
            with tempfile.TemporaryDirectory() as folder:
                arguments = TrainingArguments(
                    output_dir=folder,
                    max_steps=3,
                    save_steps=2,
                    logging_steps=1,
                    per_device_train_batch_size=2,
                    learning_rate=1e-3,
                    report_to=[],
                    use_cpu=True,
                    disable_tqdm=True,
                )
                trainer = Trainer(model_class(config), arguments, train_dataset=rows, eval_dataset=rows)
                assert torch.isfinite(torch.tensor(trainer.train().training_loss))
                assert "eval_loss" in trainer.evaluate()
                resumed = Trainer(model_class(config), arguments, train_dataset=rows)
                resumed.train(resume_from_checkpoint=f"{folder}/checkpoint-2")
            for (name, weight), expected in zip(resumed.model.named_parameters(), trainer.model.parameters()):
                message = f"{model_class.__name__}: {name} differs after a resume"
                torch.testing.assert_close(weight, expected, atol=1e-3, rtol=1e-2, msg=message)

    def test_peft_lora(self) -> None:
        """LoRA on all linear layers: only its own weights have a gradient."""
        for model_class in self.classes_with_loss():
            config, inputs = self.inputs_for(model_class, labels=True)
            model = get_peft_model(model_class(config), LoraConfig(target_modules="all-linear", r=2))
            model(**inputs).loss.backward()
            trained = [
                name for name, weight in model.named_parameters() if weight.grad is not None and weight.grad.any()
            ]
            assert trained, model_class.__name__
            assert all("lora_" in name or "modules_to_save" in name for name in trained), trained

    def test_loss_kwargs_num_items_in_batch(self) -> None:
        """Trainer's gradient accumulation hands over the number of tokens that the summed loss is divided by."""
        model_class = self.family.auto_classes.get("AutoModelForCausalLM")
        if model_class is None:
            not_applicable("the family has no causal language model")
        config, inputs = self.inputs_for(model_class, labels=True)
        model = model_class(config).eval()
        tokens = inputs["labels"][:, 1:].numel()
        with torch.no_grad():
            mean = model(**inputs).loss
            halved = model(**inputs, num_items_in_batch=torch.tensor(2 * tokens)).loss
        torch.testing.assert_close(halved, mean / 2)
