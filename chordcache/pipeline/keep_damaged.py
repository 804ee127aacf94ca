"""Damaged sources of which some frames are cached, if the user chooses so."""

from __future__ import annotations

from chordcache.choices import ON_DAMAGE
from chordcache.errors import MediaError
from chordcache.media.damage import KeptFrames, may_keep, survey
from chordcache.media.demux import open_media
from chordcache.records import VideoRecord
from chordcache.storage.sidecar import Sidecar


def frames_to_keep(path: str, on_damage: str) -> KeptFrames | None:
    """Return the frames of a damaged file that are to be cached, or None if there are none. See ``survey``."""
    with open_media(path) as media:
        return survey(media, on_damage)


def frames_after(error: MediaError, path: str, on_damage: str) -> KeptFrames:
    """Return the frames that are to be cached although decoding a file ended with an error.

    Raises
    ------
    MediaError
        ``error`` if the user chose quarantine, if it is not about damage, or if it shows none that may be kept.
    """
    if on_damage == ON_DAMAGE[0] or not may_keep(error):
        raise error
    try:
        kept = frames_to_keep(path, on_damage)
    except MediaError:
        kept = None
    if kept is None:
        raise error
    return kept


def may_be_cached(record: VideoRecord, on_damage: str) -> bool:
    """Return whether frames of a file may be cached although the scan found a fault in it."""
    error = MediaError(record.error_stage or "probe", record.error_cause or "decode", record.error or "-")
    return on_damage != ON_DAMAGE[0] and may_keep(error)


def is_allowed(sidecar: Sidecar, on_damage: str) -> bool:
    """Return whether a cached video is as the choice for damaged files says. A video without damage always is."""
    return sidecar.damage is None or sidecar.damage.on_damage == on_damage
