"""Train a language model: a decoder that predicts the next token, or an encoder that predicts masked ones.

Without arguments: a small decoder on the source text of Python's standard library. `--objective masked` trains an
encoder, whose weights `train_classifier` can start from.
"""

from collections.abc import Sequence

from transformers import DataCollatorForLanguageModeling

from vanillaformer.training.arguments import DataArguments, ModelArguments, TokenizerArguments, parse
from vanillaformer.training.data import load_data
from vanillaformer.training.metrics import language_model_metrics, token_scores
from vanillaformer.training.models import build_model, check_preset, set_generation
from vanillaformer.training.preprocessing import causal_blocks, masked_blocks
from vanillaformer.training.run_arguments import LanguageModelTrainingArguments
from vanillaformer.training.run_folder import Run
from vanillaformer.training.runs import announce, prepare_tokenizers, start, train_and_save
from vanillaformer.training.trainers import RowMasking, RunTrainer

ARGUMENTS = (ModelArguments, DataArguments, TokenizerArguments, LanguageModelTrainingArguments)
EXAMPLES = {"causal": "def ", "masked": "import [MASK]"}


def train(argv: Sequence[str] | None = None) -> Run:
    """Train as the arguments say; a run that is finished already is returned as it is."""
    model_arguments, data, tokenizer_arguments, settings = parse(ARGUMENTS, argv, description=__doc__)
    job, causal, example = settings.objective, settings.objective == "causal", EXAMPLES[settings.objective]
    kind = check_preset(job, model_arguments)
    run = start("train_language_model", argv, settings, model_arguments, data, tokenizer_arguments)
    if run.finished:
        return announce(run, job, example=example, already=True)
    texts = load_data(data, "language_model")
    tokenizers = prepare_tokenizers(run, settings, model_arguments, tokenizer_arguments, kind, texts["train"]["text"])
    tokenizer = tokenizers[0]
    blocks = causal_blocks if causal else masked_blocks
    rows = blocks(texts, tokenizer, block_size=data.block_size, num_proc=data.preprocessing_num_workers)
    model = build_model(job, model_arguments, tokenizer, length=data.block_size, seed=settings.seed)
    set_generation(model, job, length=data.block_size)
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    if not causal:
        collator = RowMasking(tokenizer, mlm_probability=settings.mlm_probability, mask_seed=settings.seed)
    trainer = RunTrainer(
        model=model,
        args=settings,
        train_dataset=rows["train"],
        eval_dataset=rows["validation"],
        data_collator=collator,
        processing_class=tokenizer,
        compute_metrics=language_model_metrics(),
        preprocess_logits_for_metrics=token_scores(causal=causal),
    )
    train_and_save(run, job, trainer, data, rows, example=example, tokenizers=tokenizers)
    return announce(run, job, example=example)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the program."""
    train(argv)


if __name__ == "__main__":
    main()
