"""Train a classifier of texts: an encoder or a decoder, from scratch or from the weights of a language model.

Without arguments: a small encoder that tells the language of a name (countries, languages, currencies) in 20 locales.

Examples:
  vanillaformer train-classifier --train_file reviews.csv --text_column review --label_column stars
  vanillaformer train-classifier --dataset imdb --preset bert-base --max_length 512
  vanillaformer train-classifier --model_name_or_path runs/masked --train_file reviews.csv
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from transformers import DataCollatorWithPadding

from vanillaformer.console.program import program
from vanillaformer.data.arrow_files import TextColumn
from vanillaformer.data.labels import label_names
from vanillaformer.data.preprocessing.packing import PackedBatches, fit_packing
from vanillaformer.data.preprocessing.tokenizing import classification_rows, encode_texts, set_truncation_side
from vanillaformer.data.streaming import StreamedRows
from vanillaformer.training.metrics import classification_metrics
from vanillaformer.training.programs import Arguments, parse_arguments
from vanillaformer.training.report.card.examples import WIDTH, example_row, opening
from vanillaformer.training.run import (
    already_finished,
    describe_rows,
    new_model,
    open_data,
    start,
    train_and_save,
)
from vanillaformer.training.run_folder.run import Run
from vanillaformer.training.tokenizers import prepare_tokenizers
from vanillaformer.training.trainer.losses import check_language_model_loss
from vanillaformer.training.trainer.trainer import RunTrainer


def train(argv: Sequence[str] | None = None) -> Run:
    """Train as the arguments say; a run that is finished already is returned as it is."""
    args = parse_arguments("train-classifier", argv, __doc__)
    data_args: Any = args.data_args
    with start("train_classifier", argv, args, task="classification", length=data_args.max_length) as run:
        return _train(run, args)


def _train(run: Run, args: Arguments) -> Run:
    data_args: Any = args.data_args
    training_args = args.training_args
    data = open_data(run, "classification", args)
    example = opening(example_row(data.splits["validation"], "text"), WIDTH)
    if run.complete:
        return already_finished(run, "classification", args, data=data, example=example)
    tokenizers = prepare_tokenizers(run, "classification", args, TextColumn(data.splits["train"], "text"))
    tokenizer, length = tokenizers[0], data_args.max_length
    labels = label_names(data.splits)
    set_truncation_side(tokenizer, data_args.truncation_side)
    options: dict[str, Any] = {"num_proc": data_args.preprocessing_num_workers, "long_texts": data_args.long_texts}
    with training_args.main_process_first(desc="tokenizing"):  # the others find what it has kept
        rows = classification_rows(data.splits, tokenizer, max_length=length, **options)
    stream = None
    if data.stream is not None:
        stream = StreamedRows(data.stream, encode_texts(tokenizer, length), long_texts=data_args.long_texts)
    make_model = partial(new_model, run, "classification", args, tokenizer, length=length, labels=labels)
    model = make_model()
    check_language_model_loss(training_args.lm_loss_weight, model.config)
    padded = DataCollatorWithPadding(tokenizer)
    collator = fit_packing(model, data_args.packing, rows["train"], training_args, padded)
    packed = collator.computed if isinstance(collator, PackedBatches) else None
    train_rows = describe_rows(run, args, data, rows, tokenizers, stream, packed=packed)
    trainer = RunTrainer(
        model=model,
        args=training_args,
        train_dataset=train_rows,
        eval_dataset=rows["validation"],
        data_collator=collator,
        processing_class=tokenizer,
        compute_metrics=classification_metrics(),
    )
    trainer.new_model = lambda seed: make_model(seed=seed)
    return train_and_save(run, "classification", args, trainer, rows, tokenizers, data=data, example=example)


@program
def main(argv: Sequence[str] | None = None) -> None:
    """Run the program."""
    train(argv)


if __name__ == "__main__":
    main()
