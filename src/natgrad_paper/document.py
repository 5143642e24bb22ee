"""A page as one HTML file that needs nothing else: the house's style, the colors of its figures, no scripts."""

import importlib.resources

from natgrad_paper import drawing
from natgrad_paper.markup import Markup, join, tag


def document(title: str, content: Markup) -> str:
    """Return the whole file."""
    css = importlib.resources.files("natgrad_paper").joinpath("page.css").read_text(encoding="utf-8")
    light, dark = (drawing.palette(content, dark) for dark in (False, True))
    colors = f":root{{{light}}}\n@media (prefers-color-scheme: dark) {{ :root{{{dark}}} }}\n"
    head = join(
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        # No file but this one: whatever a log smuggled in could not load or run anything.
        tag(
            "meta",
            http_equiv="Content-Security-Policy",
            content="default-src 'none'; style-src 'unsafe-inline'; img-src data:",
        ),
        tag("title", title),
        tag("style", Markup(css + colors)),
    )
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{tag("main", content)}\n</body>\n</html>\n'
