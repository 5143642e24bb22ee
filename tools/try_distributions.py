"""Try what `make dist` built as a stranger would: metadata, each wheel in an empty environment, the sdist's own tests.

python tools/try_distributions.py dist             # needs what pip can reach
python tools/try_distributions.py dist --no-tests  # without the test suite of the sdist
"""

import re
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]


def call(*command: object, cwd: Path) -> str:
    """Run a command; stop with what it printed, if it fails."""
    done = subprocess.run([str(each) for each in command], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def environment(folder: Path, *needs: object) -> Path:
    """Return the `bin` of a new environment with these installed, in the versions of constraints.txt."""
    venv.create(folder, with_pip=True, clear=True)
    binary = folder / "bin"
    pip = binary / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"
    call(*pip, "-c", ROOT / "constraints.txt", *needs, cwd=folder)
    return binary


def first_snippet() -> str:
    """Return the first program of README.md."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found.group(1)


def main(dist: Path, tests: bool) -> None:
    """Try both distributions."""
    wheels = {path.name.partition("-")[0]: path.resolve() for path in dist.glob("*.whl")}
    sdists = {path.name.partition("-")[0]: path.resolve() for path in dist.glob("*.tar.gz")}
    assert wheels.keys() == sdists.keys() == {"natgrad", "natgrad_paper"}, "make dist builds two of each"
    print(
        call(sys.executable, "-m", "twine", "check", "--strict", *wheels.values(), *sdists.values(), cwd=dist)
    )
    with tempfile.TemporaryDirectory() as place:
        here = Path(place)
        empty = here / "empty"
        empty.mkdir()
        binary = environment(here / "library", wheels["natgrad"])
        print(
            "natgrad alone, README's program:",
            call(binary / "python", "-c", first_snippet(), cwd=empty).strip(),
        )
        binary = environment(here / "paper", wheels["natgrad"], wheels["natgrad_paper"])
        print(call(binary / "natgrad", "--version", cwd=empty).strip())
        run = "run", "curves", "--preset", "smoke", "--methods", "sgd,kncg", "--out", "curves"
        call(binary / "natgrad", *run, cwd=empty)
        assert (empty / "curves" / "report.html").stat().st_size > 10_000
        print("natgrad run curves --preset smoke: a report")
        if tests:
            binary = environment(here / "tests", f"{wheels['natgrad']}[dev]")
            with tarfile.open(sdists["natgrad"]) as archive:
                archive.extractall(here, filter="data")
            (unpacked,) = here.glob("natgrad-*")
            chosen = "-m", "not long and not slow"
            print(call(binary / "python", "-m", "pytest", *chosen, cwd=unpacked).strip().splitlines()[-1])


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), "--no-tests" not in sys.argv)
