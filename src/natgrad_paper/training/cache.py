"""A compilation cache that outlives the command: a second run starts at once."""

import os
from pathlib import Path

import jax


def directory() -> Path:
    """Return where compiled programs are kept: NATGRAD_CACHE_DIR, else the user's cache directory (XDG)."""
    chosen = os.environ.get("NATGRAD_CACHE_DIR")
    if chosen:
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "natgrad" / "xla"


def enable() -> Path | None:
    """Switch the cache on and return its directory; return None, without an error, if no cache is possible.

    JAX's own JAX_COMPILATION_CACHE_DIR takes precedence.
    """
    if chosen := os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return Path(chosen)
    try:
        place = directory()
        place.mkdir(parents=True, exist_ok=True)
        if not os.access(place, os.W_OK):
            return None
    except (OSError, RuntimeError):  # RuntimeError: no home directory
        return None
    jax.config.update("jax_compilation_cache_dir", str(place))
    return place
