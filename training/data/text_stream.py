"""The texts of a split that is read while training."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from datasets import ClassLabel
from datasets import IterableDataset as Stream

from vanillaformer.hub.reporting import report

from .bad_rows import FILE
from .json_files import cell_of
from .opening import LINES, PROBLEM, ROW


@dataclass
class TextStream:
    """The rows of a split in the task's columns, one after the other, as often as asked for.

    Attributes:
        where: What it is from, in words.
        source: The stream.
        columns: The column of the stream for each of the task.
        skip_bad: Leave out rows that cannot be used; otherwise the first is an error.
        drop_blank: Texts of white space alone are no mistake.
        buffer: Rows among which the next one is drawn; 0 keeps the order.
        seed: Decides all orders.
        names: The classes, once they are known.
        left_out: Texts whose rows are left out, because they are held out.
        reported: Kinds of messages that have been printed.
    """

    where: str
    source: Stream
    columns: dict[str, str]
    skip_bad: bool = False
    drop_blank: bool = False
    buffer: int = 0
    seed: int = 0
    names: list[str] | None = None
    left_out: frozenset[str] = field(default_factory=frozenset)
    reported: set[str] = field(default_factory=set)

    def rows(self, epoch: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the rows of an epoch, with what to call each in messages; the first that is left out is reported.

        Raises:
            ValueError: Naming the row, when it cannot be used.
        """
        return ((name, cells) for _, name, cells in self.numbered_rows(epoch))

    def numbered_rows(self, epoch: int = 0) -> Iterator[tuple[int, str, dict[str, Any]]]:
        """Yield the same with the number of rows of the stream that have been read."""
        source, bad = self.source, 0
        if self.buffer:
            source = source.shuffle(seed=self.seed, buffer_size=self.buffer)
            source.set_epoch(epoch)
        for number, row in enumerate(source, start=1):
            cells = {column: cell_of(row, name) for column, name in self.columns.items()}
            problem, name = row.get(PROBLEM) or self._problem(cells), self._row_name(row, number)
            if row.get(LINES, 1) > 1:
                lines = f"{name} has cells with line breaks ({row[LINES]:,} lines)"
                self._report_first("lines", f"{lines}: is its quotation mark closed in the right place?")
            if problem:
                if not self.skip_bad:
                    raise ValueError(f"{self.where}, {name}: {problem}; --bad_rows skip leaves such rows out")
                bad += 1
                self._report_first("bad", f"{name} is bad and left out, as are others like it: {problem}.")
            elif not self._unwanted(cells):
                yield number, name, cells
        if bad:
            self._report_first("count", f"{bad:,} of {number:,} rows are bad and left out.")

    def _report_first(self, kind: str, message: str) -> None:
        """Report something that is true of every epoch once."""
        if kind not in self.reported:
            self.reported.add(kind)
            report(f"{self.where}: {message}")

    def _row_name(self, row: Mapping[str, Any], number: int) -> str:
        """Return what to call a row: by its number in its file, or in the order of reading where there is none."""
        if ROW not in row:
            return f"row {number} as read"
        return f"row {row[ROW]}" + (f" of {row[FILE]}" if FILE in row else "")

    def _problem(self, cells: dict[str, Any]) -> str | None:
        for column, cell in cells.items():
            if column == "label":
                known = self.names is None or self._name(cell) in self.names
                if not (cell.strip() if isinstance(cell, str) else isinstance(cell, int)):
                    return f"{cell!r} is not a label (a name or an integer is)"
                if not known:
                    return f"label {cell!r} is not one of the {len(self.names or ())} known"
            elif not isinstance(cell, str):
                return f"the {column} is {'empty' if cell is None else 'not text'}"
            elif not cell.strip() and not self.drop_blank:
                return f"the {column} is empty"
        return None

    def _name(self, label: Any) -> str | None:
        """Return the name of a label; ids of a stream that knows its classes have one."""
        feature = (self.source.features or {}).get(self.columns["label"])
        if isinstance(feature, ClassLabel):
            return feature.names[label] if isinstance(label, int) and 0 <= label < feature.num_classes else None
        return str(label).strip()

    def label_id(self, label: Any) -> int:
        """Return the id of a label of the classes."""
        return (self.names or []).index(self._name(label) or "")

    def _unwanted(self, cells: dict[str, Any]) -> bool:
        text = next(iter(cells.values()))
        return text in self.left_out or not text.strip()


def order_seed(arguments: Any) -> int:
    """Return the seed of the rows' order that training arguments ask for."""
    return arguments.seed if arguments.data_seed is None else arguments.data_seed
