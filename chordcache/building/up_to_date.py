"""The one place that decides what of a cached video stays and what is made again.

A build asks three times, each time with more knowledge: ``needed`` compares the sidecar with the plan, ``compared`` the
bytes of the source, and ``has_same_frames`` the decoded frames.
"""

from __future__ import annotations

import errno
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from chordcache.building.build_plan import ArtefactTask, BuildPlan
from chordcache.building.build_task import BuildTask
from chordcache.building.trim import is_allowed
from chordcache.errors import DamageError, MediaError
from chordcache.features.item_fields import fits
from chordcache.media.source_file import SourceState, bytes_changed, leads_out
from chordcache.records import FeatureInfo, Identity
from chordcache.storage import feature_files
from chordcache.storage.artefacts.tiers import TIERS
from chordcache.storage.opener import unreadable
from chordcache.storage.sidecar import Sidecar


class Needed(NamedTuple):
    """The difference between a cached video and a plan."""

    artefacts: tuple[ArtefactTask, ...]
    """Requested files that are missing or stale"""
    kept: tuple[FeatureInfo, ...] = ()
    """Features that stay, or are taken back from an earlier build with the same settings"""


def is_valid(sidecar: Sidecar, plan: BuildPlan, identity: Identity | None, path: str, inside: str | None) -> bool:
    """Return whether a sidecar is of the source that is at a path now. An unreadable source counts as the same one."""
    is_same = not leads_out(path, inside) if identity is None else identity == sidecar.source
    return is_same and is_allowed(sidecar, plan.on_damage)


def needed(plan: BuildPlan, sidecar: Sidecar, item: Any, rebuild: Container[str] = ()) -> Needed:
    """Return what a plan makes of a cached video, and what stays.

    Parameters
    ----------
    plan : BuildPlan
        The plan.
    sidecar : Sidecar
        The video, made from the source that is there now.
    item : VideoRecord or Sidecar
        The item with the fields that a feature may use.
    rebuild : container of str
        Files, relative to the cache, that count as missing.
    """
    absent = [artefact for artefact in plan.artefacts if not _is_current(plan, artefact, sidecar, item, rebuild)]
    taken = [_taken_back(plan, artefact, sidecar, item, rebuild) for artefact in absent]
    others = (info for info in sidecar.features if not any(_is_in(info, artefact) for artefact in absent))
    missing = tuple(artefact for artefact, infos in zip(absent, taken, strict=True) if not infos)
    return Needed(missing, (*others, *(info for infos in taken for info in infos)))


def is_stale(info: FeatureInfo, fingerprints: Mapping[str, str | None]) -> bool:
    """Return whether a feature was made with parameters other than the config's, or is not requested any more."""
    return fingerprints.get(info.feature, "") not in (None, info.fingerprint)


def compared(task: BuildTask, source: SourceState, digest: str | None) -> BuildTask:
    """Return the task for the source as it is now. ``digest`` is the hash of its bytes, if one was asked for.

    Raises
    ------
    MediaError
        ``changed`` if the source is another one than the plan saw, or its bytes are not those of ``previous`` although
        nothing wrote to the file. Its disk lost them.
    """
    previous = task.previous
    if source.identity != task.item.identity and (previous is not None or task.item.content is not None):
        raise MediaError("open", "changed", "the file changed while it waited for its turn; run the same command")
    if previous is None or task.hashing is None or None in (previous.source_hash, digest):
        return task
    if previous.source_hash == digest:
        return task
    if not task.hashing.is_rewritten:
        raise bytes_changed(str(digest), str(previous.source_hash))
    return replace(task, previous=None, kept=(), artefacts=task.all_artefacts, item=task.item.replace(content=None))


def has_same_frames(cache: Path, previous: Sidecar, kept: Iterable[FeatureInfo], source_frames: np.ndarray) -> bool:
    """Return whether features were made from the frames of these numbers in the source.

    Artefacts that are unreadable are skipped.
    """
    if previous.num_frames != len(source_frames):
        return False
    for info in (*kept, *previous.features):
        if info.file is not None:
            try:
                with feature_files.open_file(cache, info, previous.claims) as artefact:
                    return np.array_equal(artefact.array("source_frames"), source_frames)
            except DamageError:  # the next artefact may be readable
                continue
    return True


def _is_current(plan: BuildPlan, artefact: ArtefactTask, sidecar: Sidecar, item: Any, rebuild: Container[str]) -> bool:
    infos = [info for info in sidecar.features if _is_in(info, artefact)]
    present = {info.feature for info in infos if _is_there(plan.cache, info, rebuild)}
    are_sound = all(not is_stale(info, plan.fingerprints) and fits(info, item) for info in infos)
    return present.issuperset(artefact.names) and are_sound


def _taken_back(
    plan: BuildPlan, artefact: ArtefactTask, sidecar: Sidecar, item: Any, rebuild: Container[str]
) -> tuple[FeatureInfo, ...]:
    """Return the features of a missing file that an earlier build with the same settings left on the disk."""
    infos = [info for info in (*sidecar.features, *sidecar.superseded) if info.tier == artefact.tier]
    fitting = [
        info
        for info in infos
        if not is_stale(info, plan.fingerprints) and fits(info, item) and _is_there(plan.cache, info, rebuild)
    ]
    for file in dict.fromkeys(info.file for info in fitting):
        usable = {info.feature: info for info in fitting if info.file in (file, None)}
        stored = {info.feature for info in infos if info.file is not None and info.file == file}
        if usable.keys() >= set(artefact.names) >= stored:  # else a dropped feature would stay in the file
            return tuple(usable[name] for name in artefact.names)
    return ()


def _is_in(info: FeatureInfo, artefact: ArtefactTask) -> bool:
    return info.tier == artefact.tier and (TIERS[info.tier].one_file or info.feature in artefact.names)


def _is_there(cache: Path, info: FeatureInfo, rebuild: Container[str]) -> bool:
    if info.file is None:
        return True
    try:
        return info.file not in rebuild and feature_files.size_of(cache, info) == info.num_bytes
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        raise unreadable(cache / info.file, error) from None
