"""Execute notebooks of docs/notebooks and write them with their outputs as .ipynb.

python tools/notebooks.py                                    # all of them, to build/notebooks
python tools/notebooks.py docs/notebooks/1_attention.md --output /tmp/notebooks

The cells of a notebook are the same in both languages, so that the Chinese one gets the outputs of the English one.
"""

import argparse
import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "notebooks"
LONGEST = 600  # seconds that a cell may take


async def execute(path: Path) -> Any:
    """Return a notebook with the outputs of its cells, which run in an empty folder; raises at the first error."""
    notebook = jupytext.read(path)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        options = {"timeout": LONGEST, "kernel_name": "python3", "resources": resources}
        try:
            return await NotebookClient(notebook, **options).async_execute()
        except RuntimeError:  # of a kernel that died, not of a cell: two that start at once may choose the same port
            return await NotebookClient(notebook, **options).async_execute()


def translated(notebook: Any, path: Path) -> Any:
    """Return the notebook in another language with the outputs of this one."""
    other = jupytext.read(path)
    for cell, executed in zip(other.cells, notebook.cells, strict=True):
        if executed.cell_type == "code":
            cell.update(outputs=executed.outputs, execution_count=executed.execution_count)
    return other


async def run(path: Path, output: Path, slot: asyncio.Semaphore) -> None:
    """Execute a notebook when there is a slot, write it in both languages and print the seconds that it took."""
    async with slot:
        start = time.perf_counter()
        notebook = await execute(path)
    output.joinpath("zh").mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, output / f"{path.stem}.ipynb")
    if (chinese := path.parent / "zh" / path.name).is_file():
        nbformat.write(translated(notebook, chinese), output / "zh" / f"{path.stem}.ipynb")
    print(f"{path.name:28} {time.perf_counter() - start:5.0f} s", flush=True)


async def run_all(paths: list[Path], output: Path, at_once: int) -> None:
    """Execute notebooks, some at a time."""
    slot = asyncio.Semaphore(at_once)
    await asyncio.gather(*(run(path, output, slot) for path in paths))


def main() -> None:
    """Execute the notebooks that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", type=Path, help="Markdown files (default: all English ones)")
    parser.add_argument("--output", type=Path, default=Path("build/notebooks"), help="folder (default: %(default)s)")
    parser.add_argument("--at_once", type=int, default=2, help="notebooks that run at a time (default: %(default)s)")
    arguments = parser.parse_args()
    # For the kernels: no notebook needs a network, or the progress bars that tqdm misses
    os.environ.update(HF_HUB_OFFLINE="1", PYTHONWARNINGS="ignore:IProgress not found")
    paths = arguments.notebooks or sorted(FOLDER.glob("*.md"))
    asyncio.run(run_all(paths, arguments.output, arguments.at_once))


if __name__ == "__main__":
    main()
