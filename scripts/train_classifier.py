"""Train a classifier of texts: an encoder or a decoder, from scratch or from a language model's weights.

Without arguments: a small encoder that tells the language of a name (countries, languages, currencies) in 20 locales.
"""

from collections.abc import Sequence
from typing import Any

from transformers import DataCollatorWithPadding

from vanillaformer.scripts.console import program
from vanillaformer.training.arguments import ModelArguments, TokenizerArguments
from vanillaformer.training.arrow_files import TextColumn
from vanillaformer.training.cards.examples import opening
from vanillaformer.training.data.arguments import DataArguments
from vanillaformer.training.data.labels import label_names
from vanillaformer.training.data.loading import load_data
from vanillaformer.training.metrics import classification_metrics
from vanillaformer.training.models import build_model, check_preset
from vanillaformer.training.parsing import parse
from vanillaformer.training.preprocessing.batching import order_seed
from vanillaformer.training.preprocessing.statistics import describe_data
from vanillaformer.training.preprocessing.streamed_rows import StreamedRows
from vanillaformer.training.preprocessing.tokenizing import classification_rows, encode_texts, set_truncation_side
from vanillaformer.training.run import already_finished, announce, prepare_tokenizers, start, train_and_save
from vanillaformer.training.run_folder.fingerprints import fingerprints
from vanillaformer.training.run_folder.run import Run
from vanillaformer.training.trainer.losses import check_language_model_loss
from vanillaformer.training.trainer.trainer import RunTrainer
from vanillaformer.training.training_arguments import ClassifierTrainingArguments

ARGUMENTS = (ModelArguments, DataArguments, TokenizerArguments, ClassifierTrainingArguments)


def train(argv: Sequence[str] | None = None) -> Run:
    """Train as the arguments say; a run that is finished already is returned as it is."""
    model_arguments, data, tokenizer_arguments, settings = parse(ARGUMENTS, argv, description=__doc__)
    arguments = settings, model_arguments, data, tokenizer_arguments
    check_preset("classification", model_arguments)
    with start("train_classifier", argv, *arguments, task="classification", length=data.max_length) as run:
        return _train(run, *arguments)


def _train(
    run: Run,
    settings: ClassifierTrainingArguments,
    model_arguments: ModelArguments,
    data: DataArguments,
    tokenizer_arguments: TokenizerArguments,
) -> Run:
    loaded = load_data(data, "classification", order_seed(settings))
    texts, stream = loaded.splits, loaded.stream
    example = opening(texts["validation"][0]["text"], 100)
    run.check_data(fingerprints(texts))
    if run.finished and not run.new_test:
        return already_finished(run, "classification", settings, data, example=example)
    kind = check_preset("classification", model_arguments)
    column = TextColumn(texts["train"], "text")
    arguments = run, settings, model_arguments, tokenizer_arguments, kind
    tokenizers = prepare_tokenizers(*arguments, column)
    tokenizer, labels = tokenizers[0], label_names(texts)
    set_truncation_side(tokenizer, data.truncation_side)
    options: dict[str, Any] = {"num_proc": data.preprocessing_num_workers, "long_texts": data.long_texts}
    with settings.main_process_first(desc="tokenising"):  # the others find what it has kept
        rows = classification_rows(texts, tokenizer, max_length=data.max_length, **options)
    run.details["data"] = describe_data(rows, tokenizers, settings, loaded.stats, sample=stream is not None)
    train_rows: Any = rows["train"]
    if stream is not None:
        train_rows = StreamedRows(stream, encode_texts(tokenizer, data.max_length), long_texts=data.long_texts)
        del rows["train"]
    sizes: dict[str, Any] = {
        "length": data.max_length,
        "labels": labels,
        "trained": run.folder if run.finished else None,
    }
    model = build_model("classification", model_arguments, tokenizer, **sizes, seed=settings.seed)
    check_language_model_loss(settings.lm_loss_weight, model.config)
    trainer = RunTrainer(
        model=model,
        args=settings,
        train_dataset=train_rows,
        eval_dataset=rows["validation"],
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        compute_metrics=classification_metrics(),
    )
    train_and_save(run, "classification", trainer, data, rows, example=example, tokenizers=tokenizers)
    return announce(run, "classification", data, example=example)


@program
def main(argv: Sequence[str] | None = None) -> None:
    """Run the program."""
    train(argv)


if __name__ == "__main__":
    main()
