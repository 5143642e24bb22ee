"""The few kinds of content that a page is made of. The template knows each by its `kind`."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import matplotlib.image
import numpy as np
from matplotlib.figure import Figure

from natgrad_paper.report.figure import svg


@dataclass(frozen=True)
class Words:
    """A paragraph."""

    kind: ClassVar = "words"
    text: str


@dataclass(frozen=True)
class Cell:
    """A cell of a table with a note below its text."""

    kind: ClassVar = "cell"
    text: str
    note: str = ""
    strong: bool = False


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure, or an image of gray levels."""

    kind: ClassVar = "picture"
    image: Figure | bytes | np.ndarray
    """A figure, its SVG, or bytes of shape (height, width): 0 is black."""
    caption: str = ""
    alt: str = ""
    """The alternative text for readers who cannot see the picture."""

    @property
    def pixels(self) -> bool:
        """Whether it is an image, of pixels."""
        return isinstance(self.image, np.ndarray)

    @cached_property
    def address(self) -> str:
        """The whole picture as a data address."""
        if isinstance(self.image, np.ndarray):
            stream, unsaid = io.BytesIO(), {"Software": None}
            levels = np.repeat(self.image[:, :, None], 3, axis=2)
            matplotlib.image.imsave(stream, levels, format="png", metadata=unsaid)  # type: ignore[arg-type]
            return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"
        drawn = self.image if isinstance(self.image, bytes) else svg(self.image)
        return f"data:image/svg+xml;base64,{base64.b64encode(drawn).decode()}"


@dataclass(frozen=True)
class Table:
    """A table. The first cell of every row is its header."""

    kind: ClassVar = "table"
    head: Sequence[str]
    rows: Sequence[Sequence[str | Cell | Picture]]
    caption: str = ""
    numbers: bool = False
    """Whether its cells are numbers, which are aligned right."""


Content = Words | Picture | Table


@dataclass(frozen=True)
class Part:
    """A section of the page."""

    title: str
    id: str
    contents: Sequence[Content]
