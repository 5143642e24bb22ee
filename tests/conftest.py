"""Every test runs with float64 available and strict promotion: a float32 array stays one or the test fails.

Compiled programs are kept in `.cache/xla` below the project, for processes that tests start, too: nearly all of the
tests' time is compilation, and a second run has none. JAX_COMPILATION_CACHE_DIR names another folder, or none.
"""

import os
import signal
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".cache" / "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

import jax
import pytest

# A plugin may have imported JAX before.
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"] or None)
seconds = float(os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", seconds)
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")


if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    # As under nohup. A run that is started so ignores it too, and rightly, but most tests are not about that.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

TESTS = Path(__file__).parent
SLOW = [line for line in (TESTS / "slow.txt").read_text().splitlines() if not line.startswith("#")]
"""Folders, files and functions that `make quick` leaves out."""


def pytest_ignore_collect(collection_path, config):
    """Do not even import the slow files where slow tests are not wanted: some compute at their top."""
    if "not slow" in config.option.markexpr and collection_path.is_relative_to(TESTS):
        return collection_path.relative_to(TESTS.parent).as_posix() in SLOW or None
    return None


def pytest_collection_modifyitems(items):
    """Mark the slow tests."""
    starts = tuple(f"{line}{mark}" for line in SLOW for mark in ("/", "::", "["))
    for item in items:
        if item.nodeid in SLOW or item.nodeid.startswith(starts):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def compilations():
    """Return a context manager whose value counts the programs XLA compiled inside it.

    A program that is found in the cache on the disk counts like one that is compiled.
    """
    events: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(lambda name, _, **__: events.append(name))

    @contextmanager
    def counter():
        start = len(events)
        yield lambda: sum("backend_compile" in name for name in events[start:])

    yield counter
    jax.monitoring.clear_event_listeners()


@pytest.fixture(scope="module")
def fast_compile():
    """Compile without optimizing: for modules that check many formulas, each run once."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(autouse=True, scope="module")
def forgotten_programs():
    """Forget compiled programs after each module: a process that holds thousands runs out of memory maps."""
    yield
    jax.clear_caches()
