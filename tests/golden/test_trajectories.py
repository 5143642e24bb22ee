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


@pytest.mark.parametrize("name", [marked(*each) for each in enumerate(NAMES)])
def test_a_trajectory_is_as_recorded(name):
    with np.load(trajectories.FILE) as recorded:
        wanted, nearby = recorded[trajectories.key(*name)]
    found, _ = trajectories.compute(*name)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    known = np.nan_to_num(np.abs(nearby - wanted))
    allowed = 1e-10 * (1 + np.abs(wanted)) + 100 * np.maximum.accumulate(known)
    too_far = np.abs(found - wanted) > allowed
    assert not too_far.any(), (
        f"steps and numbers {np.argwhere(too_far).tolist()}: {found[too_far]}, not {wanted[too_far]}"
    )
