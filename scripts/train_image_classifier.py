"""Train a classifier of images, from scratch or from a masked image model, or that model itself.

Without arguments: a small Vision Transformer that reads the handwritten digits of scikit-learn.

Examples:
  vanillaformer train-image-classifier --train_file photos --preset vit-mini --image_size 64
  vanillaformer train-image-classifier --train_file photos --objective masked_image
  vanillaformer train-image-classifier --train_file photos --model_name_or_path runs/masked_image
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from vanillaformer.console.program import program
from vanillaformer.data.images import pillow
from vanillaformer.data.labels import label_names
from vanillaformer.data.preprocessing.images import ImageCollator, PatchMasking, encode_images, image_rows
from vanillaformer.data.streaming import StreamedRows
from vanillaformer.training.image_models import image_fields, prepare_processor, set_image_size
from vanillaformer.training.metrics import classification_metrics
from vanillaformer.training.programs import Arguments, parse_arguments
from vanillaformer.training.report.card.examples import write_example
from vanillaformer.training.run import (
    already_finished,
    describe_rows,
    new_model,
    open_data,
    start,
    train_and_save,
)
from vanillaformer.training.run_folder.files import EXAMPLE
from vanillaformer.training.run_folder.run import Run
from vanillaformer.training.trainer.trainer import RunTrainer


def train(argv: Sequence[str] | None = None) -> Run:
    """Train as the arguments say; a run that is finished already is returned as it is."""
    args = parse_arguments("train-image-classifier", argv, __doc__)
    pillow()
    with start("train_image_classifier", argv, args, task=args.training_args.objective) as run:
        return _train(run, args)


def _train(run: Run, args: Arguments) -> Run:
    data_args: Any = args.data_args
    training_args = args.training_args
    task = training_args.objective
    set_image_size(args.model_args, data_args)
    with training_args.main_process_first(desc="reading the images"):  # the others find what it has kept
        data = open_data(run, task, args)
    example = str(run.folder / EXAMPLE)
    if run.complete:
        return already_finished(run, task, args, data=data, example=example)
    rows = image_rows(data.splits)
    processor = prepare_processor(args.model_args, data.splits["train"], data_args.image_size)
    stream = None if data.stream is None else StreamedRows(data.stream, encode_images)
    train_rows = describe_rows(run, args, data, rows, (), stream)
    classifies = task == "image_classification"
    labels = label_names(data.splits) if classifies else None
    make_model = partial(
        new_model, run, task, args, labels=labels, fields=image_fields(args.model_args, data_args.image_size)
    )
    model = make_model()
    collator = ImageCollator(processor, training_args, training_args.seed)
    if not classifies:
        collator = PatchMasking(
            *(processor, model.config.patch_size, training_args.mask_ratio, training_args, training_args.seed)
        )
    trainer = RunTrainer(
        model=model,
        args=training_args,
        train_dataset=train_rows,
        eval_dataset=rows["validation"],
        data_collator=collator,
        processing_class=processor,
        compute_metrics=classification_metrics() if classifies else None,
    )
    trainer.new_model = lambda seed: make_model(seed=seed)
    train_and_save(run, task, args, trainer, rows, (), data=data, example=example)
    if training_args.should_save:
        write_example(run.folder, data.splits["validation"][0]["image"], data_args.image_size)
    return run


@program
def main(argv: Sequence[str] | None = None) -> None:
    """Run the program."""
    train(argv)


if __name__ == "__main__":
    main()
