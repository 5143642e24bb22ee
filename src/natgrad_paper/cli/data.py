"""`natgrad data`: write generated data to a file."""

from pathlib import Path
from typing import Annotated

import typer

from natgrad_paper.cli.arguments import Overwrite, pick, plain_errors
from natgrad_paper.errors import UserError


def data(
    name: Annotated[str, typer.Argument(help="Which data: curves.")],
    out: Annotated[Path, typer.Option(help="The file to write: .mat or .npz.")],
    seed: Annotated[int, typer.Option(min=0, help="The seed it is generated from.")] = 0,
    overwrite: Overwrite = False,
) -> None:
    """Generate a data set and write it to a file that `natgrad run --data` reads."""
    with plain_errors():
        from natgrad_paper.data import curves, curves_file

        pick({"curves": None}, name, "data")
        if out.exists() and not overwrite:
            raise UserError(
                f"{out}: expected no such file, found one; choose another name or add --overwrite"
            )
        images = curves.generate(seed)
        curves_file.write(out, images)
        counts = f"{len(images.train)} + {len(images.test)} images"
        typer.echo(f"{out}: {images.name}, {counts}, sha256 {images.sha256()}")
