"""Damaged sources of which the frames before the damage are cached, if the user chooses so."""

from __future__ import annotations

from chordcache.choices import ON_DAMAGE
from chordcache.errors import MediaError
from chordcache.media.demux import open_media
from chordcache.media.first_damage import may_trim, survey
from chordcache.records import DamageFacts, VideoRecord
from chordcache.storage.sidecar import Sidecar


def damage_of(path: str) -> DamageFacts | None:
    """Return the first damage of a file, or None if no frame before it can be cached. See ``survey``."""
    with open_media(path) as media:
        return survey(media)


def damage_after(error: MediaError, path: str) -> DamageFacts:
    """Return the first damage of a file whose decode ended with an error.

    Raises
    ------
    MediaError
        ``error`` if it is not about damage, or if no frame before it can be cached.
    """
    if not may_trim(error):
        raise error
    try:
        damage = damage_of(path)
    except MediaError:
        damage = None
    if damage is None:
        raise error
    return damage


def may_be_cached(record: VideoRecord, on_damage: str) -> bool:
    """Return whether frames of a file may be cached although the scan found a fault in it."""
    error = MediaError(record.error_stage or "probe", record.error_cause or "decode", record.error or "-")
    return on_damage != ON_DAMAGE[0] and may_trim(error)


def is_allowed(sidecar: Sidecar, on_damage: str) -> bool:
    """Return whether a cached video is as the choice for damaged files says. A video without damage always is."""
    return sidecar.damage is None or on_damage != ON_DAMAGE[0]
