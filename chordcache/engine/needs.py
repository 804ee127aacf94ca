"""The needs of the processes of a run, before their first task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from chordcache.engine.networks.network import Network

Check: TypeAlias = Callable[[], str | None]
"""Importable test that a node of a cluster runs: the reason why the node cannot work, or None"""


@dataclass(frozen=True)
class Needs:
    """The needs of the processes of a run, before their first task."""

    check: Check | None = None
    """Test of each node of a cluster"""
    networks: tuple[Network, ...] = ()
    """Networks that tasks may use"""


NO_NEEDS = Needs()
