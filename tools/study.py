"""Make the pages and tables of study 2 from the folders of its comparisons (docs/study.md).

python tools/study.py FOLDER...   # such as runs/study2_language_model_64, named as its plan

Scores and tuning of each comparison go to docs/study/NAME.csv and NAME_tuning.csv, its report to NAME.md; the table of
docs/study.md is made of what is there, so that folders may come one after the other.
"""

import json
import re
import shutil
import sys
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
BEGIN, END = "<!-- study 2: made by tools/study.py -->\n", "<!-- end of study 2 -->"
UNITS = {"language_model": "language model", "translation": "translation", "classification": "classification"}


def keep(folder: Path) -> None:
    """Copy scores, tuning and report of a comparison."""
    name, target = folder.name.removeprefix("out_"), DOCS / "study"
    name = name if name.startswith("study2_") else f"study2_{name}"
    shutil.copyfile(folder / "figures" / "scores.csv", target / f"{name}.csv")
    shutil.copyfile(folder / "figures" / "tuning.csv", target / f"{name}_tuning.csv")
    text = (folder / "report.md").read_text(encoding="utf-8")
    sections = re.split(r"(?m)^(?=## )", text)
    kept = [part for part in sections if not part.startswith("## ") or part.startswith("## Variants")]
    (target / f"{name}.md").write_text("".join(kept).rstrip() + "\n", encoding="utf-8")
    found = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    (target / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def cell(report: dict, variant: str) -> str:
    """Return the difference from the baseline, bold where it is found, and the rate that was chosen."""
    entry = report["variants"][variant]
    rate = f"{entry['tuned']['learning_rate']:g}"
    if variant == report["baseline"]:
        scores = list(entry["scores"].values())
        return f"{sum(scores) / len(scores):.3f} ({rate})"
    difference = f"{entry['test']['difference']:+.3f}".replace("-", "\N{MINUS SIGN}")
    return f"**{difference}** ({rate})" if entry["verdict"] in ("better", "worse") else f"{difference} ({rate})"


def table() -> str:
    """Return the table of all comparisons that are kept."""
    reports = {}
    for task, words in UNITS.items():
        for path in sorted(
            (DOCS / "study").glob(f"study2_{task}_*.json"), key=lambda path: int(path.stem.split("_")[-1])
        ):
            width = path.stem.split("_")[-1]
            reports[f"[{words}, width {width}](study/{path.stem}.md)"] = json.loads(path.read_text(encoding="utf-8"))
    lines = ["| variant | " + " | ".join(reports) + " |", "| --- |" + " --- |" * len(reports)]
    for variant in dict.fromkeys(name for report in reports.values() for name in report["variants"]):
        cells = (cell(report, variant) if variant in report["variants"] else "" for report in reports.values())
        lines.append(f"| {variant} | " + " | ".join(cells) + " |")
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
