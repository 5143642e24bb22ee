"""What the data look like, and cases with what the model makes of them, are in the logs."""

import base64

import jax.numpy as jnp
import numpy as np
import pytest

from natgrad_paper.training import log
from natgrad_paper.training.runner import in_turn
from training.tiny import NGD, SGD, drive, problem, run

pytestmark = pytest.mark.usefixtures("fast_compile")


def test_what_the_data_look_like_and_what_the_model_makes_of_them(tmp_path):
    looks = problem(
        sights={"raw": np.arange(8, dtype=np.uint8).reshape(1, 2, 2, 2)},
        reconstruct=lambda params, inputs: jnp.zeros((len(inputs), 1, 3), jnp.float32),
    )
    drive(run(tmp_path, [SGD, NGD], (0, 1), problem=looks), in_turn)
    logs = {(found.method, found.seed): found for found in log.read_all(tmp_path)}
    assert [(each["what"], each["shape"]) for each in logs["sgd", 0].pictures] == [
        ("data", [1, 2, 2, 2]), ("original", [1, 9, 1, 3]), ("reconstruction", [1, 9, 1, 3]),
    ]  # fmt: skip
    assert [each["what"] for each in logs["sgd", 1].pictures] == ["original", "reconstruction"]
    assert [each["what"] for each in logs["ngd", 0].pictures] == ["original", "reconstruction"]
    raw = [base64.b64decode(each["images"]) for each in logs["sgd", 0].pictures]
    assert raw[0] == bytes(range(8))
    assert raw[2] == bytes(27)
    # Of a model that has diverged there is a picture, too: NaN is black, and what is too bright is white.
    odd = problem(
        reconstruct=lambda params, inputs: jnp.full((len(inputs), 1, 3), jnp.nan, jnp.float32).at[0].set(7.0)
    )
    drive(run(tmp_path / "odd", [SGD], problem=odd), in_turn)
    (found,) = log.read_all(tmp_path / "odd")
    assert base64.b64decode(found.pictures[1]["images"]) == bytes([255] * 3 + [0] * 24)
