"""What the tests of the experiments share."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def users_faces():
    """A file with the fields of TFD_48x48.mat: NATGRAD_FACES, or where one lies beside the project."""
    beside = Path(__file__).parents[3] / "shared" / "data" / "faces_tfd_format.mat"
    path = Path(os.environ.get("NATGRAD_FACES", beside))
    if not path.exists():
        pytest.skip("no file of faces: NATGRAD_FACES names none")
    return path
