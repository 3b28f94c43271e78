"""setuptools cannot discover mapped folders: the explicit lists in pyproject.toml must say what is on the disk."""

import importlib
from pathlib import Path

import pytest
from layout import FOLDERS, OTHER_FOLDERS, PYPROJECT, ROOT

import vanillaformer

PACKAGES: list[str] = PYPROJECT["tool"]["setuptools"]["packages"]


def package_folders() -> dict[str, Path]:
    """Import names of all folders with Python files of ours, sub-packages included."""
    found = {}
    for package, folder in FOLDERS.items():
        for init in sorted((ROOT / folder).rglob("__init__.py")):
            found[".".join([package, *init.parent.relative_to(ROOT / folder).parts])] = init.parent
    return found


def test_every_package_and_its_files_are_listed():
    assert sorted(PACKAGES) == sorted(package_folders()), "a package that is not listed is absent from wheels"
    # What is not listed is absent from wheel and sdist
    found = {
        package: sorted(path.name for path in folder.iterdir() if path.is_file() and path.suffix != ".py")
        for package, folder in package_folders().items()
        if package != "vanillaformer.scripts"
    }
    listed = PYPROJECT["tool"]["setuptools"]["package-data"]
    assert {package: names for package, names in found.items() if names} == listed
    with_code = {path.parent.name for path in ROOT.glob("*/*.py")} - OTHER_FOLDERS
    assert with_code == set(FOLDERS.values()) - {"src/vanillaformer"}
    for path in (path for folder in FOLDERS.values() for path in (ROOT / folder).rglob("*.py")):
        assert (path.parent / "__init__.py").is_file(), f"{path.parent} has no __init__.py"


@pytest.mark.parametrize("package", PACKAGES)
def test_the_installed_package_is_this_checkout(package):
    assert Path(importlib.import_module(package).__file__).resolve().parent == package_folders()[package]


def test_src_holds_the_root_the_command_and_links_to_the_mapped_folders():
    assert [path.name for path in sorted((ROOT / "src").glob("*.py"))] == ["vanillaformer_cli.py"]
    assert [path.name for path in sorted((ROOT / "src/vanillaformer").glob("*.py"))] == ["__init__.py", "__main__.py"]
    assert (ROOT / "src/vanillaformer/py.typed").is_file()
    links = {path.name: path for path in (ROOT / "src/vanillaformer").iterdir() if path.is_symlink()}
    assert sorted(links) == sorted(folder for folder in FOLDERS.values() if "/" not in folder)
    assert all(link.resolve() == ROOT / name for name, link in links.items())
    assert all(not link.readlink().is_absolute() for link in links.values())
    assert not (ROOT / "vanillaformer").exists()
    assert not (ROOT / "__init__.py").exists()


def test_the_version_is_the_projects_and_console_commands_lead_to_functions():
    assert vanillaformer.__version__ == PYPROJECT["project"]["version"]
    for target in PYPROJECT["project"]["scripts"].values():
        module, function = target.split(":")
        assert callable(getattr(importlib.import_module(module), function)), target
