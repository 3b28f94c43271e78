"""Train an encoder-decoder to translate, from scratch or from a saved model.

Without arguments: a small model on embedded data (dates, times and numbers, English to German).

Examples:
  vanillaformer train-translation --preset transformer-base --train_file pairs.csv --max_steps 20000
  vanillaformer train-translation --set norm=rms_norm norm_placement=pre --tokens_per_batch 25000
  vanillaformer train-translation settings.yaml --output_dir runs/second --learning_rate 5e-4
"""

from collections.abc import Sequence
from typing import Any

from transformers import DataCollatorForSeq2Seq

from vanillaformer.console.program import program
from vanillaformer.data.arrow_files import TextColumn
from vanillaformer.data.preprocessing.packing import PackedBatches, fit_packing
from vanillaformer.data.preprocessing.tokenizing import encode_pairs, translation_rows
from vanillaformer.data.streaming import StreamedRows
from vanillaformer.training.metrics import sacrebleu_signatures, translation_metrics
from vanillaformer.training.models import fit_decoding, set_generation
from vanillaformer.training.programs import Arguments, parse_arguments
from vanillaformer.training.report.card.examples import example_row
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
from vanillaformer.training.trainer.guided_attention import attend_eagerly
from vanillaformer.training.trainer.trainer import TranslationTrainer


def train(argv: Sequence[str] | None = None) -> Run:
    """Train as the arguments say; a run that is finished already is returned as it is."""
    args = parse_arguments("train-translation", argv, __doc__)
    data_args: Any = args.data_args
    length = max(data_args.max_source_length, data_args.max_target_length)
    with start("train_translation", argv, args, task="translation", length=length) as run:
        return _train(run, args)


def _train(run: Run, args: Arguments) -> Run:
    data_args: Any = args.data_args
    training_args = args.training_args
    data = open_data(run, "translation", args)
    example = example_row(data.splits["validation"], "source")
    if run.complete:
        return already_finished(run, "translation", args, data=data, example=example)
    columns = [TextColumn(data.splits["train"], name) for name in ("source", "target")]
    source, target = prepare_tokenizers(run, "translation", args, *columns)
    lengths = data_args.max_source_length, data_args.max_target_length
    with training_args.main_process_first(desc="tokenizing"):  # the others find what it has kept
        rows = translation_rows(
            data.splits,
            source,
            target,
            max_source_length=lengths[0],
            max_target_length=lengths[1],
            num_proc=data_args.preprocessing_num_workers,
            long_texts=data_args.long_texts,
        )
    stream = None
    if data.stream is not None:
        encode = encode_pairs(source, target, *lengths)
        stream = StreamedRows(data.stream, encode, long_texts=data_args.long_texts)
    model = new_model(run, "translation", args, source, target, length=max(lengths))
    fit_decoding(model.config, training_args)
    if training_args.guided_attention and not run.finished:
        attend_eagerly(model)
    set_generation(model, "translation", length=lengths[1], **training_args.search())
    scoring: dict[str, Any] = {"bleu_tokenize": data_args.bleu_tokenize, "bleu_lowercase": data_args.bleu_lowercase}
    if training_args.predict_with_generate:
        run.details["signatures"] = sacrebleu_signatures(**scoring)
    padded = DataCollatorForSeq2Seq(source, model=model)
    collator = fit_packing(model, data_args.packing, rows["train"], training_args, padded)
    packed = collator.computed if isinstance(collator, PackedBatches) else None
    train_rows = describe_rows(run, args, data, rows, (source, target), stream, packed=packed)
    trainer = TranslationTrainer(
        model=model,
        args=training_args,
        train_dataset=train_rows,
        eval_dataset=rows["validation"],
        data_collator=collator,
        compute_metrics=translation_metrics(target, **scoring) if training_args.predict_with_generate else None,
    )
    options: dict[str, Any] = {"data": data, "example": example, "num_beams": training_args.num_beams}
    return train_and_save(run, "translation", args, trainer, rows, (source, target), **options)


@program
def main(argv: Sequence[str] | None = None) -> None:
    """Run the program."""
    train(argv)


if __name__ == "__main__":
    main()
