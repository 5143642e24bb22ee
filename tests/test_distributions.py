"""Two distributions from one repository: the library alone, and the experiments with the command."""

import configparser
import email
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {"natgrad": ROOT, "natgrad_paper": ROOT / "paper"}

pytestmark = pytest.mark.long


@pytest.fixture(scope="module", params=FOLDERS)
def built(request, tmp_path_factory):
    """Return a package's name, its wheel and its sdist; the wheel is built from the sdist."""
    pytest.importorskip("build")
    out = tmp_path_factory.mktemp(request.param)
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--outdir",
        str(out),
        str(FOLDERS[request.param]),
    ]
    subprocess.run(command, check=True, capture_output=True, text=True)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return request.param, zipfile.ZipFile(wheel), tarfile.open(sdist)


def files(folder):
    return {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_a_wheel_holds_its_own_package_and_nothing_else(built):
    name, wheel, _ = built
    inside = {entry for entry in wheel.namelist() if ".dist-info/" not in entry}
    assert inside == files(name)
    assert any(entry.endswith("licenses/LICENSE") for entry in wheel.namelist())


def test_an_sdist_has_all_that_a_wheel_needs_and_no_links(built):
    name, _, sdist = built
    members = {member.name.partition("/")[2]: member for member in sdist.getmembers()}
    assert all(member.isfile() for member in members.values())
    assert {f"src/{entry}" for entry in files(name)} < set(members)
    assert {"LICENSE", "README.md", "pyproject.toml", "PKG-INFO"} < set(members)
    assert not {entry for entry in members if entry.startswith(("results/", "docs/", "tests/paper/"))}
    assert any(entry.startswith("tests/") for entry in members) == (name == "natgrad")


def read(wheel, file):
    (path,) = [entry for entry in wheel.namelist() if entry.endswith(f".dist-info/{file}")]
    return wheel.read(path).decode()


def test_each_needs_only_what_it_uses(built):
    name, wheel, _ = built
    needs = email.message_from_string(read(wheel, "METADATA")).get_all("Requires-Dist")
    own = {need.partition(">")[0].strip() for need in needs if "extra ==" not in need}
    libraries = {
        "jinja2",
        "matplotlib",
        "natgrad",
        "pandas",
        "pydantic",
        "rich",
        "scikit-learn",
        "scipy",
        "typer",
    }
    assert own == ({"jax", "numpy", "optax"} if name == "natgrad" else libraries)


def test_the_command_comes_with_the_experiments(built):
    name, wheel, _ = built
    if name == "natgrad":
        assert not any(entry.endswith("entry_points.txt") for entry in wheel.namelist())
        return
    scripts = configparser.ConfigParser()
    scripts.read_string(read(wheel, "entry_points.txt"))
    assert dict(scripts["console_scripts"]) == {"natgrad": "natgrad_paper.cli.command:app"}


def test_both_carry_one_version_and_one_licence():
    assert (ROOT / "LICENSE").read_bytes() == (ROOT / "paper" / "LICENSE").read_bytes()
    assert (ROOT / "paper" / "src").resolve() == ROOT / "src"
