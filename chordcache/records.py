"""Frozen dataclasses that pass between the layers. They open nothing and check their own shapes."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chordcache.errors import UsageError

SCAN_LEVELS = ("headers", "packets", "content")
"""Levels of a scan. Each level includes the one before it."""


@dataclass(frozen=True)
class Identity:
    """The size and times of a file. If they are equal, the content is unchanged."""

    size: int
    """[bytes]"""
    mtime_ns: int
    """[nanoseconds since the epoch]"""
    ctime_ns: int
    """[nanoseconds since the epoch] It changes if the content is edited and the mtime is set back"""


@dataclass(frozen=True)
class AudioFacts:
    """Header facts of the audio track that a player would play."""

    codec: str
    sample_rate_hz: int
    num_channels: int
    duration_seconds: float | None
    """[seconds] None if the header does not state it"""
    start_seconds: float | None
    """[seconds] on the clock that it shares with the video"""


@dataclass(frozen=True)
class HeaderFacts:
    """The claims of the container and codec headers about the video track. Nothing here is measured."""

    container: str
    codec: str
    profile: str | None
    pixel_format: str | None
    bit_depth: int | None
    color_space: str | None
    """Matrix of YUV to RGB, or None if the file does not state one"""
    color_primaries: str | None
    color_transfer: str | None
    color_range: str | None
    """"limited" or "full", or None if the file does not state one"""
    coded_width: int
    """[pixels] as stored"""
    coded_height: int
    """[pixels] as stored"""
    display_width: int
    """[pixels] after the sample aspect ratio and the rotation"""
    display_height: int
    """[pixels] after the sample aspect ratio and the rotation"""
    rotation: int
    """[degrees clockwise] 0, 90, 180 or 270. A player turns the stored picture by it (after ``mirrored``)"""
    mirrored: bool
    """True if a player flips the stored picture left to right before it turns it"""
    sample_aspect_ratio: str
    """Ratio of the width to the height of a pixel, as "num:den" """
    average_fps: float | None
    """[frames per second]"""
    nominal_fps: float | None
    """[frames per second] libavformat's guess from the headers and the first packets"""
    header_duration_seconds: float | None
    """[seconds] Headers may be wrong. Prefer ``PacketFacts.duration_seconds``"""
    header_num_frames: int | None


@dataclass(frozen=True)
class PacketFacts:
    """The facts measured by reading every packet of the video track, without decoding any."""

    num_packets: int
    num_frames: int
    """Expected number of frames: packets that show their own frame and that an edit list does not discard"""
    start_seconds: float
    """[seconds] presentation time of the first frame"""
    duration_seconds: float
    """[seconds] from the first frame's time to the last frame's end"""
    variable_frame_rate: bool
    timestamp_source: str
    """"pts", or "dts" or "rate" if the packets carry no presentation time"""
    keyframe_numbers: tuple[int, ...]
    """Frame numbers in presentation order, ascending"""
    keyframe_pts_seconds: tuple[float, ...]
    """[seconds], ascending, one per keyframe number"""
    num_frames_skipped: int = 0
    """Frames before the first that can be decoded, if the stream begins in the middle of a group of pictures"""

    def __post_init__(self) -> None:
        if len(self.keyframe_numbers) != len(self.keyframe_pts_seconds):
            raise UsageError(
                f"{len(self.keyframe_numbers)} keyframe numbers but {len(self.keyframe_pts_seconds)} keyframe times"
            )


@dataclass(frozen=True)
class ContentFacts:
    """The facts measured by decoding: motion of the picture and loudness of the sound, second by second."""

    motion_source: str
    """"codec" (mean length of its motion vectors, pixels) or "luma" (mean absolute difference, 0 to 255)"""
    motion_per_second: tuple[float, ...]
    """[pixels or gray levels] Mean over the frames that start in each second"""
    motion_histogram: tuple[int, ...]
    """Number of frames per bin. Bin 0 is [0, 0.5), bin i is [2 ** (i - 2), 2 ** (i - 1)), and the last one is open"""
    audio_energy_per_second: tuple[float, ...]
    """[root mean square, 0 to 1] of each second of sound on the video's clock. Empty without sound"""
    audio_peaks_seconds: tuple[float, ...]
    """[seconds] Time of the loudest 10 ms in each second that is louder than twice the median second"""


@dataclass(frozen=True)
class VideoRecord:
    """The line of one input in the index."""

    root: str
    """Label of the root folder"""
    path: str
    """Path relative to the root, decoded as ``os.fsdecode`` does (undecodable bytes are lone surrogates)"""
    label: str | None = None
    caption: str | None = None
    identity: Identity | None = None
    """Identity of the file, or None in a hand-written index"""
    level: str | None = None
    """Level of ``SCAN_LEVELS``, or None in a hand-written index"""
    error: str | None = None
    """Reason why the file cannot be used, for people"""
    error_cause: str | None = None
    """Cause of the error in one word, see ``MediaError``"""
    error_stage: str | None = None
    header: HeaderFacts | None = None
    packets: PacketFacts | None = None
    content: ContentFacts | None = None
    audio: AudioFacts | None = None
    extra: Mapping[str, str] = field(default_factory=dict)
    """Extra columns of a labels file"""


@dataclass(frozen=True)
class FeatureInfo:
    """One feature of a video in one tier, as its sidecar names it: the request and the result."""

    feature: str
    tier: str
    fingerprint: str
    """16 hex digits over the extractor's name, version and parameters"""
    params: Mapping[str, Any]
    """Parameters that the fingerprint covers"""
    file: str | None = None
    """Path relative to the cache, shared by the features of one tier, or None if absent"""
    shape: tuple[int, ...] = ()
    """Shape of the feature's array. For frames, the decoded shape"""
    dtype: str = ""
    num_bytes: int = 0
    """Size of the file"""
    digest: str = ""
    """xxh3-128 of the file, 32 hex digits"""
    num_rows: Mapping[str, int] = field(default_factory=dict)
    """Number of rows of each array of the feature. An array's name is the feature's, or begins with it and a dot"""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Facts that the extractor found, such as a start time"""
    absent: str | None = None
    """Reason why the video does not have the feature"""


@dataclass(frozen=True)
class RunSummary:
    """The counts of a scan or a build."""

    num_inputs: int
    num_done: int
    num_up_to_date: int
    num_failed: int
    num_skipped: int = 0
    """Files that are not media (scan only)"""
    num_frames: int = 0
    num_frames_skipped: int = 0
    """Frames at the start of streams that begin in the middle of a group of pictures"""
    elapsed_seconds: float = 0.0


@dataclass(frozen=True)
class Damage:
    """One finding of ``verify``."""

    kind: str
    """"damaged" or "missing" (exit code 5), or "stale", "incomplete" or "orphan" (exit code 6: data is intact)"""
    file: str
    """Path relative to the cache, or the source's path"""
    message: str
    """Text that states the expected and the found values"""
    fix_command: str
    """Command that repairs the damage, or "" if a person must repair it"""
    key: str | None = None
    """Key of the video, if one is concerned"""
    record: str | None = None
    """Record inside the file, if one is concerned"""


@dataclass(frozen=True)
class VerifyReport:
    """The result of ``verify``."""

    damage: list[Damage]
    """All findings, empty if the cache is sound"""

    @property
    def exit_code(self) -> int:
        """0 if the cache is sound, 5 if data is damaged or missing, 6 for findings that leave all data intact."""
        kinds = {each.kind for each in self.damage}
        return 5 if kinds & {"damaged", "missing"} else 6 if kinds else 0


def _default_of(item: dataclasses.Field[Any]) -> Any:
    return item.default if item.default_factory is dataclasses.MISSING else item.default_factory()


def to_json(value: Any) -> Any:
    """Turn a dataclass into plain JSON data. Fields that hold their defaults are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: to_json(getattr(value, f.name))
            for f in dataclasses.fields(value)
            if getattr(value, f.name) != _default_of(f)
        }
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    return value


def _tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}


_PARTS = {
    "identity": Identity,
    "header": HeaderFacts,
    "packets": PacketFacts,
    "content": ContentFacts,
    "audio": AudioFacts,
}


def record_from_json(data: Mapping[str, Any]) -> VideoRecord:
    """Build a ``VideoRecord`` from the data that ``to_json`` returned for one.

    Raises
    ------
    TypeError
        If a key is unknown or missing.
    """
    parts = {name: cls(**_tuples(data[name])) for name, cls in _PARTS.items() if data.get(name) is not None}
    return VideoRecord(**{**data, **parts})


def feature_from_json(data: Mapping[str, Any]) -> FeatureInfo:
    """Build a ``FeatureInfo`` from the data that ``to_json`` returned for one."""
    return FeatureInfo(**_tuples(data))


def content_from_json(data: Mapping[str, Any] | None) -> ContentFacts | None:
    """Build ``ContentFacts`` from the data that ``to_json`` returned for them."""
    return None if data is None else ContentFacts(**_tuples(data))


def path_problem(path: object) -> str | None:
    """Return the reason why a path from an index or a sidecar cannot lie inside its root, or None if it can."""
    if not isinstance(path, str) or not path:
        return "it is empty"
    if "\0" in path:
        return "it contains NUL"
    if path.startswith("/"):
        return "it is absolute"
    if ".." in path.split("/"):
        return "it contains '..'"
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return "it is not a file name"
    return None
