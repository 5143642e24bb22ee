"""A page to be looked at: a story, runs as it would have them, and a reader of HTML."""

from html.parser import HTMLParser

import synthetic
from synthetic import run_log, runs

from natgrad_paper.report import page
from natgrad_paper.report.claims import Below, BestBelow, Claim, Reliable, judge
from natgrad_paper.report.story import Story

SINGLE = {"meta", "img", "br", "hr", "link", "input"}
SETTINGS = {"ksd": {"size": 20}, "damping": {"reduction": "linear"}, "budget": {"seconds": 45.0}}
STORY = Story(
    "Figure 3: the Curves benchmark",
    claims=(
        Claim("a", "It runs reliably.", "Every run learns.", (Reliable("ngd"), Below("ngd", "ngd-same"))),
        Claim("b", "It converges faster.", "NCG-L below NGD-L.", (Below("ncg-l", "ngd-l"),)),
        Claim("c", "It beats the formula.", "NCG-L below NCG-F.", (Below("ncg-l", "ncg-f"),)),
        Claim(
            "h",
            "The best is best.",
            "In time.",
            (BestBelow(("ngd",), "adam"),),
            source="A sceptic’s question.",
        ),
    ),
    groups=(("The paper’s methods", ("sgd", "ngd", "ngd-l", "ncg-l")), ("Controls", ("ngd-same",))),
    paper={"ksd": {"size": 80}, "damping": {"reduction": "linear"}, "hf": {"maxiter": 250}},
    departures=("The data are drawn again.",),
)


def several(**rest):
    """Return three seeds of every method that most claims ask for, as they would have it."""
    rest = {"steps": synthetic.steps(), **rest}
    scales = {"sgd": 9.0, "ngd": 3.0, "ngd-same": 4.0, "ngd-l": 2.0, "ncg-l": 1.0, "own": 2.5}
    return [
        run_log(
            name, seed, scale * 1.02**seed, order=order, settings=SETTINGS,
            pictures=synthetic.pictures(value=20 * order), **rest,
        )
        for order, (name, scale) in enumerate(scales.items())
        for seed in range(3)
    ]  # fmt: skip


class Page(HTMLParser):
    """Reads a page: every element in order, all text, and whether every element is closed where it should be."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.words, self.open = [], [], []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in SINGLE:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.words.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self):
        return " ".join("".join(self.words).split())


def words_of(logs, story=STORY):
    """Return the page's words, without drawing its figure."""
    found = runs(*logs)
    return Page(page.html(found, story, judge(story.claims, found), b"", "natgrad run")).text


def written(logs, directory, story=STORY):
    page.write(runs(*logs), story, directory)
    return (directory / "report.html").read_text(encoding="utf-8")
