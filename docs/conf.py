"""How the documentation site is built: `make docs`, into site/. Warnings are errors."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import source_pages

import natgrad

project = "natgrad"
author = "The natgrad authors"
copyright = author
release = version = natgrad.__version__

extensions = [
    "api_map",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.linkcode",
    "prose",
    "result_pages",
    "source_pages",
]
exclude_patterns = ["_ext"]
myst_heading_anchors = 3
suppress_warnings = ["myst.strikethrough"]

# Nothing is fetched from elsewhere: the site can be read from a disk.
html_theme = "furo"
html_title = "natgrad"
html_static_path = ["_static"]
html_css_files = ["natgrad.css"]
html_copy_source = False
html_show_sphinx = False

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_class_signature = "mixed"
maximum_signature_line_length = 88
add_module_names = False
linkcode_resolve = source_pages.resolve

# Of a part (a small frozen dataclass) the reader wants the fields; of these also the methods.
WITH_METHODS = ("Optimizer", "Likelihood", "Operator", "Outcome", "Reason", "Report")
autodoc_default_options = {"members": True}


def setup(app):
    """Leave out the methods of parts."""

    def skip(app, what, name, obj, skipped, options):
        owner = getattr(obj, "__qualname__", "").partition(".")[0]
        method = callable(obj) or isinstance(obj, (property, classmethod, staticmethod))
        return True if what == "class" and method and owner not in WITH_METHODS else None

    app.connect("autodoc-skip-member", skip)
