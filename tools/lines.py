"""Print the lines and Python files of each folder beside its budget; CONTRIBUTING.md says what a raised budget gives.

python tools/lines.py
"""

from pathlib import Path

ROOT = Path(__file__).parent.parent
# Lines and files that a folder may have
BUDGETS = {
    "acceleration": (1_120, 11),
    "comparison": (1_620, 10),
    "configuration": (2_450, 20),
    "console": (700, 7),
    "conversion": (5_780, 44),
    "data": (4_300, 25),
    "exploration": (2_700, 14),
    "forecasting": (470, 4),
    "hub": (1_900, 15),
    "inference": (1_400, 10),
    "modeling": (5_600, 46),
    "scripts": (800, 14),
    "src": (180, 3),
    "tokenization": (730, 7),
    "training": (7_800, 46),
}
OTHERS = {"tests": (30_000, None), "tools": (2_540, None), "benchmarks": (2_390, None)}
PRODUCT = (36_500, 280)


def size(folder: str) -> tuple[int, int]:
    """Return the lines and the number of the Python files below a folder; links to other folders do not count."""
    files = [path for path in (ROOT / folder).rglob("*.py") if not path.is_symlink()]
    return sum(len(path.read_text("utf-8").splitlines()) for path in files), len(files)


def row(name: str, found: tuple[int, int], budget: tuple[int, int | None]) -> str:
    """Return the line of a folder."""
    over = any(limit is not None and value > limit for value, limit in zip(found, budget))
    lines, files = (f"{value:,} of {limit:,}" if limit else f"{value:,}" for value, limit in zip(found, budget))
    return f"{name:14} {lines:>17} lines {files:>13} files{'  over' * over}"


def main() -> None:
    """Print the table."""
    sizes = {folder: size(folder) for folder in (*BUDGETS, *OTHERS)}
    product = [sizes[folder] for folder in BUDGETS]
    for folder, budget in BUDGETS.items():
        print(row(folder, sizes[folder], budget))
    print(row("product", (sum(lines for lines, _ in product), sum(files for _, files in product)), PRODUCT))
    for folder, other in OTHERS.items():
        print(row(folder, sizes[folder], other))


if __name__ == "__main__":
    main()
