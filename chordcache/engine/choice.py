"""The choice of an engine: the processes of this machine, or a Dask or Ray cluster whose nodes build parts."""

from __future__ import annotations

import importlib.util
import numbers
from dataclasses import dataclass

from chordcache.arguments import check_choice
from chordcache.errors import UsageError, printable

ENGINES = ("local", "dask", "ray", "inline")
"""Engines of ``Engine``. "inline" runs the tasks in this process, for a debugger"""

_PACKAGES = {"dask": "distributed", "ray": "ray"}


@dataclass(frozen=True)
class Engine:
    """The processes that do the work of a build. Other work is done on this machine: "local" or "inline".

    Raises
    ------
    UsageError
        If the engine is unknown or not installed, or the address is missing or not used.
    """

    name: str = "local"
    """One of ``ENGINES``"""
    address: str | None = None
    """``host:port`` of the scheduler of Dask or of the head of Ray, or the path of Dask's scheduler file"""
    jobs: int | None = None
    """Number of processes of "local", by default one for each processor. As in joblib, -1 stands for one for each
    processor, -2 for one fewer, and so on"""
    num_parts: int | None = None
    """Number of parts that the nodes of a cluster build, by default 16 for each node, or fewer of a short index"""

    def __post_init__(self) -> None:
        check_choice(ENGINES, engine=self.name)
        if self.is_cluster and self.address is None:
            what = f"got '{self.name}' without an address, expected one such as host:port"
            raise UsageError(f"engine: {what} (--engine {self.name}=host:port)")
        if self.address is not None and not self.is_cluster:
            raise UsageError(f"engine: got '{self.name}' with the address '{printable(self.address)}', expected none")
        none = f"none with engine '{self.name}'. Leave it out."
        if self.jobs is not None and self.name != "local":
            raise UsageError(f"jobs: got {self.jobs}, expected {none}")
        check_jobs(self.jobs)
        if self.num_parts is not None and (not self.is_cluster or self.num_parts < 1):
            wanted = "at least 1" if self.is_cluster else none
            raise UsageError(f"num_parts: got {self.num_parts}, expected {wanted}")
        package = _PACKAGES.get(self.name)
        if package is not None and importlib.util.find_spec(package) is None:
            raise UsageError(
                f"engine: got '{self.name}', which is not installed. Run: pip install 'chordcache[{self.name}]'"
            )

    @property
    def is_cluster(self) -> bool:
        """True if the processes are those of a cluster."""
        return self.name in _PACKAGES


def engine_of(jobs: int | Engine | None) -> Engine:
    """Return the engine for the argument ``jobs`` of a public function: a number of local processes, or an engine.

    Raises ``UsageError`` for a cluster: only ``build`` uses one.
    """
    engine = jobs if isinstance(jobs, Engine) else Engine(jobs=jobs)
    if engine.is_cluster:
        raise UsageError(f"engine: got '{engine.name}', expected local or inline. Only a build runs on a cluster.")
    return engine


def check_jobs(jobs: object) -> None:
    """Raise ``UsageError`` unless ``jobs`` is None, a number of processes, or a negative number as in joblib."""
    if jobs is not None and (isinstance(jobs, bool) or not isinstance(jobs, numbers.Integral) or jobs == 0):
        raise UsageError(
            f"jobs: got {jobs!r}, expected an integer of at least 1, or -1 for one for each processor, -2 for one fewer"
        )
