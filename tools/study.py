"""Make the pages and tables of docs/study.md from the folders of its comparisons.

python tools/study.py FOLDER...   # such as runs/study_language_model_64, named as its plan

Scores and tuning of each comparison go to docs/study/NAME.csv and NAME_tuning.csv, its report to NAME.md, the figure
of its scores to NAME.png; the table of docs/study.md is made of what is there, so that folders may come one by one.
"""

import json
import re
import shutil
import sys
from pathlib import Path
from statistics import mean, median

DOCS = Path(__file__).parent.parent / "docs"
BEGIN, END = "<!-- made by tools/study.py -->\n", "<!-- end of what is made -->"
UNITS = {"language_model": "language model", "translation": "translation", "classification": "classification"}


def keep(folder: Path) -> None:
    """Copy scores, tuning, figure and report of a comparison."""
    name, target = folder.name.removeprefix("study_"), DOCS / "study"
    shutil.copyfile(folder / "figures" / "scores.csv", target / f"{name}.csv")
    shutil.copyfile(folder / "figures" / "tuning.csv", target / f"{name}_tuning.csv")
    shutil.copyfile(folder / "figures" / "scores.png", target / f"{name}.png")
    text = (folder / "report.md").read_text(encoding="utf-8")
    sections = re.split(r"(?m)^(?=## )", text)
    kept = [part for part in sections if not part.startswith("## ") or part.startswith("## Variants")]
    (target / f"{name}.md").write_text("".join(kept).rstrip() + "\n", encoding="utf-8")
    found = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    (target / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def cell(report: dict, variant: str) -> str:
    """Return the difference from the baseline, bold where it is found, and the rate that was chosen."""
    entry, percent = report["variants"][variant], report["greater_is_better"]
    rate = f"({entry['tuned']['learning_rate']:g})"
    if variant == report["baseline"]:
        score = mean(entry["scores"].values())
        return f"{100 * score:.1f} % {rate}" if percent else f"{score:.3f} {rate}"
    value = round(entry["test"]["difference"], 3) + 0.0  # no minus before 0
    difference = (f"{100 * value:+.1f}" if percent else f"{value:+.3f}").replace("-", "\N{MINUS SIGN}")
    return f"**{difference}** {rate}" if entry["verdict"] in ("better", "worse") else f"{difference} {rate}"


def resolution(report: dict) -> str:
    """Return the smallest difference that half of the tests can see, and its share of the baseline's score."""
    score = mean(report["variants"][report["baseline"]]["scores"].values())
    tests = [entry["test"] for entry in report["variants"].values() if "test" in entry]
    least = median((test["high"] - test["low"]) / 2 for test in tests)
    words = f"{100 * least:.1f} points" if report["greater_is_better"] else f"{least:.3f}"
    return f"{words}, {100 * least / score:.1f} %"


def table() -> str:
    """Return the table of all comparisons that are kept."""
    reports = {}
    for task, words in UNITS.items():
        for width in ("64", "128"):
            if (path := DOCS / "study" / f"{task}_{width}.json").exists():
                reports[f"[{words}, width {width}](study/{path.stem}.md)"] = json.loads(path.read_text("utf-8"))
    lines = ["| variant | " + " | ".join(reports) + " |", "| --- |" + " --- |" * len(reports)]
    for variant in dict.fromkeys(name for report in reports.values() for name in report["variants"]):
        cells = (cell(report, variant) if variant in report["variants"] else "" for report in reports.values())
        lines.append(f"| {variant} | " + " | ".join(cells) + " |")
    lines.append("| can be seen | " + " | ".join(map(resolution, reports.values())) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    for folder in sys.argv[1:]:
        keep(Path(folder))
    page = DOCS / "study.md"
    text = page.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    page.write_text(before + BEGIN + table() + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
