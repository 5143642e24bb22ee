"""Every test runs with float64 available and strict promotion: a float32 array stays one or the test fails."""

from contextlib import contextmanager

import jax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture
def compilations():
    """Return a context manager whose value counts the programs XLA compiled inside it."""
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
