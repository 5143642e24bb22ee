"""The contributor's chores say what is so: the list of slow tests, the oldest versions, one name per recipe."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_list_of_slow_tests_names_what_exists():
    for line in (ROOT / "tests" / "slow.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        path, _, function = line.partition("::")
        assert (ROOT / path).exists(), line
        if function:
            names = {
                node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if hasattr(node, "name")
            }
            assert function in names, line


def floors(requirements):
    return dict(re.fullmatch(r"([\w-]+)>=([\d.]+)", each).groups() for each in requirements if ">=" in each)


@pytest.mark.parametrize("folder", [".", "paper"])
def test_the_oldest_versions_that_are_allowed_are_those_that_are_tested(folder):
    project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    pins = dict(re.findall(r"^([\w-]+)==([\d.]+)", (ROOT / "oldest.txt").read_text(), re.MULTILINE))
    for name, least in floors(project["dependencies"]).items():
        assert pins[name] == least or pins[name].startswith(f"{least}."), name
    assert project["requires-python"] == ">=3.11"
    assert sys.version_info >= (3, 11)


def test_the_old_name_of_kncg_stands_only_beside_the_new_one():
    """In every page and source but CHANGELOG; results keep the words of their day."""
    folders = ("src", "tests", "docs", "examples", "benchmarks", "tools", "paper")
    inner = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    pages = [
        path for path in (*ROOT.glob("*"), *inner) if path.suffix in (".md", ".rst", ".py", ".toml", ".j2")
    ]
    assert len(pages) > 200
    old = re.compile(r"\bng\.(optax\.)?fast\b|\bnatgrad\.fast\(")
    for path in pages:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            said = old.search(line) and "kncg" not in line and path.name != "CHANGELOG.md"
            assert not said, f"{path.relative_to(ROOT)}:{number}: {line}"


SCHEMAS = {
    "workflows/*.yml": "workflows",
    "ISSUE_TEMPLATE/[!c]*.yml": "issue-forms",
    "ISSUE_TEMPLATE/config.yml": "issue-config",
}


@pytest.mark.parametrize("pattern", SCHEMAS)
def test_files_for_the_code_host_have_its_schema(pattern):
    pytest.importorskip("check_jsonschema")
    files = sorted((ROOT / ".github").glob(pattern))
    assert files
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        f"vendor.github-{SCHEMAS[pattern]}",
    ]
    done = subprocess.run([*command, *map(str, files)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_workflow_calls_chores_that_exist():
    chores = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)) | {
        "quick",
        "test",
    }
    text = (ROOT / ".github" / "workflows" / "check.yml").read_text()
    called = {each for line in re.findall(r"\bmake ([a-z -]+)$", text, re.MULTILINE) for each in line.split()}
    assert {"lint", "types", "docs", "test", "test-oldest", "dist"} <= called <= chores
