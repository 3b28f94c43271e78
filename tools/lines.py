"""Print the lines and Python files of each folder beside its budget; CONTRIBUTING.md says what a raised budget gives.

python tools/lines.py
"""

from pathlib import Path

ROOT = Path(__file__).parent.parent
# Lines and files that a folder may have
BUDGETS = {
    "acceleration": (1_450, 13),
    "comparison": (1_660, 10),
    "configuration": (2_150, 13),
    "console": (700, 7),
    "conversion": (5_510, 42),
    "data": (5_055, 26),
    "exploration": (2_620, 14),
    "forecasting": (470, 4),
    "hub": (2_100, 15),
    "inference": (1_690, 10),
    "modeling": (5_760, 46),
    "scripts": (900, 15),
    "src": (250, 3),
    "tokenization": (740, 7),
    "training": (8_960, 48),
}
OTHERS = {"tests": (31_400, None), "tools": (3_000, None), "benchmarks": (2_900, None)}
PRODUCT = (39_910, 265)  # the house aims at 36,500: training, data and inference are too large


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
