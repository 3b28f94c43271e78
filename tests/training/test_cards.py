from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from transformers import AutoModelForMaskedLM

from vanillaformer import preset
from vanillaformer.training.cards import PIPELINES, loading_code, model_card
from vanillaformer.training.models import HEADS

METRICS = {
    "eval_loss": 1.5,
    "eval_accuracy": 0.25,
    "test_accuracy": 0.2,
    "eval_runtime": 9.0,
    "eval_samples_per_second": 8.0,
    "train_loss": 2.0,
    "epoch": 3.0,
}


def card(**changes) -> ModelCard:
    model = AutoModelForMaskedLM.from_config(preset("bert-tiny", hidden_size=16, num_hidden_layers=1, vocab_size=50))
    facts = {
        "name": "my_run",
        "code": "print(1)\n",
        "command": "python -m train --set a=1",
        "data": {"source": "some | data", "train rows": 12},
        "metrics": METRICS,
        "training": {"learning_rate": 0.001},
    }
    return model_card("masked", model, **(facts | changes))


def test_metadata(tmp_path: Path) -> None:
    card(language=["en", "de"], dataset="someone/data").save(tmp_path / "README.md")
    data = ModelCard.load(tmp_path / "README.md").data
    assert data.library_name == "transformers"
    assert data.pipeline_tag == "fill-mask"
    assert data.tags == ["vanillaformer", "vanilla_encoder"]
    assert data.datasets == ["someone/data"]
    assert data.language == ["en", "de"]
    assert data.metrics == ["accuracy"]
    results = {(r.dataset_split, r.metric_type): r.metric_value for r in data.eval_results}
    assert results == {("validation", "loss"): 1.5, ("validation", "accuracy"): 0.25, ("test", "accuracy"): 0.2}


def test_text() -> None:
    text = card().text
    for part in (
        "# my_run",
        "```python\nprint(1)\n```",
        "```bash\npython -m train --set a=1\n```",
        "| accuracy | 0.25 | 0.2 |",
        "| loss | 1.5 |  |",
        "| source | some \\| data |",
        "| learning_rate | 0.001 |",
        '"hidden_size": 16',
        "trained from scratch",
    ):
        assert part in text
    assert "runtime" not in text
    assert "trained from the weights of bert" in card(started_from="bert").text


def test_card_without_scores() -> None:
    assert not card(metrics={}).data.eval_results


@pytest.mark.parametrize("job", HEADS)
def test_loading_code_is_python(job: str) -> None:
    code = loading_code(job, Path("runs/it's"), 'l\'exemple "[MASK]"', separate_target=job == "translation")
    compile(code, "card", "exec")
    assert f"{HEADS[job].auto_class.__name__}.from_pretrained(folder)" in code
    assert ("target_tokenizer" in code) == (job == "translation")
    assert job in PIPELINES
