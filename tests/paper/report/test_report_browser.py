"""The page in a real browser, headless and without a network."""

import http.server
import os
import shutil
import subprocess
import threading
from urllib.parse import urlsplit

import matplotlib.image
import numpy as np
import pytest
from pages import Page, several, written

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))),
    None,
)
NEEDED = "needs Chromium: chromium, chromium-browser or google-chrome"
if BROWSER is None and os.environ.get("NATGRAD_BROWSER") == "required":
    raise RuntimeError(NEEDED)
pytestmark = pytest.mark.skipif(BROWSER is None, reason=NEEDED)


@pytest.fixture(scope="module")
def proxy():
    """Every request a browser makes goes here, is noted and refused."""
    asked = []

    class Refuse(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_error(403)

        do_CONNECT = do_POST = do_GET

        def log_message(self, *words):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Refuse)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}", asked
    server.shutdown()
    server.server_close()


OWN = {"accounts.google.com", "clients2.google.com", "update.googleapis.com"}
"""Hosts that Chromium asks by itself, whatever the page, and not always in the same second."""


def hosts(requests):
    """Return the hosts of requests to a proxy: of whole addresses, or of a host and a port to connect to."""
    return {urlsplit(request if "://" in request else f"//{request}").hostname for request in requests}


@pytest.fixture(scope="module")
def foreign(proxy, tmp_path_factory):
    """Return what tells the hosts that a page asked from those that the browser asks with an empty page, too."""
    address, asked = proxy
    path = tmp_path_factory.mktemp("blank") / "blank.html"
    path.write_text("<p>Nothing.</p>")
    browse(address, path, "--dump-dom")
    blank = hosts(asked) | OWN
    return lambda requests: hosts(requests) - blank


def browse(proxy, path, *wanted):
    """Open a page; return the document after loading, and what the browser wrote to its console."""
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--no-first-run", "--disable-dev-shm-usage",
        f"--user-data-dir={path.parent / 'profile'}", f"--proxy-server={proxy}", "--proxy-bypass-list=<-loopback>",
        "--enable-logging=stderr", "--v=0", "--virtual-time-budget=2000", *wanted, path.as_uri(),
    ]  # fmt: skip
    environment = os.environ | {"HOME": str(path.parent)}
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout, [line for line in result.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    written(several(), directory)
    return directory / "report.html"


def test_page_opens_without_network_errors_or_requests(report, proxy, foreign):
    address, asked = proxy
    asked.clear()
    document, console = browse(address, report, "--dump-dom")
    assert console == []
    assert foreign(asked) == set()
    found = Page(document)
    assert "Figure 3: the Curves benchmark" in found.text
    ids = {attributes.get("id") for _, attributes in found.elements}
    assert {"figure", "results", "claims", "diagnostics", "reconstructions", "time", "settings"} <= ids
    for verdict in ("✓ holds", "– not run"):
        assert verdict in found.text
    assert len(found.all("img")) > 10


def test_the_test_would_see_an_error_and_a_request(tmp_path, proxy, foreign):
    address, asked = proxy
    asked.clear()
    path = tmp_path / "bad.html"
    path.write_text(
        "<link rel='stylesheet' href='https://fonts.googleapis.com/css?family=Roboto'>"
        "<script>console.error('bad')</script><img src='http://tracker.example/x.png'>"
    )
    _, console = browse(address, path, "--dump-dom")
    assert any("bad" in line for line in console)
    assert foreign(asked) == {"tracker.example", "fonts.googleapis.com"}


@pytest.mark.parametrize("width", [400, 1200])
def test_the_figure_is_seen(report, tmp_path, proxy, width):
    """The policy of the page lets pictures through: the color of a line is somewhere on the screen."""
    picture = tmp_path / "page.png"
    browse(proxy[0], report, f"--screenshot={picture}", f"--window-size={width},2000")
    levels = np.round(255 * matplotlib.image.imread(picture)[:, :, :3]).astype(int)
    blue = (levels == (0x00, 0x72, 0xB2)).all(axis=2)
    assert blue.sum() > 50
