"""Write the API pages: `make docs`, which calls `python docs/api/make.py build/docs`."""

import pkgutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import vanillaformer


def public_modules() -> Iterator[str]:
    """Names of all modules, also of those that a package's `__all__` leaves out, which pdoc alone would skip."""
    yield vanillaformer.__name__
    for module in pkgutil.walk_packages(vanillaformer.__path__, f"{vanillaformer.__name__}."):
        if not any(part.startswith("_") for part in module.name.split(".")):
            yield module.name


def main(folder: Path) -> None:
    """Write a page for each module, an index, and a search."""
    import pdoc

    warnings.filterwarnings("ignore", message="Error parsing type annotation")  # strings in transformers' own classes
    warnings.filterwarnings("ignore", message="The module specification")  # packages whose modules pdoc finds too
    pdoc.render.configure(
        docformat="google",
        footer_text=f"vanillaformer {vanillaformer.__version__}",
        template_directory=Path(__file__).parent,
    )
    pdoc.pdoc(*public_modules(), output_directory=folder)
    print(f"The index is {folder / 'index.html'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
