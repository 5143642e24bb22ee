"""The recorded trajectories are reproduced: a change of structure changes no number.

One in five runs with every test, the rest with `make test-long`.
"""

import numpy as np
import pytest

from golden import trajectories

pytestmark = pytest.mark.usefixtures("fast_compile")
NAMES = list(trajectories.names())


def marked(place, name):
    return pytest.param(name, id="|".join(name), marks=[] if place % 5 == 0 else pytest.mark.long)


def decided(rows):
    """Return which steps arithmetic decides: where the loss is all rounding error, so is where a search ends."""
    loss, new_loss = (rows[:, trajectories.COLUMNS.index(name)] for name in ("loss", "new_loss"))
    return np.cumsum(new_loss < 1e-12 * loss[0]) == 0


@pytest.mark.parametrize("name", [marked(*each) for each in enumerate(NAMES)])
def test_a_trajectory_is_as_recorded(name):
    with np.load(trajectories.FILE) as recorded:
        wanted, nearby = recorded[trajectories.key(*name)]
    found, _ = trajectories.compute(*name)
    kept = decided(wanted)
    wanted, nearby, found = wanted[kept], nearby[kept], found[kept]
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    known = np.nan_to_num(np.abs(nearby - wanted))
    allowed = 1e-10 * (1 + np.abs(wanted)) + 100 * np.maximum.accumulate(known)
    too_far = np.abs(found - wanted) > allowed
    assert not too_far.any(), (
        f"steps and numbers {np.argwhere(too_far).tolist()}: {found[too_far]}, not {wanted[too_far]}"
    )
