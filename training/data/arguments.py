"""Which data to train on: the options of all training programs."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from vanillaformer.hub.reporting import report

from ..limits import NOT_NEGATIVE, POSITIVE_INT, Limit, check_limits
from .dialogue import DialogueArguments
from .opening import ReadOptions, format_of

Task = Literal["translation", "language_model", "classification"]
COLUMNS: dict[Task, tuple[str, ...]] = {
    "translation": ("source", "target"),
    "language_model": ("text",),
    "classification": ("text", "label"),
}
SPLITS = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
"""The splits, each with what data sets on the Hub, or cells of a column, call it."""

DATA_LIMITS: dict[str, Limit] = {
    **dict.fromkeys(("max_train_samples", "max_validation_samples", "max_test_samples"), POSITIVE_INT),
    **dict.fromkeys(("max_source_length", "max_target_length", "max_length", "block_size"), POSITIVE_INT),
    **dict.fromkeys(("tokenizer_samples", "preprocessing_num_workers"), POSITIVE_INT),
    "streaming_buffer": NOT_NEGATIVE,
    "embedded_size": ("at least 100", lambda value: value >= 100),
}


@dataclass
class DataArguments(DialogueArguments):
    """Which data to train on, and how much of it."""

    dataset: str = field(
        default="embedded",
        metadata={
            "help": "`embedded` (made from installed packages, no download) or the id of a data set on the Hub. "
            "Not used when --train_file is given."
        },
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of the Hub data set."})
    train_file: list[str] | None = field(
        default=None,
        metadata={
            "help": "Local training data: one or more files or patterns ('part-*.csv.gz'): .csv, .tsv, .json, .jsonl, "
            ".txt, each also with .gz, or .parquet."
        },
    )
    validation_file: list[str] | None = field(default=None, metadata={"help": "Local validation data, same formats."})
    test_file: list[str] | None = field(default=None, metadata={"help": "Local test data, same formats."})
    train_target_file: list[str] | None = field(
        default=None,
        metadata={"help": "Translation only: a .txt file parallel to a .txt --train_file, line by line."},
    )
    validation_target_file: list[str] | None = field(
        default=None, metadata={"help": "Translation only: the lines parallel to a .txt --validation_file."}
    )
    test_target_file: list[str] | None = field(
        default=None, metadata={"help": "Translation only: the lines parallel to a .txt --test_file."}
    )
    csv_separator: str | None = field(
        default=None,
        metadata={
            "help": "Character between the cells of .csv and .tsv files; \\t is a tab (default: a comma, in .tsv "
            "files a tab)."
        },
    )
    csv_quoting: Literal["minimal", "none"] | None = field(
        default=None,
        metadata={
            "help": "Cells of .csv and .tsv files: minimal, may be in quotation marks, which then are doubled inside; "
            "none, marks are text (default: minimal, for .tsv files none)."
        },
    )
    source_column: str = field(
        default="source", metadata={"help": "Column of the source text; `translation.en` reaches into a struct."}
    )
    target_column: str = field(
        default="target", metadata={"help": "Column of the target text; `translation.de` reaches into a struct."}
    )
    text_column: str = field(default="text", metadata={"help": "Column of the text (language model, classifier)."})
    label_column: str = field(default="label", metadata={"help": "Column of the label (classifier): ids or names."})
    sample_by: Literal["line", "paragraph", "passage", "document"] | None = field(
        default=None,
        metadata={
            "help": "Language model: what one text of a .txt file is: a line, a paragraph (between blank lines), a "
            "passage (lines of about 2,048 characters together) or the document (the whole file); all but line keep "
            "line breaks. Default: document for --objective causal (with --streaming passage, with --packing line), "
            "otherwise line. --objective mlm+nsp needs texts of several sentences."
        },
    )
    split_column: str | None = field(
        default=None,
        metadata={
            "help": "Column of --train_file, or of the Hub data set, that says which split a row belongs to: train, "
            "validation (or valid, val, dev) or test."
        },
    )
    validation_fraction: float = field(
        default=0.05, metadata={"help": "Part of the training data held out when there is no validation data."}
    )
    test_fraction: float = field(
        default=0.0, metadata={"help": "Part of the training data held out for the test (default: none)."}
    )
    hold_out: Literal["random", "end"] = field(
        default="random",
        metadata={
            "help": "What is held out: rows of distinct texts (sources) drawn at random, or the end: the last rows. "
            "Of a single text (one .txt file) it is always the end: its last characters."
        },
    )
    order_column: str | None = field(
        default=None,
        metadata={
            "help": "--hold_out end: the last rows in the order of this column, such as a date, or an id by which "
            "rows of one origin stand together and are not held out from each other."
        },
    )
    drop_leaked_rows: bool = field(
        default=False,
        metadata={"help": "Leave out training rows whose text (source) also occurs in validation or test data."},
    )
    bad_rows: Literal["error", "skip"] = field(
        default="error",
        metadata={
            "help": "Rows without a text or a known label, or that cannot be read: the first is an error, or all are "
            "left out and counted."
        },
    )
    split_seed: int = field(
        default=0,
        metadata={"help": "Decides what is held out and what is kept by the caps; not moved by the seed of a run."},
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Use only so many training rows."})
    max_validation_samples: int | None = field(default=None, metadata={"help": "Use only so many validation rows."})
    max_test_samples: int | None = field(default=None, metadata={"help": "Use only so many test rows."})
    embedded_size: int = field(
        default=30_000, metadata={"help": "Embedded translation data: how many pairs, all splits together."}
    )
    source_locale: str = field(default="en", metadata={"help": "Embedded translation data: from this locale."})
    target_locale: str = field(default="de", metadata={"help": "Embedded translation data: to this locale."})
    max_source_length: int = field(default=128, metadata={"help": "Source tokens kept, special tokens included."})
    max_target_length: int = field(default=128, metadata={"help": "Target tokens kept, special tokens included."})
    max_length: int = field(default=128, metadata={"help": "Classifier: tokens kept, special tokens included."})
    truncation_side: Literal["left", "right"] = field(
        default="right",
        metadata={
            "help": "Classifier: where a text that is too long is cut; left keeps its end. Saved with the tokenizer."
        },
    )
    block_size: int = field(default=128, metadata={"help": "Language model: tokens in one block."})
    block_stride: int | None = field(
        default=None,
        metadata={
            "help": "Language model: tokens from the start of one training block to that of the next; fewer than "
            "--block_size, and an epoch shows each token in several contexts (default: blocks do not overlap)."
        },
    )
    streaming: bool = field(
        default=False,
        metadata={
            "help": "Read the training data while training, again and again for --max_steps steps, in place of "
            "loading it first. Without validation data its first rows are held out: --max_validation_samples, or 1000."
        },
    )
    streaming_buffer: int = field(
        default=10_000,
        metadata={"help": "--streaming: rows among which the next one is drawn; 0 keeps the order of the data."},
    )
    tokenizer_samples: int = field(
        default=50_000,
        metadata={"help": "--streaming: a tokenizer is trained, and labels are looked for, in so many first rows."},
    )
    packing: bool = field(
        default=False,
        metadata={
            "help": "Language model: put whole texts into rows of --block_size, none of which sees another, in place "
            "of cutting the stream of all texts."
        },
    )
    long_texts: Literal["cut", "skip", "error"] = field(
        default="cut",
        metadata={
            "help": "Texts of more tokens than --max_length, --max_source_length or --max_target_length, with "
            "--packing than --block_size: cut them, leave their rows out, or stop. They are counted in any case."
        },
    )
    bleu_tokenize: Literal["13a", "intl", "zh", "char", "none"] = field(
        default="13a", metadata={"help": "Translation: sacrebleu's tokenization; zh or char for Chinese, Japanese."}
    )
    bleu_lowercase: bool = field(
        default=False,
        metadata={
            "help": "Translation: BLEU without regard to case; with --bleu_tokenize none, on tokenised text, the one "
            "that many papers give."
        },
    )
    preprocessing_num_workers: int | None = field(
        default=None, metadata={"help": "Processes for tokenization (default: this one)."}
    )
    data_license: str | None = field(
        default=None, metadata={"help": "License of the data, for the model card (default: as far as it is known)."}
    )
    data_description: str | None = field(
        default=None, metadata={"help": "What the data is, in a sentence for the model card."}
    )
    card_example: str | None = field(
        default=None,
        metadata={
            "help": "An input for the code in the model card, for masked models with a [MASK] (default: a neutral "
            "text, of embedded data a row; rows of your data are not published)."
        },
    )

    @property
    def is_embedded(self) -> bool:
        """Whether the data is made from installed packages."""
        return self.train_file is None and self.dataset == "embedded"

    def __post_init__(self) -> None:
        """Take a single file for a list of one."""
        for name in (f"{split}{side}_file" for split in ("train", "validation", "test") for side in ("", "_target")):
            if isinstance(getattr(self, name), str | Path):
                setattr(self, name, [str(getattr(self, name))])
        self.check_numbers()

    def check_numbers(self) -> None:
        """Raise ValueError for numbers and fractions outside their limits."""
        check_limits(self, DATA_LIMITS)
        validation, test = self.validation_fraction, self.test_fraction
        if not 0 < validation < 1:
            raise ValueError(f"--validation_fraction {validation}: it must lie between 0 and 1")
        if not 0 <= test < 1:
            raise ValueError(f"--test_fraction {test}: it must lie between 0 (no test part) and 1")
        if validation + test >= 1:
            raise ValueError(
                f"--validation_fraction {validation} and --test_fraction {test} leave nothing to train on"
            )
        if self.order_column is not None and self.hold_out != "end":
            raise ValueError(f"--order_column {self.order_column} is for --hold_out end, not {self.hold_out}")

    def choose_sampling(self, objective: str) -> None:
        """Set what one text of a .txt file is for a language model, where the user has not."""
        if self.sample_by is not None:
            return
        texts = any(format_of(Path(name)) == ".txt" for name in self.train_file or ())
        self.sample_by = "line"
        if texts and objective == "causal" and not self.packing:
            self.sample_by = "passage" if self.streaming else "document"
            what = "Passages of a .txt file are" if self.streaming else "Each .txt file is"
            report(f"{what} one text, line breaks included; --sample_by line makes each line one.")

    def read_options(self) -> ReadOptions:
        """Return how text files are read.

        Raises:
            ValueError: The separator is not one character.
        """
        separator = "\t" if self.csv_separator == "\\t" else self.csv_separator
        if separator is not None and (len(separator) != 1 or separator in '"\r\n'):
            raise ValueError(f"--csv_separator {separator!r}: it must be one character, such as ; or \\t")
        return ReadOptions(separator, self.csv_quoting, self.sample_by or "line")
