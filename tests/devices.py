"""Simulated devices, and processes that find each other: what the tests of sharding start their programs with."""

import os
import socket


def environment(devices):
    """Return surroundings in which JAX sees so many devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    return {**os.environ, "XLA_FLAGS": flags}


def coordinator():
    """Return an address on this machine where nobody listens yet."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def finish(workers, timeout):
    """Wait for processes; return their codes and what they said on standard error."""
    try:
        said = [worker.communicate(timeout=timeout)[1] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    return [worker.returncode for worker in workers], said
