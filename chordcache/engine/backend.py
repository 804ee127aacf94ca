"""The four things that the loop of ``pool`` needs of the processes that do the work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from chordcache.engine.choice import Engine, num_workers
from chordcache.engine.inline import InlineWorkers
from chordcache.engine.limits import Limits
from chordcache.engine.needs import Needs
from chordcache.engine.networks.processes import NetworkProcesses
from chordcache.engine.processes import Answer, Unit, Workers


class Backend(Protocol):
    """Processes that run units of tasks."""

    @property
    def width(self) -> int:
        """Number of units that keeps all processes busy, at least 1."""
        ...

    def submit(self, unit: Unit) -> None:
        """Run a unit as soon as a process is free, not on a node that it avoids if there is another one."""
        ...

    def wait(self) -> list[Answer]:
        """Wait for units to end, and return them with their results. Raise the error of a task that ends the run."""
        ...

    def close(self) -> None:
        """End the processes of this run, even in the middle of a task."""
        ...


class _LocalWorkers(Workers):
    """The workers of this machine, and the processes of the networks that they use."""

    def close(self) -> None:
        """End the workers, then the networks."""
        try:
            super().close()
        finally:
            self._networks.close()


def default_jobs(jobs: int | None = None) -> int:
    """Return the number of workers that ``jobs`` stands for.

    None is one for each processor that this process may use, within the CPU quota of its container.
    """
    if jobs is not None and jobs > 0:
        return num_workers(jobs, 1)
    from joblib import cpu_count  # takes 0.1 s, and is not needed where the number is given

    return num_workers(jobs, int(cpu_count()))


def prepared(engine: Engine) -> Engine:
    """Return an engine with the number of its processes, if they are those of this machine.

    A run calls this before it writes anything, since an address that does not answer raises ``UsageError``.
    """
    if engine.is_cluster:
        from chordcache.engine.cluster import check_address  # not needed on one machine

        check_address(engine)
    return replace(engine, jobs=default_jobs(engine.jobs)) if engine.name == "local" else engine


def start_backend(engine: Engine, function: Callable[[Any], Any], limits: Limits, needs: Needs) -> Backend:
    """Return the processes of an engine. A cluster is connected to."""
    if engine.name == "inline":
        return InlineWorkers(function)
    if not engine.is_cluster:
        return _LocalWorkers(function, prepared(engine).jobs or 1, limits, NetworkProcesses(needs.networks, limits))
    from chordcache.engine.cluster import ClusterWorkers, connect  # not needed on one machine

    return ClusterWorkers(connect(engine), function, limits, needs)
