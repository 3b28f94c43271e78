"""Settings of Sphinx for the site that `make docs` builds; tools/documentation.py lays out the pages."""

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for sphinx_markup

project = "vanillaformer"
version = release = installed_version(project)
copyright = "the authors of vanillaformer, Apache-2.0"
extensions = [
    *("sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "sphinx.ext.githubpages"),
    *("myst_nb", "sphinx_markup"),
]
root_doc = "index"

myst_enable_extensions = ["dollarmath", "html_image"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # tools/notebooks.py has executed them
nb_merge_streams = True

default_role = "py:obj"  # what single backticks in docstrings are: a link where the name is known, code otherwise
add_module_names = False
autodoc_default_options = {"members": True, "undoc-members": True, "show-inheritance": True, "ignore-module-all": True}
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = [
    (section, "params_style")
    for section in (
        *("Sizes", "Feedforward layer", "Norms and residual connections", "Positions", "Attention"),
        *("Embeddings and training", "Output layer of the language models"),
    )
]
viewcode_follow_imported_members = False
toc_object_entries_show_parents = "hide"
python_maximum_signature_line_length = 100

html_theme = "furo"
html_title = f"{project} {version}"
html_math_renderer = "mathml"
html_show_sphinx = False
html_copy_source = False
html_favicon = "static/icon.svg"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_search_language = "mixed"
