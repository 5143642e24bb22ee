"""One training in several processes, on JAX's own distributed runtime.

Every process runs the same program. Each holds its share of the cases, a copy of the parameters, and takes part in
every step; what a process decides by itself (its clock, a signal it got) is agreed upon first. Process 0 writes logs
and reports; the directory of the run must be one that all processes see.
"""

import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from natgrad_paper.errors import UserError
from natgrad_paper.experiment import Experiment, Method, Problem, Share, Tree

HEARTBEAT = 20
"""Seconds of silence after which a process counts as dead."""
LOST = re.compile(
    r"Gloo|NCCL|UNAVAILABLE|DEADLINE_EXCEEDED|heartbeat|barrier|coordination|Connection (closed|reset)",
    re.IGNORECASE,
)
"""What JAX says, as errors of several kinds, when another process does not answer."""
JOINING = 120
"""Seconds that processes wait for each other at the start."""


def start(coordinator: str | None, processes: int | None, process: int | None) -> "Together":
    """Join the other processes; what is not given is found from Slurm, Kubernetes, Open MPI or Cloud TPU."""
    given = (coordinator, processes, process)
    if any(value is not None for value in given) and None in given:
        raise UserError("--distributed: expected --coordinator, --processes and --process together, or none")
    try:
        jax.distributed.initialize(
            coordinator,
            processes,
            process,
            initialization_timeout=JOINING,
            heartbeat_timeout_seconds=HEARTBEAT,
        )
    except ValueError as problem:
        raise UserError(
            f"--distributed: expected a cluster that JAX detects, or --coordinator HOST:PORT, --processes and "
            f"--process; found none ({problem})"
        ) from None
    return Together()


def leave(code: int) -> NoReturn:
    """End this process at once. The usual way out waits for the others, which may be gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def ending(again: str) -> Iterator[None]:
    """End this process where the run fails: the usual way out would wait for others that may be gone.

    Args:
        again: The command that continues the run.
    """
    try:
        yield
    except SystemExit as problem:
        leave(problem.code if isinstance(problem.code, int) else 1)
    except BaseException as problem:
        if (code := getattr(problem, "exit_code", None)) is not None:
            leave(code)
        reason = " ".join(str(problem).split())[:200]
        if not LOST.search(reason):
            traceback.print_exc()
            leave(1)
        print(
            f"natgrad: process {jax.process_index()}: expected all {jax.process_count()} processes of this run, "
            f"lost one; `{again}` continues from the last checkpoint, in any number of processes ({reason})",
            file=sys.stderr,
        )
        leave(1)


def prepare(experiment: Experiment, settings: Any, data: Path | None) -> Problem:
    """Return the problem with this process's share of the cases."""
    if experiment.share is None:
        raise UserError(
            f"--distributed: expected an experiment that deals out its data, found {experiment.name}"
        )
    if settings.budget.patience is not None:
        raise UserError(
            "--distributed: expected no budget.patience, found one: validation cases are not dealt out"
        )
    problem = experiment.share(settings, data, Share(jax.process_index(), jax.process_count()))
    train, test = (problem.data[part][0] for part in ("train", "test"))
    if train % jax.device_count():
        raise UserError(f"data.train: expected a multiple of the {jax.device_count()} devices, found {train}")
    if 0 < test < jax.process_count():
        raise UserError(f"data.test: expected one for each of {jax.process_count()} processes, found {test}")
    return problem


@dataclass(frozen=True)
class Alone:
    """A training in this process alone, where JAX puts it."""

    leads: bool = True
    """Whether this process writes logs and reports."""
    out_shardings: Any = None

    def cases(self, own: Tree) -> Tree:
        """Return the cases on the device."""
        return jax.device_put(own)

    def own(self, cases: Tree, own: Tree) -> Tree:
        """Return the cases, of which all are this process's own."""
        return cases

    def copies(self, tree: Tree) -> Tree:
        """Return parameters or state as they are."""
        return tree

    def local(self, tree: Tree) -> Tree:
        """Return parameters as they are."""
        return tree

    def spread(self, batch: Tree) -> Tree:
        """Return a batch as it is."""
        return batch

    def mean(self, values: np.ndarray) -> float:
        """Return the mean over all cases."""
        return float(values.mean(dtype=np.float64))

    def most(self, value: float) -> float:
        """Return the value."""
        return value

    def save(self, write: Callable[[], None], join: Callable[[], None]) -> None:
        """Write."""
        write()

    def wait(self, name: str) -> None:
        """Wait for nobody."""

    def check(self, methods: Sequence[Method]) -> None:
        """Refuse nothing."""


ALONE = Alone()


@dataclass(frozen=True)
class Together:
    """A training on all devices of all processes: cases dealt out, parameters copied."""

    @cached_property
    def mesh(self) -> Any:
        """All devices in a row."""
        return jax.make_mesh((jax.device_count(),), ("cases",), axis_types=(AxisType.Auto,))

    @property
    def leads(self) -> bool:
        """Whether this process writes logs and reports: one does."""
        return jax.process_index() == 0

    @property
    def out_shardings(self) -> Any:
        """Of what a step returns: a copy everywhere."""
        return NamedSharding(self.mesh, P())

    def cases(self, own: Tree) -> Tree:
        """Return all processes' cases as one array, each left where it is."""
        sharding = NamedSharding(self.mesh, P("cases"))
        return jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(sharding, leaf), own)

    def own(self, cases: Tree, own: Tree) -> Tree:
        """Return this process's cases, for what it computes by itself."""
        return jax.device_put(own)

    def copies(self, tree: Tree) -> Tree:
        """Return parameters or state, the same in every process, as arrays with a copy on each device."""

        def copy(leaf: Any) -> Any:
            if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                return jax.random.wrap_key_data(
                    copy(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf)
                )
            host = np.asarray(leaf)
            return jax.make_array_from_callback(host.shape, self.out_shardings, lambda index: host[index])

        return jax.tree.map(copy, tree)

    def local(self, tree: Tree) -> Tree:
        """Return this process's copy."""
        return jax.tree.map(lambda leaf: leaf.addressable_data(0), tree)

    def spread(self, batch: Tree) -> Tree:
        """Return a batch dealt out to the devices, if it can be: otherwise each computes all of it. Traced."""
        devices = jax.device_count()

        def deal(leaf: Any) -> Any:
            spec = P("cases") if leaf.shape[0] % devices == 0 else P()
            return jax.lax.with_sharding_constraint(leaf, NamedSharding(self.mesh, spec))

        return jax.tree.map(deal, batch)

    def mean(self, values: np.ndarray) -> float:
        """Return the mean over all processes' cases."""
        own = np.array([values.sum(dtype=np.float64), len(values)], np.float32)
        total, cases = np.asarray(multihost_utils.process_allgather(own), np.float64).sum(axis=0)
        return float(total / cases)

    def most(self, value: float) -> float:
        """Return the largest of all processes' values: what they agree upon."""
        return float(multihost_utils.process_allgather(np.float32(value)).max())

    def save(self, write: Callable[[], None], join: Callable[[], None]) -> None:
        """Let process 0 write and the others take part in it; return when it is done."""
        write() if self.leads else join()
        self.wait("saved")

    def wait(self, name: str) -> None:
        """Wait until all processes are here."""
        multihost_utils.sync_global_devices(name)

    def check(self, methods: Sequence[Method]) -> None:
        """Refuse methods whose steps cannot be compiled whole: their processes would not keep step."""
        for method in methods:
            if method.on_host:
                raise UserError(f"--methods: expected none that searches on the host, found {method.name}")
