"""Train an encoder-decoder to translate, from scratch or from a saved model.

Without arguments: a small model on the embedded corpus (dates, times, numbers and amounts, English to German).
"""

from collections.abc import Sequence
from typing import Any

from transformers import DataCollatorForSeq2Seq

from vanillaformer.scripts.console import program
from vanillaformer.training.arguments import ModelArguments, TokenizerArguments
from vanillaformer.training.arrow_files import TextColumn
from vanillaformer.training.data.arguments import DataArguments
from vanillaformer.training.data.loading import load_data
from vanillaformer.training.metrics import sacrebleu_signatures, translation_metrics
from vanillaformer.training.models import build_model, check_preset, set_generation
from vanillaformer.training.parsing import parse
from vanillaformer.training.preprocessing.batching import order_seed
from vanillaformer.training.preprocessing.statistics import describe_data
from vanillaformer.training.preprocessing.streamed_rows import StreamedRows
from vanillaformer.training.preprocessing.tokenizing import encode_pairs, translation_rows
from vanillaformer.training.run import already_finished, announce, prepare_tokenizers, start, train_and_save
from vanillaformer.training.run_folder.fingerprints import fingerprints
from vanillaformer.training.run_folder.run import Run
from vanillaformer.training.trainer.trainer import TranslationTrainer
from vanillaformer.training.training_arguments import TranslationTrainingArguments

ARGUMENTS = (ModelArguments, DataArguments, TokenizerArguments, TranslationTrainingArguments)


def train(argv: Sequence[str] | None = None) -> Run:
    """Train as the arguments say; a run that is finished already is returned as it is."""
    model_arguments, data, tokenizer, settings = parse(ARGUMENTS, argv, description=__doc__)
    arguments = settings, model_arguments, data, tokenizer
    check_preset("translation", model_arguments)
    longest = max(data.max_source_length, data.max_target_length)
    with start("train_translation", argv, *arguments, task="translation", length=longest) as run:
        return _train(run, *arguments)


def _train(
    run: Run,
    settings: TranslationTrainingArguments,
    model_arguments: ModelArguments,
    data: DataArguments,
    tokenizer: TokenizerArguments,
) -> Run:
    loaded = load_data(data, "translation", order_seed(settings))
    texts, stream = loaded.splits, loaded.stream
    example = texts["validation"][0]["source"]
    run.check_data(fingerprints(texts))
    if run.finished and not run.new_test:
        return already_finished(run, "translation", settings, data, example=example)
    kind = check_preset("translation", model_arguments)
    columns = TextColumn(texts["train"], "source"), TextColumn(texts["train"], "target")
    source, target = prepare_tokenizers(run, settings, model_arguments, tokenizer, kind, *columns)
    lengths: dict[str, Any] = {
        "max_source_length": data.max_source_length,
        "max_target_length": data.max_target_length,
    }
    handling: dict[str, Any] = {"num_proc": data.preprocessing_num_workers, "long_texts": data.long_texts}
    with settings.main_process_first(desc="tokenising"):  # the others find what it has kept
        rows = translation_rows(texts, source, target, **lengths, **handling)
    run.details["data"] = describe_data(rows, (source, target), settings, loaded.stats, sample=stream is not None)
    train_rows: Any = rows["train"]
    if stream is not None:
        train_rows = StreamedRows(stream, encode_pairs(source, target, *lengths.values()), long_texts=data.long_texts)
        del rows["train"]
    options: dict[str, Any] = {"length": max(lengths.values()), "trained": run.folder if run.finished else None}
    model = build_model("translation", model_arguments, source, target, seed=settings.seed, **options)
    set_generation(model, "translation", length=data.max_target_length, **settings.search())
    scoring: dict[str, Any] = {"bleu_tokenize": data.bleu_tokenize, "bleu_lowercase": data.bleu_lowercase}
    scores = translation_metrics(target, **scoring)
    if settings.predict_with_generate:
        run.details["signatures"] = sacrebleu_signatures(**scoring)
    trainer = TranslationTrainer(
        model=model,
        args=settings,
        train_dataset=train_rows,
        eval_dataset=rows["validation"],
        data_collator=DataCollatorForSeq2Seq(source, model=model),
        compute_metrics=scores if settings.predict_with_generate else None,
    )
    options = {"example": example, "tokenizers": (source, target), "num_beams": settings.num_beams}
    train_and_save(run, "translation", trainer, data, rows, **options)
    return announce(run, "translation", data, example=example)


@program
def main(argv: Sequence[str] | None = None) -> None:
    """Run the program."""
    train(argv)


if __name__ == "__main__":
    main()
