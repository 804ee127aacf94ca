"""The needs of the processes of a run, before their first task."""

from __future__ import annotations

from dataclasses import dataclass

from chordcache.engine.networks.network import Network


@dataclass(frozen=True)
class Needs:
    """The needs of the processes of a run, before their first task."""

    networks: tuple[Network, ...] = ()
    """Networks that tasks may use"""


NO_NEEDS = Needs()
