"""Runs killed at random instants go on as if nothing had happened: every bit of what is trained, and the log."""

import os

import numpy as np
import pytest
from chain import ITERATIONS, Chain, records, trace, victims

METHODS = ("sgd", "ngd", "ncg-l", "ncg-q", "kncg", "hf", "ksd", "tonga", "adam")
"""One of each kind of memory between steps."""
KILLS = -(-int(os.environ.get("NATGRAD_KILLS", "200")) // len(METHODS))
"""In each chain of the long test."""


def killed_again_and_again(tmp_path, method, kills):
    rng = np.random.default_rng([3, METHODS.index(method)])
    with victims(tmp_path) as processes:
        chain = Chain(tmp_path / "killed", method, processes, rng)
        wanted = chain.undisturbed(tmp_path / "undisturbed")
        while chain.kills < kills or chain.in_a_write < kills / 4:
            # A quarter at least must come during a write, however the other half falls.
            short = chain.in_a_write < np.ceil((chain.kills + 1) / 4)
            lived = chain.kill_once(in_a_write=short or chain.kills % 2 == 0)
            chain.check()
            assert lived, "the run came to its end before the kills did: it needs more iterations"
        chain.finish()
    chain.check()
    assert trace(chain.directory)[-1][1] == ITERATIONS
    assert records(chain.directory) == wanted
    assert not list(chain.directory.glob("checkpoints/*"))
    assert chain.in_a_write >= kills / 4
    return chain


def test_two_kills(tmp_path):
    print(killed_again_and_again(tmp_path, "ngd", 2))


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_two_hundred_kills(tmp_path, method):
    print(killed_again_and_again(tmp_path, method, KILLS))
