"""Frozen records that pass between the layers and to files. They open nothing and check their own shapes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Annotated, Any, Self

from chordcache.amounts import counted
from chordcache.choices import SCAN_LEVELS
from chordcache.errors import UsageError, printable
from chordcache.json_records import Limit, Record

_MAX_SECONDS = 1e9
"""[seconds] Length above which a header is not believed: 30 years"""


class Identity(Record, frozen=True):
    """The size and the modification time of a file. If they are equal, it counts as the same file, wherever it is.

    Permissions, owner, links and the disk do not matter: a copy by ``cp -a`` or rsync has the same identity.
    """

    size: int
    """[bytes]"""
    mtime_ns: int
    """[nanoseconds since the epoch]"""


class AudioFacts(Record, frozen=True):
    """Header facts of the audio track that a player would play."""

    codec: str
    sample_rate_hz: int
    num_channels: int
    duration_seconds: float | None
    """[seconds] None if the header does not state it"""
    start_seconds: float | None
    """[seconds] on the clock that it shares with the video"""


class HeaderFacts(Record, frozen=True):
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


class PacketFacts(Record, frozen=True):
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
    completeness: str | None = None
    """"proved" if the container's own numbers agree with its content, "reported" if FFmpeg's report is believed"""
    frame_steps: bytes = b""
    """Time of the first frame, then the duration of each [ticks of the track's clock], as int64 in zlib, see
    ``Index.frame_mappings``. Empty if the packets carry no presentation time"""

    def __post_init__(self) -> None:
        if len(self.keyframe_numbers) != len(self.keyframe_pts_seconds):
            raise UsageError(
                f"{len(self.keyframe_numbers)} keyframe numbers but {len(self.keyframe_pts_seconds)} keyframe times"
            )


class ContentFacts(Record, frozen=True):
    """The facts measured by decoding: what the pictures show, how they move, and how loud the sound is."""

    motion_per_second: tuple[float, ...]
    """[gray levels, 0 to 255] Mean absolute difference of luma from the frame before, over the frames of each second"""
    motion_histogram: tuple[int, ...]
    """Number of frames per bin. Bin 0 is [0, 0.5), bin i is [2 ** (i - 2), 2 ** (i - 1)), and the last one is open"""
    audio_energy_per_second: tuple[float, ...]
    """[root mean square, 0 to 1] of each second of sound on the video's clock. Empty without sound"""
    audio_peaks_seconds: tuple[float, ...]
    """[seconds from the first frame] Time of the loudest 10 ms of each second, if louder than twice the median second
    and than 0.001"""
    content_id: Annotated[str, Limit(pattern=r"^([0-9a-f]{32})?\Z")] = ""
    """32 hex digits over all pictures and their times, which a remux, another name and other metadata do not change"""
    second_hashes: Annotated[str, Limit(pattern=r"^([0-9a-f]{16})*\Z")] = ""
    """16 hex digits for each second of pictures, of which copies share most bits. 0 for a second of one gray"""
    cuts_seconds: tuple[float, ...] = ()
    """[seconds from the first frame] Times of the frames at which a hard cut begins a new shot"""


class Segment(Record, frozen=True):
    """A part of a file, half open: by presentation time or by frame number. None leaves a side open."""

    start_seconds: float | None = None
    """[seconds from the file's first frame] The first frame at or after it is the first one of the segment"""
    end_seconds: float | None = None
    """[seconds from the file's first frame] The segment ends before the first frame at or after it"""
    start_frame: int | None = None
    """Number of the first frame, counted from 0 in presentation order"""
    end_frame: int | None = None
    """Number of the first frame after the segment"""

    def __post_init__(self) -> None:
        start, end, first, last = self.start_seconds, self.end_seconds, self.start_frame, self.end_frame
        if (start is None and end is None) == (first is None and last is None):
            raise UsageError("segment: got times and frame numbers or neither, expected one of the two. Keep one.")
        numbers = (start or 0, end or 0, first or 0, last or 0)
        if min(numbers) >= 0 and sum(numbers) < math.inf:  # false of NaN. The loop takes three times as long
            return
        for name, value in zip(SEGMENT_COLUMNS, (start, end, first, last), strict=True):
            if value is not None and not 0 <= value < math.inf:
                raise UsageError(f"{name}: got {value}, expected a finite number of at least 0")

    def __str__(self) -> str:
        """Return it for people, such as "[1.5, 4.0) s"."""
        if self.start_frame is None and self.end_frame is None:
            end = "end" if self.end_seconds is None else float(self.end_seconds)
            return f"[{float(self.start_seconds or 0)}, {end}) s"
        return f"frames [{self.start_frame or 0}, {'end' if self.end_frame is None else self.end_frame})"


SEGMENT_COLUMNS = ("start_seconds", "end_seconds", "start_frame", "end_frame")
"""Fields of ``Segment``, and columns of a hand-written list"""

GROUP, STREAM = "group", "stream"
"""Extra columns of videos that show the same time: the name of their group, and that of the stream which each is"""

SERIES = "series"
"""Extra column with the place of the table of an item, see ``features.series``"""


class Description(Record, frozen=True, kw_only=True):
    """The statements of an index about one item: its part of the file, and what is to be learned from it."""

    segment: Segment | None = None
    """Part of the file, or None for the whole file"""
    label: str | None = None
    labels: tuple[str, ...] = ()
    """Labels of an item that may have several"""
    caption: str | None = None
    captions: tuple[str, ...] = ()
    """Captions of an item that has several"""
    extra: Mapping[str, Any] = {}
    """Further columns. The header of the index declares the type of those that are not text"""

    def description(self) -> Description:
        """Return these fields alone."""
        return Description(**dict(zip(_DESCRIPTION, _stated(self), strict=True)))

    def described(self, description: Description) -> Self:
        """Return a copy with the fields of another description."""
        stated = _stated(description)
        return self if _stated(self) == stated else self.replace(**dict(zip(_DESCRIPTION, stated, strict=True)))


_DESCRIPTION = Description.__struct_fields__
_stated = attrgetter(*_DESCRIPTION)


def _statements(item: Description) -> dict[str, Any]:
    """Return what an item states: labels, captions, and columns with a value."""
    texts = {"label": (item.label, *item.labels), "caption": (item.caption, *item.captions)}
    return {name: value for name, value in {**item.extra, **texts}.items() if value not in (None, "", [], (None,))}


def losses(before: Description, after: Description) -> Iterator[str]:
    """Yield the name of a count for each label, caption and value of a column that changes or goes."""
    if _stated(before) == _stated(after):
        return
    new = _statements(after)
    for name, value in _statements(before).items():
        if value != new.get(name):
            kind = name if name in ("label", "caption") else "column"
            yield f"num_{kind}s_{'changed' if name in new else 'gone'}"


class VideoRecord(Description, frozen=True):
    """The line of one item in the index: a file, or a segment of one."""

    root: str
    """Label of the root folder"""
    path: str
    """Path relative to the root, decoded as ``os.fsdecode`` does (undecodable bytes are lone surrogates)"""
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
    erased: tuple[str, ...] = ()
    """Empty cells of the list of labels, as ``stated`` of the index"""

    def __repr__(self) -> str:
        """Return a few of the facts. All of them are thousands of letters, with a time for each keyframe."""
        facts = [f"root={printable(self.root)!r}", f"path={printable(self.path)!r}"]
        if self.segment is not None:
            facts.append(f"segment={self.segment}")
        if self.header is not None:
            facts.append(f"{self.header.codec} {self.header.display_width}x{self.header.display_height}")
        if self.packets is not None:
            facts.append(f"{counted(self.packets.num_frames, 'frame')}, {self.packets.duration_seconds:.2f} s")
        if self.label is not None:
            facts.append(f"label={printable(self.label)!r}")
        if self.error is not None:
            facts.append(f"error={printable(self.error)!r}")
        return f"<VideoRecord {', '.join(facts)}>"

    def __post_init__(self) -> None:
        if self.level is not None and self.level not in SCAN_LEVELS:
            raise UsageError(f"level: got {self.level!r}, expected one of {', '.join(SCAN_LEVELS)}")

    def over(self, earlier: Description, stated: Sequence[str]) -> VideoRecord:
        """Return a copy with the labels, captions and columns of an earlier build about which it says nothing.

        ``stated`` is that of its index.
        """
        erased = {*self.erased, *stated}
        silent = {"label", "caption"} - erased - _statements(self).keys()
        kept = {name: getattr(earlier, name) for one in silent for name in (one, f"{one}s")}
        extra = {name: value for name, value in earlier.extra.items() if name not in erased}
        return self.replace(**kept, extra={**extra, **self.extra})

    @property
    def known_seconds(self) -> float | None:
        """[seconds] Length of the file, or of the segment of it, as the index states it, or None."""
        whole = self.packets.duration_seconds if self.packets else None
        if whole is None and self.header:
            whole = self.header.header_duration_seconds
        if whole is not None and not 0 <= whole < _MAX_SECONDS:
            return None
        if self.segment is None or whole is None:
            return whole
        fps = (self.header.average_fps if self.header else None) or 0.0
        start, end = self.segment.start_seconds or 0.0, self.segment.end_seconds
        if self.segment.start_frame is not None or self.segment.end_frame is not None:
            if not fps:
                return None
            start = (self.segment.start_frame or 0) / fps
            end = None if self.segment.end_frame is None else self.segment.end_frame / fps
        return max(0.0, min(whole, whole if end is None else end) - start)


@dataclass(frozen=True)
class RunSummary:
    """The counts of a scan, a build or a merge."""

    num_inputs: int
    num_done: int
    num_up_to_date: int
    num_failed: int
    num_retryable: int = 0
    """Failed inputs that were not tried again, and may succeed after a correction, see ``retry_quarantined``"""
    num_skipped: int = 0
    """Files that are not media (scan only)"""
    num_frames: int = 0
    num_frames_skipped: int = 0
    """Frames at the start of streams that begin in the middle of a group of pictures"""
    num_pruned: int = 0
    """Videos that were dropped from the cache (build only)"""
    num_unnamed: int = 0
    """Cached videos that the index does not name, and that stay (build only)"""
    losses: Mapping[str, int] = field(default_factory=dict)
    """Numbers of labels, captions and values of columns that changed or went, such as "num_labels_gone" (build only)"""
    num_unused_bytes: int = 0
    """[bytes] Files that this run replaced, and that ``gc`` removes (build only)"""
    elapsed_seconds: float = 0.0
