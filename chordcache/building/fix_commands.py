"""The commands that findings and errors name, and the next step for each cause of a failure."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from chordcache.errors import DamageError, printable

_SAVED = " docs/damaged-files.md has commands that save what can be read."
_AGAIN = "then run the build with --retry-quarantined."

REMEDIES = {
    "bucket": "Add a bucket with fewer frames to frames.buckets, or leave the item out of the index.",
    "bug": "Report the message, with the file if you may share it.",
    "changed": "Wait until the file is complete, then run the build again.",
    "clock": "Write the file again with ffmpeg -fflags +genpts, or build a cache of it.",
    "decode": f"Fetch the file again.{_SAVED}",
    "edit-list": "Encode the file again with ffmpeg -i FILE COPY, which leaves out frames that go back in time.",
    "encrypted": "Decrypt the file, or leave it out of the index.",
    "extractor": f"Correct the feature's code or parameters, {_AGAIN}",
    "features": "Install what the features need, then run the build again. Or build with --drop.",
    "frames": "Another version of FFmpeg made the cached features. Touch the file and build again to make all of them.",
    "io": "Check what the message names, and the disk or the mount that holds the file, then run the build again.",
    "no-decoder": "Convert the file with a program that decodes it, or leave it out of the index.",
    "no-frames": "Leave the file out of the index. Nothing of its video track can be shown.",
    "no-video": "Leave the file out of the index. It has no video track.",
    "not-regular": "Replace it by a regular file, or leave it out of the index.",
    "oom": f"Raise --file-memory, {_AGAIN}",
    "refused-format": "Convert the file to MP4, Matroska or WebM. Playlists and images are not read.",
    "refused-link": "Build with --follow-symlinks if the target of the link can be trusted.",
    "refused-size": "Do what the message says, or leave the file out of the index.",
    "segment": "Correct the start and the end of the segment in the list, then run the build again.",
    "series": "Correct the table of the item that the message names, then build with --retry-quarantined.",
    "short": "Fetch the file, or the folder of pictures, again. Frames are missing.",
    "signal": f"The decoder crashed. Convert the file with ffmpeg, or update PyAV, {_AGAIN}",
    "stereo": "Set frames.stereo: as_is, or name the layout with frames.stereo_layout.",
    "tables": "Write the file again with ffmpeg -c copy, or read it with MP4Source.",
    "timeout": f"Raise --stall-timeout or --file-timeout, {_AGAIN}",
    "truncated": f"Fetch the file again.{_SAVED}",
    "unsupported-color": "Convert the file with ffmpeg -vf libplacebo, which applies Dolby Vision, or leave it out.",
}
"""Cause of a ``MediaError`` or of a failure in quarantine, to the next step. A test compares it with the code."""


def repair_command(cache: Path) -> str:
    """Return the command that builds damaged and missing data of a cache again."""
    return f"chordcache verify --repair {_shell(cache)}"


def problems_command(cache: Path) -> str:
    """Return the command that lists the failures of a cache."""
    return f"chordcache info {_shell(cache)} --problems"


def gc_command(cache: Path) -> str:
    """Return the command that removes the files of a cache that no sidecar names."""
    return f"chordcache gc {_shell(cache)}"


def unpack_command(cache: Path) -> str:
    """Return the command that makes a cache which can be repaired of a packed one."""
    return f"chordcache unpack {_shell(cache)} -o CACHE"


def build_command(cache: Path, tiers: Iterable[str], features: Iterable[str] = ()) -> str:
    """Return the command that builds what a cache lacks, in some tiers and, if any are given, of some features."""
    options = "".join(f" --tier {tier}" for tier in tiers)
    if names := ",".join(features):
        options += f" --features {names}"
    return f"chordcache build {_shell(cache / 'index.jsonl')} -o {_shell(cache)}{options}"


@contextmanager
def repairable(cache: Path) -> Iterator[None]:
    """Add the command that repairs a cache to the error of a damaged list."""
    try:
        yield
    except DamageError as error:
        raise DamageError(f"{error}; run 'chordcache verify --repair {printable(cache)}'") from None


def _shell(path: Path) -> str:
    relative = os.path.relpath(path)
    return shlex.quote(str(path) if relative.startswith("..") else relative)


def is_retryable(cause: str) -> bool:
    """Return whether a build with ``retry_quarantined`` helps after a correction outside of the file."""
    return _AGAIN in REMEDIES.get(cause, "")


def remedy(cause: str, stage: str = "decode") -> str:
    """Return what to do about a failure. An unknown cause, such as one of a later version, has a general answer.

    Nothing can be saved of a file that could not be opened.
    """
    action = REMEDIES.get(cause, "Read the message, correct the file, then run the build again.")
    return action.removesuffix(_SAVED) if stage in ("open", "probe") else action
