"""Runs killed at random instants go on as if nothing had happened: every bit of what is trained, and the log."""

import os

import numpy as np
import pytest
from chain import ITERATIONS, Chain, environment, only_log, trace

from natgrad_paper import log

METHODS = ("sgd", "ngd", "ncg-l", "ncg-q", "hf", "ksd", "tonga", "adam")
"""One of each kind of memory between steps."""
KILLS = int(os.environ.get("NATGRAD_KILLS", "200")) // len(METHODS)
"""In each chain of the long test."""


def killed_again_and_again(tmp_path, method, kills):
    chain = Chain(
        tmp_path / "killed", method, environment(tmp_path), np.random.default_rng([3, METHODS.index(method)])
    )
    wanted = chain.undisturbed(tmp_path / "undisturbed")
    while chain.kills < kills:
        # Of what is left to do, a quarter at least must come during a write.
        alive = chain.kill_once(
            in_a_write=chain.in_a_write < np.ceil((chain.kills + 1) / 4) or chain.kills % 2
        )
        chain.check()
        assert alive, "the run came to its end before the kills did: it needs more iterations"
    chain.finish()
    chain.check()
    assert trace(chain.directory)[-1][1] == ITERATIONS
    assert log.times_aside(only_log(chain.directory)) == wanted
    assert not list(chain.directory.glob("checkpoints/*"))
    assert chain.in_a_write >= kills / 4
    return chain


def test_three_kills(tmp_path):
    print(killed_again_and_again(tmp_path, "ngd", 3))


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_two_hundred_kills(tmp_path, method):
    print(killed_again_and_again(tmp_path, method, KILLS))
