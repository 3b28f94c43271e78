"""Base of the tasks: one class per task, each in its own file; `training/run.py` runs them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from datasets import Dataset, DatasetDict
from transformers import AddedToken, PreTrainedModel, PreTrainedTokenizerBase
from transformers.trainer_utils import PredictionOutput

from vanillaformer.data.loading import TaskData
from vanillaformer.data.rows import label_names
from vanillaformer.data.streaming import StreamedRows, TextStream
from vanillaformer.data.tasks import TASKS, TaskName

from ..arguments import Arguments, ModelArguments
from ..report.baselines import Baseline
from ..run_folder.run import Run
from ..trainer.trainer import RunTrainer

Tokenizers = tuple[PreTrainedTokenizerBase, ...]  # of source and target; none for images
ACCELERATOR = 150  # processor cores that an accelerator stands for
BFLOAT16 = "the device multiplies bfloat16 faster than float32"  # why a run computes in bfloat16


class Default(NamedTuple):
    """The value of an option that the user did not give, and why."""

    option: str
    value: Any
    reason: str


MUON = (
    Default("optim", "muon", "fewer steps than AdamW to the same loss"),
    Default("learning_rate", 4e-3, "for Muon"),
    Default("weight_decay", 0.1, "for Muon"),
)


class LengthRule(NamedTuple):
    """How the lengths of a task's rows follow the tokens."""

    texts: Mapping[str, str]  # the name of the texts, by the option for their length
    longest: int  # the largest length that is chosen
    readable: int  # minimum number of tokens that a model can read: unused positions cost nothing


class HardwareFacts(NamedTuple):
    """The time of a run, and the hardware that it trains on."""

    seconds: float  # to train
    cores: int
    accelerator: bool = False
    bfloat16: bool = False  # whether it is fast on the device

    @property
    def words(self) -> str:
        """The time and the hardware in words."""
        cores = "one core" if self.cores == 1 else f"{self.cores} cores"
        return f"{self.seconds / 60:.3g} minutes on {'an accelerator' if self.accelerator else cores}"

    @property
    def core_seconds(self) -> float:
        """The time of all cores together, in seconds."""
        return self.seconds * (ACCELERATOR if self.accelerator else self.cores)


def names_of_training(found: Mapping[str, set[str]], what: str) -> list[str]:
    """Return the names in the training data, from names by split; raise ValueError for others in held-out data."""
    names = sorted(found["train"])
    for split, here in found.items():
        if unknown := sorted(here.difference(names)):
            raise ValueError(
                f"{split} data: the {what} {unknown[0]!r} does not occur in the training data, which has "
                f"{', '.join(names[:20])}"
            )
    return names


def add_tokens(
    tokenizer: PreTrainedTokenizerBase, names: Sequence[str], model_args: ModelArguments, option: str
) -> None:
    """Add the tokens that a tokenizer lacks; raise ValueError if a saved model would need embeddings for them."""
    missing = [name for name in names if name not in tokenizer.get_vocab()]
    if missing and model_args.saved:
        raise ValueError(
            f"{option}: the tokenizer of {model_args.model_name_or_path} has no {missing[0]}, and needs {len(names)} "
            "such tokens"
        )
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in missing])


class TrainingTask:
    """A task as training sees it, which completes and checks its arguments; `TASKS[name]` describes it to others."""

    program: ClassVar[str]  # the subcommand of `vanillaformer` that trains for it
    arguments: ClassVar[tuple[type, ...]]  # of model, data, tokenizer (not for images) and training
    auto_defaults: ClassVar[tuple[TaskName, ...]]  # the tasks of the program whose defaults follow the data
    follow: ClassVar[str]  # what follows the data, in words for `--help`
    trainer_class: ClassVar[type[RunTrainer]] = RunTrainer
    tokenizers: Tokenizers = ()  # set before the rows are prepared
    lengths: LengthRule | None = None  # how the lengths of rows follow the tokens, if they do
    baselines: tuple[Baseline, ...]  # the trivial ones, which are always scored
    trained_baselines: tuple[Baseline, ...] = ()  # those that are trained, with --baseline

    example: Callable[[Run, TaskData], str]  # returns an input from the data
    rows: Callable[[TaskData], DatasetDict]  # returns the splits as the model reads them
    stream: Callable[[TextStream], StreamedRows]  # returns the rows of a stream as the model reads them
    collator: Callable[[PreTrainedModel, DatasetDict], Any]  # returns the data collator
    scoring: Callable[[Run], dict[str, Any]]  # returns the trainer's arguments for scores

    def __init__(self, args: Arguments):
        self.args = args
        self.model_args, data_args, self.tokenizer_args, self.training_args = args
        self.data_args: Any = data_args
        self.check()

    @classmethod
    def tasks(cls) -> tuple[TaskName, ...]:
        """Return the tasks of the program, the default one first."""
        return tuple(name for name, task in TASKS.items() if task.program == cls.program)

    @classmethod
    def name_of(cls, options: Mapping[str, Any]) -> TaskName:
        """Return the task that these options ask for."""
        return options.get("objective") or cls.tasks()[0]

    @property
    def name(self) -> TaskName:
        return self.name_of({**vars(self.data_args), **vars(self.training_args)})

    @property
    def uses_auto_defaults(self) -> bool:
        """Return whether the data chooses the defaults: with a time budget, for a new model without a preset."""
        model_args, timed = self.model_args, self.training_args.max_time is not None
        unnamed = model_args.preset is None and model_args.model_name_or_path is None
        return self.name in self.auto_defaults and timed and unnamed

    @property
    def length(self) -> int:
        """The longest row in tokens, 0 where rows have none."""
        options = TASKS[self.name].length_option, "max_source_length"
        return max(getattr(self.data_args, option, 0) for option in options)

    def check(self) -> None:
        """Set what options imply; raise ValueError for options that exclude each other."""

    def fit_to_model(self) -> None:
        """Set the data options that a saved model or a preset determines."""

    def defaults(self, data: TaskData, hardware: HardwareFacts) -> list[Default]:
        """Return the defaults that follow the data."""
        return []

    def complete(self, tokenizers: Tokenizers) -> None:
        """Add what the task needs to the tokenizers of a new run; raise ValueError if those of a saved one lack it."""

    def predicted_share(self) -> float:
        """Return the approximate share of a row's tokens that is predicted."""
        return 1.0

    def labels(self, data: TaskData) -> list[str] | None:
        """Return the names of the classes by id, if there are any."""
        return label_names(data.splits) if "label" in TASKS[self.name].columns else None

    def columns(self, data: TaskData) -> list[Iterable[str]]:
        """Return the training texts that tokenizers are trained on: one column, or source and target."""
        return []

    def fields(self) -> dict[str, Any]:
        """Return the config fields of a new model that follow the data, unless they are set."""
        return {}

    def fit_model(self, model: PreTrainedModel, run: Run) -> None:
        """Set how the model is trained and decodes, and check that it can do what the options ask for."""

    def before_training(self, trainer: RunTrainer) -> None:
        """Fit what is added to the trained model; set `problem_type`, which transformers sets at the first loss."""
        config: Any = trainer.model.config
        if "classes" in TASKS[self.name].predicts and config.problem_type is None and config.num_labels > 1:
            config.problem_type = "single_label_classification"

    def after_training(self, run: Run, trainer: RunTrainer, rows: Dataset | None) -> None:
        """Fit the trained model's outputs to validation rows."""

    def test_options(self) -> dict[str, Any]:
        """Return the options of the evaluation of the test split."""
        return {}

    def records(
        self, run: Run, trainer: RunTrainer, rows: Dataset, output: PredictionOutput, split: str
    ) -> Iterator[dict[str, Any]] | None:
        """Yield input, reference and prediction of each row of a split, or return None if that would tell nothing."""

    def add_samples(self, run: Run, trainer: RunTrainer, rows: DatasetDict) -> None:
        """Add samples of the model's output for held-out rows to the folder of a run."""

    def finish(self, run: Run, data: TaskData) -> None:
        """Add files to the folder of a run that only this task has."""
