"""Train a classifier of texts: an encoder or a decoder, from scratch or from a language model's weights.

Without arguments: a small encoder that tells the language of a name (countries, languages, currencies) in 20 locales.
"""

from collections.abc import Sequence

from transformers import DataCollatorWithPadding

from vanillaformer.training.arguments import DataArguments, ModelArguments, TokenizerArguments, parse
from vanillaformer.training.data import load_data
from vanillaformer.training.labels import label_names
from vanillaformer.training.metrics import classification_metrics
from vanillaformer.training.models import build_model, check_preset
from vanillaformer.training.preprocessing import classification_rows
from vanillaformer.training.run_arguments import ClassifierTrainingArguments
from vanillaformer.training.run_folder import Run
from vanillaformer.training.runs import announce, prepare_tokenizers, start, train_and_save
from vanillaformer.training.trainers import RunTrainer

ARGUMENTS = (ModelArguments, DataArguments, TokenizerArguments, ClassifierTrainingArguments)


def train(argv: Sequence[str] | None = None) -> Run:
    """Train as the arguments say; a run that is finished already is returned as it is."""
    model_arguments, data, tokenizer_arguments, settings = parse(ARGUMENTS, argv, description=__doc__)
    kind = check_preset("classification", model_arguments)
    run = start("train_classifier", argv, settings, model_arguments, data, tokenizer_arguments)
    texts = load_data(data, "classification")
    example = texts["validation"][0]["text"]
    if run.finished:
        return announce(run, "classification", example=example, already=True)
    tokenizers = prepare_tokenizers(run, settings, model_arguments, tokenizer_arguments, kind, texts["train"]["text"])
    tokenizer, labels = tokenizers[0], label_names(texts)
    rows = classification_rows(texts, tokenizer, max_length=data.max_length, num_proc=data.preprocessing_num_workers)
    sizes = {"length": data.max_length, "labels": labels}
    model = build_model("classification", model_arguments, tokenizer, **sizes, seed=settings.seed)
    trainer = RunTrainer(
        model=model,
        args=settings,
        train_dataset=rows["train"],
        eval_dataset=rows["validation"],
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        compute_metrics=classification_metrics(),
    )
    train_and_save(run, "classification", trainer, data, rows, example=example, tokenizers=tokenizers)
    return announce(run, "classification", example=example)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the program."""
    train(argv)


if __name__ == "__main__":
    main()
