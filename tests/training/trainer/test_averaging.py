import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.optim.swa_utils import AveragedModel
from transformers import PreTrainedModel

from vanillaformer import VanillaDecoderConfig, VanillaDecoderForCausalLM
from vanillaformer.training.tasks.classification import ClassifierTrainingArguments
from vanillaformer.training.trainer.averaging import AverageCheckpoints, average
from vanillaformer.training.trainer.parallel import load_weights

STATE = SimpleNamespace(global_step=30)


def model(seed: int, **fields) -> PreTrainedModel:
    torch.manual_seed(seed)
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    return VanillaDecoderForCausalLM(VanillaDecoderConfig(**sizes, initializer_range=1.0, **fields))


def checkpoint(folder: Path, step: int, content: PreTrainedModel, **options) -> Path:
    path = folder / f"checkpoint-{step}"
    content.save_pretrained(path, **options)
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return path


@pytest.mark.parametrize("tie_word_embeddings", [True, False])
@pytest.mark.parametrize("options", [{}, {"max_shard_size": "8KB"}])
def test_average_is_that_of_torch(tie_word_embeddings: bool, options: dict, tmp_path: Path) -> None:
    models = [model(seed, tie_word_embeddings=tie_word_embeddings) for seed in range(3)]
    folders = [checkpoint(tmp_path, step, content, **options) for step, content in enumerate(models)]
    assert (folders[0] / "model.safetensors").exists() is not bool(options)
    expected = AveragedModel(models[0])
    for content in models:
        expected.update_parameters(content)
    averaged = model(9, tie_word_embeddings=tie_word_embeddings)
    load_weights(averaged, lambda: average(folders))
    for (name, value), wanted in zip(averaged.named_parameters(), expected.module.parameters()):
        torch.testing.assert_close(value, wanted, rtol=1e-6, atol=1e-6, msg=name)
    assert (averaged.lm_head.weight is averaged.get_input_embeddings().weight) is tie_word_embeddings


def test_average_sums_in_double_precision_and_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    values = [1e8, 1.0, -1e8, 2.0]  # in single precision the ones would be lost
    for step, value in enumerate(values):
        tensors = {"half": torch.tensor([value], dtype=torch.bfloat16), "count": torch.tensor([step])}
        (tmp_path / str(step)).mkdir()
        save_file({"one": torch.tensor([value]), **tensors}, tmp_path / str(step) / "model.safetensors")
    result = average([tmp_path / str(step) for step in range(4)])
    assert result["one"] == 0.75
    assert (result["half"].dtype, result["half"].item()) == (torch.bfloat16, 0.75)
    assert result["count"] == 3
    first = checkpoint(tmp_path, 1, model(0))
    saved = load_file(first / "model.safetensors")
    for folders in ([first], [first, first, first]):  # the average of one is bit equal
        assert all(torch.equal(value, saved[name]) for name, value in average(folders).items())
    with pytest.raises(ValueError, match="these are not the weights of a VanillaDecoderForCausalLM"):
        load_weights(model(0, norm="rms_norm"), lambda: average([first]))


def test_last_checkpoints_of_the_run_are_averaged(tmp_path: Path, capsys) -> None:
    models = {step: model(step) for step in (5, 10, 20, 30, 40)}
    for step, content in models.items():
        checkpoint(tmp_path, step, content)
    (tmp_path / "checkpoint-30" / "trainer_state.json").write_text("")  # cut off while it was written
    result = model(0)
    arguments = SimpleNamespace(output_dir=tmp_path, average_checkpoints=2)
    AverageCheckpoints().on_train_end(arguments, STATE, None, model=result)
    for name, value in result.named_parameters():
        wanted = sum(dict(models[step].named_parameters())[name].double() for step in (10, 20)) / 2
        assert torch.equal(value, wanted.float()), name
    assert capsys.readouterr().out == "The model is the average of 2 checkpoints: steps 10, 20.\n"
    arguments = SimpleNamespace(output_dir=tmp_path / "other", average_checkpoints=3)
    with pytest.raises(ValueError, match=r"--average_checkpoints 3: .* holds no complete checkpoint"):
        AverageCheckpoints().on_train_end(arguments, STATE, None, model=result)
    checkpoint(tmp_path / "other", 30, models[5])
    AverageCheckpoints().on_train_end(arguments, STATE, None, model=result)
    assert "the average of 1 checkpoints (there are no 3): steps 30." in capsys.readouterr().out


def test_settings_that_averages_need() -> None:
    five = {"average_checkpoints": 5}
    for given, kept in ({}, 2), (five, 6), (five | {"save_total_limit": 9}, 9):
        settings = ClassifierTrainingArguments(use_cpu=True, **given)
        assert (settings.save_total_limit, settings.load_best_model_at_end) == (kept, not given)
