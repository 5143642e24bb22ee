"""The entry of the `natgrad` command: it needs the `paper` extra, and says so where that is missing."""

import sys
from importlib.util import find_spec

NEEDED = ("typer", "rich", "matplotlib")


def main() -> None:
    """Run the command."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        print(
            f"natgrad: the command needs {', '.join(missing)}, not installed here: "
            'pip install "natgrad[paper]"',
            file=sys.stderr,
        )  # fmt: skip
        raise SystemExit(1)
    from natgrad_paper.cli.command import app as command

    command()


if __name__ == "__main__":
    main()
