"""A folder that runs as a Space of the Hugging Face Hub: the page of a model, the package, and what both need."""

import shutil
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import vanillaformer
from vanillaformer.hub.new_folder import new_folder
from vanillaformer.hub.pushing import files_to_push
from vanillaformer.inference.arguments import GenerateArguments

from .answers import open_answers
from .page import GRADIO_NEEDED
from .server import PORT

PACKAGE, EXTRA = "vanillaformer", "explore"
MODELS = "models"
PYTHON = "3.11"  # that of Spaces is older
APP = '''"""The page of a model. On your own machine: `python app.py`, then http://127.0.0.1:{port}."""

import os
from pathlib import Path

from vanillaformer.exploration.browser.server import HOST, PORT, serve
from vanillaformer.inference.arguments import GenerateArguments

MODEL = {model}
REVISION = {revision!r}

if __name__ == "__main__":
    host = "0.0.0.0" if "SPACE_ID" in os.environ else HOST  # a Space is reached from outside
    serve(GenerateArguments(str(MODEL), revision=REVISION), host, int(os.environ.get("PORT", PORT)))
'''
REQUIREMENTS = """# torch without the packages for GPUs
--extra-index-url https://download.pytorch.org/whl/cpu
{lines}
"""
README = """---
{header}---

# {name}

This page asks the model {place} and shows what happens inside it. `vanillaformer explore {name} --space` wrote it.

- `app.py` starts the page.
- `vanillaformer/` is the package, version {version}.
{contents}- `requirements.txt` lists what they need.

To put it on the Hub, after `hf auth login`:

    hf repos create USER/{name} --type space --sdk gradio
    hf upload USER/{name} . --type space

On your own machine: `pip install -r requirements.txt && python app.py`.
"""


def write_space(arguments: GenerateArguments, folder: Path) -> list[str]:
    """Write a folder that runs as a Space, and return the names of what is in it.

    A model of the Hub is named in it, with its revision, and fetched by the Space; one in a folder is copied, those of
    its files that `vanillaformer push` takes. The package is copied too: the Space runs the version that wrote it.

    Args:
        arguments: The model.
        folder: The folder, which must be new or empty.

    Raises:
        ImportError: Gradio is not installed.
        ValueError: The model cannot be used, or the folder is not empty.
    """
    given, gradio = arguments.model_name_or_path, installed_gradio()
    name = open_answers(arguments).name  # a model that cannot be used is an error here, not on the Hub
    local = Path(given)
    with new_folder(folder) as partial:
        if local.is_dir():
            copy_model(local, partial / MODELS / name)
        copy_package(partial)
        model = f'Path(__file__).parent / "{MODELS}" / {name!r}' if local.is_dir() else repr(given)
        app = APP.format(port=PORT, model=model, revision=arguments.revision)
        (partial / "app.py").write_text(app, encoding="utf-8")
        lines = "\n".join(requirements())
        (partial / "requirements.txt").write_text(REQUIREMENTS.format(lines=lines), encoding="utf-8")
        header = {
            **{"title": name, "emoji": "🔎", "colorFrom": "blue", "colorTo": "gray", "sdk": "gradio"},
            **{"sdk_version": gradio, "python_version": PYTHON, "app_file": "app.py", "pinned": False},
            **({} if local.is_dir() else {"models": [given]}),
        }
        readme = README.format(
            header=yaml.safe_dump(header, sort_keys=False, allow_unicode=True),
            name=name,
            place=f"in `{MODELS}/{name}/`" if local.is_dir() else f"[{given}](https://huggingface.co/{given})",
            contents=f"- `{MODELS}/{name}/` is the model.\n" if local.is_dir() else "",
            version=version(PACKAGE),
        )
        (partial / "README.md").write_text(readme, encoding="utf-8")
        return sorted(f"{path.name}/" if path.is_dir() else path.name for path in partial.iterdir())


def installed_gradio() -> str:
    """Return the version of Gradio.

    Raises:
        ImportError: It is not installed.
    """
    try:
        return version("gradio")
    except PackageNotFoundError as error:
        raise ImportError(GRADIO_NEEDED) from error


def copy_model(source: Path, folder: Path) -> None:
    """Copy the files of a model that may be published, without code: the package has it."""
    for name, path in files_to_push(source).items():
        if path.suffix != ".py":
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / name)


def copy_package(folder: Path) -> None:
    """Copy the package, with its license and the metadata that it reads its version from."""
    package, metadata = Path(vanillaformer.__file__).parent, distribution(PACKAGE)
    shutil.copytree(package, folder / PACKAGE, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    about = folder / f"{PACKAGE}-{metadata.version}.dist-info"
    about.mkdir()
    for name in ("METADATA", "licenses/LICENSE"):
        if text := metadata.read_text(name):
            (about / Path(name).name).write_text(text, encoding="utf-8")


def requirements() -> list[str]:
    """Return what the package and its page need, a requirement each: the versions that are installed here."""
    needed = [Requirement(line) for line in requires(PACKAGE) or ()]
    names = [each.name for each in needed if each.marker is None or each.marker.evaluate({"extra": EXTRA})]
    return [f"{name}=={Version(version(name)).public}" for name in sorted(names, key=str.lower)]
