"""`python -m natgrad_paper` is the `natgrad` command."""

from natgrad_paper.cli.command import app

if __name__ == "__main__":
    app()
