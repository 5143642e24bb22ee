"""What README and docs say is so: snippets run, names exist, links lead somewhere, nothing public is left out."""

import dataclasses
import doctest
import importlib
import pkgutil
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import natgrad
import natgrad.optax
import natgrad.solve
from natgrad_paper import figures
from natgrad_paper.cli.command import app
from natgrad_paper.figures import curves
from natgrad_paper.figures.base import settings_with
from natgrad_paper.training import log

pytestmark = pytest.mark.usefixtures("fast_compile")

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("**/*.md"))]


@pytest.fixture
def locate(monkeypatch):
    """Return what the site uses to find a name's file and line."""
    monkeypatch.syspath_prepend(DOCS / "_ext")
    return importlib.import_module("where").locate


@pytest.fixture(autouse=True)
def as_a_user_runs_it():
    """Snippets run in JAX's default settings: float32, standard promotion."""
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        yield


def snippets(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if snippets(page)], ids=lambda page: page.name)
def test_snippets_run(page):
    """The snippets of a page run one after another, as a reader would type them."""
    scope: dict = {}
    for snippet in snippets(page):
        exec(compile(snippet, str(page), "exec"), scope)


def invoke(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def test_a_method_is_one_place_and_an_experiment_one_file(tmp_path, monkeypatch):
    """What CONTRIBUTING shows is put where it says, and the command runs it."""
    *_, place, file = snippets(ROOT / "CONTRIBUTING.md")
    scope: dict = {}
    exec(place, scope)
    methods = (*curves.METHODS, scope["METHOD"])
    settings = settings_with(curves.Settings, methods)
    monkeypatch.setattr(
        curves, "EXPERIMENT", dataclasses.replace(curves.EXPERIMENT, methods=methods, settings=settings)
    )
    out = tmp_path / "curves"
    options = (
        "--preset",
        "smoke",
        "--methods",
        "sgd,ngd-kl",
        "--set",
        "kl.radius=0.05",
        "--set",
        "kl.batch=100",
    )
    invoke("run", "curves", *options, "--out", out)
    sgd, added = (log.read(out / "logs" / f"{name}.0.jsonl") for name in ("sgd", "ngd-kl"))
    assert added.complete
    assert added.header["settings"]["kl"] == {"radius": 0.05, "batch": 100, "maxiter": 6}
    assert "kl" not in sgd.header["settings"]
    assert "NGD, KL radius" in (out / "report.html").read_text()
    assert "kl.radius" in invoke("show", "curves")

    home, out = tmp_path / "figures", tmp_path / "sine"
    home.mkdir()
    (home / "sine.py").write_text(file)
    monkeypatch.setattr(figures, "__path__", [*figures.__path__, str(home)])
    assert "sine" in invoke("list")
    invoke("run", "sine", "--set", "points=50", "--out", out)
    found = {each.method: each for each in log.read_all(out)}
    assert found.keys() == {"sgd", "ngd"}
    first, *_, last = found["ngd"].evaluations
    assert last["squared_error"] < 0.1 * first["squared_error"]
    assert "points=50" in (out / "report.html").read_text()
    invoke("run", "sine", "--resume", "--seeds", "2", "--out", out)
    monkeypatch.delitem(sys.modules, "natgrad_paper.figures.sine")


def test_a_part_is_a_page_of_code(compilations):
    """The metric, the search and the preconditioner that CONTRIBUTING shows run as a stranger would use them."""
    scope: dict = {}
    for snippet in snippets(ROOT / "CONTRIBUTING.md")[:3]:
        exec(snippet, scope)
        code = [line for line in snippet.splitlines() if line]
        assert len(code) <= 30

    def model(params, x):
        return jnp.tanh(x @ params["w"]) @ params["v"]

    params = {"w": jnp.eye(3, 4) + 0.1, "v": jnp.ones((4, 2)) / 4}
    x = jnp.asarray(np.random.default_rng(0).normal(size=(20, 3)), jnp.float32)
    batch = (x, jnp.sin(x @ jnp.ones((3, 2))))

    plain = natgrad.metric_product(model, natgrad.Gaussian(), params, x, metric=scope["Plain"](4.0))
    fisher = natgrad.metric_product(model, natgrad.Gaussian(0.5), params, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), plain(params), fisher(params))

    gaussian = natgrad.Gaussian()
    makers = {
        "metric": lambda a: natgrad.natural_gradient(model, gaussian, metric=scope["Plain"](a)),
        "search": lambda a: natgrad.natural_gradient(model, gaussian, search=scope["Halving"](a)),
        "preconditioner": lambda a: natgrad.kncg(
            model, gaussian, preconditioner=scope["RootMeanSquare"](0.9 * a)
        ),
    }
    for name, make in makers.items():
        opt, here = make(1.0), params
        state = opt.init(here)
        for _ in range(20):
            here, state, info = opt.step(here, state, batch)
        with compilations() as count:
            make(0.9).step(here, state, batch)
        assert count() == 0, name
        assert info.loss < 0.5 * jnp.mean(gaussian.nll(model(params, x), batch[1])), name
        bad = (x.at[0, 0].set(jnp.nan), batch[1])
        same, state, info = opt.step(here, state, bad)
        assert not info.accepted
        jax.tree.map(np.testing.assert_array_equal, same, here)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state)), name


def test_no_snippet_escapes_its_run():
    """Code on a page is python that runs, or console; no other fence and no other spelling."""
    fences = {
        fence
        for page in PAGES
        for fence in re.findall(r"^\s*```+ *([^\s`]+)", page.read_text(), re.MULTILINE)
    }
    assert fences <= {"python", "console", "{toctree}", "{include}"}
    assert snippets(ROOT / "README.md")
    assert snippets(DOCS / "start.md")


def public_names():
    """Return the full names of everything that is offered."""
    names = {f"natgrad.{name}": value for name, value in vars(natgrad).items()}
    names |= {f"natgrad.solve.{name}": getattr(natgrad.solve, name) for name in natgrad.solve.__all__}
    names |= {
        f"natgrad.optax.{name}": value
        for name, value in vars(natgrad.optax).items()
        if getattr(value, "__module__", None) == "natgrad.optax"
    }
    ours = {name for name, value in names.items() if getattr(value, "__module__", "").startswith("natgrad.")}
    return {name for name in ours if not name.rpartition(".")[2].startswith("_")}


def test_every_public_name_is_in_the_api_reference():
    documented, module = set(), ""
    for page in sorted(DOCS.glob("api/*.rst")):
        for kind, name in re.findall(
            r"^\.\. (currentmodule|auto\w+):: ([\w.]+)$", page.read_text(), re.MULTILINE
        ):
            if kind == "currentmodule":
                module = name
            else:
                documented.add(name if name.startswith("natgrad.") else f"{module}.{name}")
    offered = public_names()
    # A solver is offered in two places and documented in one.
    short = {
        name
        for name in offered
        if name.startswith("natgrad.solve.") and hasattr(natgrad, name.split(".")[-1])
    }
    assert offered - short - documented == set()
    for name in documented - offered:
        module, _, own = name.rpartition(".")
        assert hasattr(importlib.import_module(module), own), name


def test_the_paper_map_names_what_exists(locate):
    """Each equation's code and test is found by name; the site shows the line of today."""
    text = (DOCS / "paper_map.md").read_text()
    names = re.findall(r"\{source\}`([^`]+)`", text)
    assert len(names) > 50
    for name in names:
        path, line = locate(name)
        own = name.rpartition(".")[2]
        found = (ROOT / path).read_text().splitlines()[line - 1]
        assert line == 1 or re.search(rf"\b{own}\b", found), f"{name}: {path}:{line} is {found!r}"
    mapped = {int(number) for number in re.findall(r"\((\d+)\)", text)}
    for first, last in re.findall(r"\((\d+)\)–\((\d+)\)", text):
        mapped |= set(range(int(first), int(last)))
    assert mapped == set(range(1, 33)), "the paper has 32 equations"


def test_a_name_that_is_gone_is_missed(locate):
    for name in ("natgrad.metric.Gone", "natgrad.gone.Fisher", "nothing.at.all"):
        with pytest.raises(LookupError, match=name.split(".")[0]):
            locate(name)


def test_every_example_is_on_the_examples_page():
    text = (DOCS / "examples.md").read_text()
    for path in (ROOT / "examples").rglob("*.py"):
        assert f"(../{path.relative_to(ROOT)})" in text, path.name


def test_examples_are_short_and_many_use_the_flagship():
    texts = {path.name: path.read_text() for path in (ROOT / "examples").glob("*.py")}
    long = {name for name, text in texts.items() if len(text.splitlines()) > 80}
    assert not long
    assert sum("ng.kncg(" in text for text in texts.values()) >= 6


def test_every_page_is_in_the_navigation():
    listed = re.findall(r"^(?:.*<)?([\w/]+)>?$", (DOCS / "index.md").read_text(), re.MULTILINE)
    for page in DOCS.glob("*.md"):
        assert page.stem == "index" or page.stem in listed, page.name


def test_docstring_examples():
    modules = [m.name for m in pkgutil.walk_packages(natgrad.__path__, "natgrad.")]
    results = [doctest.testmod(importlib.import_module(name)) for name in modules]
    assert sum(result.failed for result in results) == 0


def test_links_between_documents_lead_somewhere():
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_project_depends_on_jax_and_optax_only():
    """The library imports nothing else at run time (scipy is imported where it is used)."""
    allowed = {"jax", "numpy", "optax", "scipy", "natgrad"}
    standard = re.compile(r"^\s*(?:from|import) (\w+)", re.MULTILINE)
    for path in (ROOT / "src" / "natgrad").rglob("*.py"):
        code = path.read_text().split('"""')[::2]
        for name in standard.findall("".join(code)):
            assert name in allowed or name in sys.stdlib_module_names, f"{path.name} imports {name}"


def test_no_private_api_and_no_pickle():
    banned = re.compile(r"jax\._src|jax\.core|jax\.interpreters|equinox\.internal|\bpmap\(|\bpickle\b")
    for path in (ROOT / "src").rglob("*.py"):
        assert not banned.search(path.read_text()), path.name
