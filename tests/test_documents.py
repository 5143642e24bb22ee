"""Every Python snippet in the README and the docs runs, and every docstring example is true."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import jax
import pytest

import natgrad

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


@pytest.fixture(autouse=True)
def as_a_user_runs_it():
    """Snippets run in JAX's default settings: float32, standard promotion."""
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_snippets_run(page):
    """The snippets of a page run one after another, as a reader would type them."""
    scope: dict = {}
    for snippet in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
        exec(compile(snippet, str(page), "exec"), scope)


def test_readme_has_a_snippet():
    assert "```python" in (ROOT / "README.md").read_text()


def test_docstring_examples():
    modules = [m.name for m in pkgutil.walk_packages(natgrad.__path__, "natgrad.") if "lineax" not in m.name]
    results = [doctest.testmod(importlib.import_module(name)) for name in modules]
    assert sum(result.failed for result in results) == 0


def test_links_between_documents_lead_somewhere():
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_project_depends_on_jax_and_optax_only():
    """The library imports nothing else at run time (scipy, lineax and rich are imported where they are used)."""
    allowed = {"jax", "numpy", "optax", "scipy", "lineax", "rich", "natgrad"}
    standard = re.compile(r"^\s*(?:from|import) (\w+)", re.MULTILINE)
    import sys

    for path in (ROOT / "src" / "natgrad").rglob("*.py"):
        code = path.read_text().split('"""')[::2]
        for name in standard.findall("".join(code)):
            assert name in allowed or name in sys.stdlib_module_names, f"{path.name} imports {name}"


def test_no_private_api_and_no_pickle():
    banned = re.compile(r"jax\._src|jax\.core|jax\.interpreters|equinox\.internal|\bpmap\(|\bpickle\b")
    for path in (ROOT / "src").rglob("*.py"):
        assert not banned.search(path.read_text()), path.name
