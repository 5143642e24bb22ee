"""What the tests of the experiments share: the user's own data, where `NATGRAD_DATA` names a folder of it."""

import os
from pathlib import Path

import pytest

USERS = {"faces": "*[tT][fF][dD]*.mat", "characters": "*32x32.npz", "mnist": "mnist"}


def of_the_user(what):
    """Return the files of a kind in the folder, or skip the test."""
    folder = os.environ.get("NATGRAD_DATA")
    if not folder:
        pytest.skip("NATGRAD_DATA names no folder")
    found = sorted(Path(folder).glob(USERS[what]))
    if not found:
        pytest.skip(f"NATGRAD_DATA: nothing there is called {USERS[what]}")
    return found


@pytest.fixture(scope="session")
def users_faces():
    """A file with the fields of TFD_48x48.mat."""
    return of_the_user("faces")[0]


@pytest.fixture(scope="session")
def users_characters():
    """Files with `images` and `labels` of 62 classes."""
    return of_the_user("characters")


@pytest.fixture(scope="session")
def users_mnist():
    """A folder with MNIST's four files."""
    return of_the_user("mnist")[0]
