"""The data options: those of all training programs, and those of single tasks."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from vanillaformer.console import limits
from vanillaformer.console.limits import check_limits, option
from vanillaformer.console.reporting import report

from .formats import ReadOptions, format_of
from .tasks import TASKS, Objective, TaskName

COLUMNS: dict[TaskName, tuple[str, ...]] = {name: task.columns for name, task in TASKS.items()}
SPLITS = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
"""The splits, each with its names in data sets on the Hub and in cells of a column."""

LongTexts = Literal["cut", "skip", "error"]

AT_LEAST_100: limits.Limit = ("at least 100", lambda value: value >= 100)
MARKS = ("task_column", "target_lang_column")
"""Options for columns whose content is put before each source."""
CARD, EVALUATION = "Model card and Hub", "Evaluation and checkpoints"


@dataclass
class DataArguments:
    """Arguments for the training data."""

    HELP_GROUP = "Data"

    # Options of only some tasks, with their values for all others
    train_target_file = validation_target_file = test_target_file = cast("list[str] | None", None)
    turns_column = text_pair_column = source_prefix = cast("str | None", None)
    task_column = target_lang_column = cast("str | None", None)
    packing = cast("bool | None", False)
    sample_by = cast('Literal["line", "paragraph", "passage", "document"] | None', None)
    image_size = cast("int | None", None)
    tokenizer_samples = 1_000

    dataset: str = option("embedded", "Hub id of the data, or embedded: no download")
    dataset_config: str | None = option(None, "Configuration of the Hub data set")
    train_file: list[str] | None = option(None, "Files: .csv .tsv .json .jsonl .txt(.gz) .parquet")
    validation_file: list[str] | None = option(None, "Local validation files")
    test_file: list[str] | None = option(None, "Local test files")
    csv_separator: str | None = option(None, "Cell separator (default: comma, in .tsv a tab)")
    csv_quoting: Literal["minimal", "none"] | None = option(None, "Quoting (default: by format)")
    split_column: str | None = option(None, "Column of the split: train, validation or test")
    validation_fraction: float = option(0.05, "Fraction held out if there is no validation data", limit=limits.BETWEEN)
    test_fraction: float = option(0.0, "Fraction held out for the test; 0 for none", limit=limits.BELOW_ONE)
    hold_out: Literal["random", "end"] = option("random", "Rows to hold out")
    order_column: str | None = option(None, "Column to order by, for --hold_out end")
    drop_leaked_rows: bool = option(False, "Drop rows whose text is also in a later split")
    bad_rows: Literal["error", "skip"] = option("error", "Action on unusable rows")
    split_seed: int = option(0, "Seed of the split, which --seed does not change")
    max_train_samples: int | None = option(None, "Maximum number of training rows", limit=limits.POSITIVE_INT)
    max_validation_samples: int | None = option(None, "Maximum number of validation rows", limit=limits.POSITIVE_INT)
    max_test_samples: int | None = option(None, "Maximum number of test rows", limit=limits.POSITIVE_INT)
    streaming: bool = option(False, "Read the data while training")
    streaming_buffer: int = option(10_000, "Streaming: rows to shuffle", limit=limits.NOT_NEGATIVE)
    preprocessing_num_workers: int | None = option(
        None, "Processes to prepare rows (images: threads)", limit=limits.POSITIVE_INT
    )
    data_license: str | None = option(None, "License of the data (default: the Hub's)", CARD)
    data_description: str | None = option(None, "One sentence on the data", CARD)
    card_example: str | None = option(None, "Example input, with [MASK] if masked", CARD)

    @property
    def is_embedded(self) -> bool:
        """Return whether the data is made from installed packages."""
        return self.train_file is None and self.dataset == "embedded"

    def __post_init__(self) -> None:
        """Turn a single file into a list, and check numbers."""
        for name in (f"{split}{side}_file" for split in ("train", "validation", "test") for side in ("", "_target")):
            if isinstance(getattr(self, name), str | Path):
                setattr(self, name, [str(getattr(self, name))])
        check_limits(self)
        validation, test = self.validation_fraction, self.test_fraction
        if validation + test >= 1:
            raise ValueError(
                f"--validation_fraction {validation} and --test_fraction {test} leave nothing to train on"
            )
        if self.order_column is not None and self.hold_out != "end":
            raise ValueError(f"--order_column {self.order_column} is for --hold_out end, not {self.hold_out}")

    def check(self) -> None:
        """Check that the options are compatible, before any data is read; a ValueError names the option."""
        self.read_options()
        if self.train_file is None:
            for name in (f"{split}{side}_file" for side in ("", "_target") for split in SPLITS):
                if getattr(self, name) is not None:
                    raise ValueError(f"--{name} needs --train_file")
        for name in ("split_column", "order_column", "turns_column", "text_pair_column", *MARKS):
            if self.is_embedded and getattr(self, name) is not None:
                raise ValueError(f"--{name} {getattr(self, name)} needs --train_file or a --dataset on the Hub")
        if self.is_embedded and self.streaming:
            raise ValueError("--streaming needs --train_file or a --dataset on the Hub: embedded data is in memory")
        for split in SPLITS:
            given = getattr(self, f"{split}_file") is not None
            if getattr(self, f"{split}_target_file") is not None and not given:
                raise ValueError(f"--{split}_target_file needs --{split}_file")
            if self.split_column is not None and given and split != "train":
                raise ValueError(
                    f"--split_column {self.split_column} finds the splits in --train_file: give no --{split}_file"
                )
        if self.split_column is not None and format_of(Path((self.train_file or [""])[0])) == ".txt":
            raise ValueError(f"--split_column {self.split_column}: a .txt file has no columns")

    def read_options(self) -> ReadOptions:
        """Return how text files are read; raise ValueError for a separator that is not one character."""
        separator = "\t" if self.csv_separator == "\\t" else self.csv_separator
        if separator is not None and (len(separator) != 1 or separator in '"\r\n'):
            raise ValueError(f"--csv_separator {separator!r}: it must be one character, such as ; or \\t")
        return ReadOptions(separator, self.csv_quoting, self.sample_by or "line")


@dataclass
class TextDataArguments(DataArguments):
    """The data of text models."""

    tokenizer_samples: int = option(50_000, "Streaming: tokenizer rows", limit=limits.POSITIVE_INT)
    long_texts: LongTexts = option("cut", "Action on overlong texts")


@dataclass
class TranslationDataArguments(TextDataArguments):
    """The data of a translator: pairs of texts."""

    train_target_file: list[str] | None = option(None, "Target lines of a text --train_file")
    validation_target_file: list[str] | None = option(None, "Target lines of a text --validation_file")
    test_target_file: list[str] | None = option(None, "Target lines of a text --test_file")
    source_column: str = option("source", "Column of the source, such as translation.en")
    target_column: str = option("target", "Column of the target text")
    source_prefix: str | None = option(None, 'Text before each source: "summarize: "')
    task_column: str | None = option(None, "Column of the task, put before each source")
    task_temperature: float = option(1.0, "Sampling of tasks or languages: size^(1/T)", limit=limits.AT_LEAST_ONE)
    target_lang_column: str | None = option(None, "Column of the target's language code")
    source_lang: str | None = option(None, "Code of the source (multilingual tokenizers)")
    target_lang: str | None = option(None, "Code of the target (multilingual tokenizers)")
    embedded_size: int = option(30_000, "Embedded data: number of pairs in all splits", limit=AT_LEAST_100)
    source_locale: str = option("en", "Embedded data: source locale")
    target_locale: str = option("de", "Embedded data: target locale")
    max_source_length: int = option(128, "Maximum source length in tokens", limit=limits.POSITIVE_INT)
    max_target_length: int = option(128, "Maximum target length in tokens", limit=limits.POSITIVE_INT)
    packing: bool | None = option(None, "Pack pairs into rows (default: if it pays off)")
    bleu_tokenize: Literal["13a", "intl", "zh", "char", "none"] = option("13a", "BLEU tokenization", EVALUATION)
    bleu_lowercase: bool = option(False, "Case-insensitive BLEU", EVALUATION)


@dataclass
class LanguageModelDataArguments(TextDataArguments):
    """The data of a language model: texts, or dialogues."""

    text_column: str = option("text", "Column of the text")
    sample_by: Literal["line", "paragraph", "passage", "document"] | None = option(
        None, "Text unit of .txt files; a passage has 2,048 characters (default: document; masked, packed: line)"
    )
    block_size: int = option(128, "Length of a block in tokens", limit=limits.POSITIVE_INT)
    block_stride: int | None = option(None, "Offset of blocks in tokens (default: block_size)")
    packing: bool = option(False, "Pack whole texts, kept separate, into blocks")
    turns_column: str | None = option(
        None, "Column of dialogues: lists of strings or of {role, content} messages; implies --packing"
    )
    reverse_turns: bool = option(False, "Reverse dialogues, to rerank replies (MMI)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reverse_turns and self.turns_column is None:
            raise ValueError("--reverse_turns needs --turns_column")

    def choose_sampling(self, objective: str) -> None:
        """Set the unit of text of .txt files, unless the user has."""
        if self.sample_by is not None:
            return
        texts = any(format_of(Path(name)) == ".txt" for name in self.train_file or ())
        self.sample_by = "line"
        if texts and objective not in ("masked", "mlm+nsp") and not self.packing:
            self.sample_by = "passage" if self.streaming else "document"
            what = "Passages of a .txt file are" if self.streaming else "Each .txt file is"
            report(f"{what} one text, line breaks included; --sample_by line makes each line one.")


@dataclass
class ClassifierDataArguments(TextDataArguments):
    """The data of a classifier: texts with labels."""

    text_column: str = option("text", "Column of the text")
    text_pair_column: str | None = option(None, "Column of a second text, for pairs")
    label_column: str = option("label", "Column of the label: ids or names")
    labels_column: str | None = option(None, "Column of lists of labels, instead of one label")
    score_column: str | None = option(None, "Column of numbers, instead of a label (regression)")
    max_length: int = option(128, "Maximum length of a text, or pair, in tokens", limit=limits.POSITIVE_INT)
    truncation_side: Literal["left", "right"] = option("right", "Side at which long texts are cut")
    packing: bool | None = option(None, "Pack texts into rows (default: if it pays off)")


@dataclass
class TokenDataArguments(TextDataArguments):
    """The data of a classifier of tokens: lists of tokens, and of a tag for each."""

    train_file: list[str] | None = option(
        None,
        "Local files or patterns: .conll, .txt (token first, tag last in a line; also .gz), .json, .jsonl, .parquet",
    )
    tokens_column: str = option("tokens", "Column of the lists of tokens")
    tags_column: str = option("tags", "Column of the lists of tags: ids or names")
    max_length: int = option(128, "Maximum length of a text in pieces of tokens", limit=limits.POSITIVE_INT)


@dataclass
class ImageDataArguments(DataArguments):
    """The data of an image encoder: images, with labels for a classifier."""

    train_file: list[str] | None = option(
        None, "Folder with a folder of images per class, or files with a column of images or paths"
    )
    validation_file: list[str] | None = option(None, "Local validation folder or files")
    test_file: list[str] | None = option(None, "Local test folder or files")
    image_column: str = option("image", "Column of the image, or of the path of its file")
    label_column: str = option("label", "Column of the label: ids or names")
    image_size: int | None = option(
        None,
        "Height and width in pixels (default: the model's, of a new one the data's, at most 64)",
        limit=limits.POSITIVE_INT,
    )


DATA_ARGUMENTS: dict[TaskName, type[DataArguments]] = {
    "translation": TranslationDataArguments,
    **dict.fromkeys(get_args(Objective), LanguageModelDataArguments),
    **dict.fromkeys(("classification", "multi_label_classification", "regression"), ClassifierDataArguments),
    "token_classification": TokenDataArguments,
    **dict.fromkeys(("image_classification", "masked_image"), ImageDataArguments),
}
