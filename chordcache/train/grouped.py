"""Samples of several streams, such as cameras of one robot: the same seconds of each, on one clock."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from chordcache.amounts import counted
from chordcache.arguments import checked_names, names_arguments
from chordcache.errors import NotFoundError, UsageError, printable
from chordcache.features.read_side import EncodedFrames, RowReader
from chordcache.read.segment_of import SegmentOfFile
from chordcache.read.video import Video
from chordcache.records import GROUP, STREAM, Segment
from chordcache.train.batches import FrameBuffer, FrameMemory, allocate
from chordcache.train.dataset import ChordVideoDataset
from chordcache.train.samplers.clip_request import ClipRequest

_OF_GROUP = ("label", "caption", "sample_id")
"""Values of a sample that are those of its first stream. Of all others, a sample has a dict by stream"""


@names_arguments
def group(
    dataset: ChordVideoDataset, streams: str | Sequence[str] | None = None, *, pattern: str | None = None
) -> GroupedDataset:
    """Make samples of several videos that show the same time, such as two cameras, or a clip and its depth.

    The columns ``group`` and ``stream`` of the index, or their paths, say which videos belong together. ``frames`` of a
    sample is a dict from the name of each stream to its frames, and so is each other value, but for ``label``,
    ``caption`` and ``sample_id``, which are those of the first stream, and ``group``, the name of the group.

    The clip sampler draws frames of the first stream, among the seconds that all streams of the group have. Each other
    stream has the frames that are shown at the times of these, and the sound of the same seconds. A frame that begins
    less than half a frame later counts as shown. ``pts_seconds`` has the times of each. All streams draw the same
    random numbers for their crops.

    The clock is that of the files: times of whole files are compared as they are. In a segment that is stated in
    seconds they count from its start, and in one that is stated in frames from its first frame.

    The result can be used wherever the dataset can. Sample i is clip ``i % clips_per_video`` of group
    ``i // clips_per_video``.

    Parameters
    ----------
    dataset : ChordVideoDataset
        The dataset. Its ``missing`` is also the policy for a group that lacks a stream: "error" raises
        ``NotFoundError``, "skip" leaves out the group.
    streams : sequence of str, optional
        Names of the streams, the one first by whose frames clips are drawn. By default all, sorted.
    pattern : str, optional
        Regular expression that matches the whole path of each video, with the groups ``group`` and ``stream``, in place
        of the columns.

    Raises
    ------
    NotFoundError
        If a video has no group or no stream, or a group lacks a stream.
    UsageError
        If an argument is wrong, two videos of a group are of one stream, or the streams of a group do not have a second
        in common.

    Examples
    --------
    ::

        dataset = ChordVideoDataset("cache", clip_sampler=RandomClipSampler(16, fps=10))
        both = group(dataset, ("front", "wrist"), pattern=r"(?P<group>.+)/(?P<stream>.+)[.]mp4")
        for batch in ClipLoader(both, batch_size=8):
            batch["frames"]["wrist"]  # (8, 16, 3, 224, 224) uint8, at the times of batch["frames"]["front"]
    """
    return GroupedDataset(dataset, streams, pattern)


class _Span(NamedTuple):
    """Seconds on the clock of a group."""

    start: float
    stop: float


class _Chosen(NamedTuple):
    """A clip sampler whose frames are already chosen."""

    numbers: np.ndarray

    def frame_numbers(self, video: Video, request: ClipRequest) -> np.ndarray:
        """Return the chosen frames."""
        return self.numbers


class GroupedDataset(ChordVideoDataset):
    """Groups of videos that show the same time. See ``group``, which has the parameters."""

    def __init__(
        self, dataset: ChordVideoDataset, streams: str | Sequence[str] | None = None, pattern: str | None = None
    ) -> None:
        if type(dataset) is not ChordVideoDataset:
            raise UsageError(
                f"dataset: got {dataset!r}, expected a ChordVideoDataset. Group it before concat or subset."
            )
        vars(self).update(vars(dataset))
        if self._clips.missing == "zeros":
            raise UsageError("missing: got 'zeros' in a dataset to group, expected 'error' or 'skip'")
        places, spans = self._places(None if pattern is None else _checked_pattern(pattern))
        names = sorted({stream for of_group in places.values() for stream in of_group})
        self.streams = tuple(names) if streams is None else checked_names("streams", streams, "names of streams")
        """Names of the streams of each group, the one first that clips are drawn from"""
        unknown = [name for name in self.streams if name not in names]
        if unknown or not self.streams:
            raise UsageError(f"streams: got {unknown or 'none'}, expected some of {', '.join(names)}")
        self._groups = self._complete(places)
        """Names of the groups"""
        self._members = np.array([[places[name][stream] for stream in self.streams] for name in self._groups])
        """Position of the video of each stream [shape=(number of groups, number of streams), dtype=int64]"""
        self._shared = [self._common(name, places[name], spans) for name in self._groups]
        self._num_samples = len(self._groups) * self._clips_per_video
        self._videos.close()

    def __repr__(self) -> str:
        clips = f"{counted(len(self._groups), 'group')} x {counted(self._clips_per_video, 'clip')}"
        return f"<groups of {', '.join(self.streams)} in {self._videos!r}: {clips}>"

    def _places(self, pattern: re.Pattern[str] | None) -> tuple[dict[str, dict[str, int]], list[_Span]]:
        """Return the position of the video of each stream, by group, and the seconds of each video."""
        places: dict[str, dict[str, int]] = {}
        spans = []
        for position in range(len(self._videos)):
            video = self._videos.read(position, lambda _, video: video)
            group, stream = _names_of(video, pattern)
            other = places.setdefault(group, {}).setdefault(stream, position)
            if other != position:
                keys = " and ".join(self._videos.read(place, lambda _, video: video.key) for place in (other, position))
                raise UsageError(f"stream: got '{stream}' twice in group '{group}', for {keys}, expected it once")
            spans.append(_span_of(video))
        return places, spans

    def _complete(self, places: dict[str, dict[str, int]]) -> list[str]:
        """Return the names of the groups that have all streams."""
        complete = [name for name, of_group in places.items() if of_group.keys() >= set(self.streams)]
        if len(complete) < len(places) and (self._clips.missing == "error" or not complete):
            name = next(name for name in places if name not in complete)
            lacks = ", ".join(stream for stream in self.streams if stream not in places[name])
            raise NotFoundError(
                f"streams: got no video of {lacks} in group '{name}', one of {len(places) - len(complete)} that lack a "
                f"stream among {counted(len(places), 'group')}, expected each stream in each. Take missing='skip', "
                "which leaves such groups out, or fewer streams."
            )
        return complete

    def _common(self, name: str, of_group: dict[str, int], spans: Sequence[_Span]) -> _Span:
        """Return the seconds that all streams of a group have."""
        own = [spans[of_group[stream]] for stream in self.streams]
        common = _Span(max(span.start for span in own), min(span.stop for span in own))
        if common.start >= common.stop:
            seconds = ", ".join(f"{s} {m.start:.3f} to {m.stop:.3f} s" for s, m in zip(self.streams, own, strict=True))
            raise UsageError(f"streams: got {seconds} in group '{name}', expected seconds that all of them have")
        return common

    @property
    def label_ids(self) -> np.ndarray:
        """Position in ``classes`` of the label of the first stream of every sample, see ``ClipDataset``."""
        of_videos = super().label_ids[:: self._clips_per_video]
        return np.repeat(of_videos[self._members[:, 0]], self._clips_per_video)

    @property
    def settings(self) -> dict[str, object]:
        """Settings in which the samples of a batch agree, see ``ClipDataset``."""
        return {**super().settings, "streams": self.streams}

    def _position(self, number: int) -> int:
        return int(self._members[number // self._clips_per_video, 0])

    def fetch(self, index: tuple[int, int]) -> None:
        """Fetch the files of a sample from an object store, see ``ClipDataset``."""
        for position in self._members[index[1] // self._clips_per_video].tolist():
            self._videos.fetch(position, self._clips.features)

    def measure(self, epoch: int, numbers: np.ndarray) -> None:
        """Return None: the frames of a sample depend on the times of several videos. See ``ClipDataset``."""

    def _read(self, indices: Sequence[tuple[int, int]], buffers: Sequence[FrameBuffer | None]) -> list[dict[str, Any]]:
        if EncodedFrames in buffers:
            raise UsageError("decode: got 'cuda' for a dataset of groups, expected 'cpu'")
        memories = [FrameMemory(len(indices), allocate) if any(buffers) else None for _ in self.streams]
        samples = []
        for i, (epoch, number) in enumerate(indices):
            place = number // self._clips_per_video
            request, name = self._request(epoch, number), self._groups[place]
            seconds, span = self._seconds(request, place)
            of_streams = [
                self._of_stream(position, request, seconds, span, partial(memory.clip, i) if memory else None)
                for position, memory in zip(self._members[place].tolist(), memories, strict=True)
            ]
            values = {
                key: dict(zip(self.streams, (of[key] for of in of_streams), strict=True)) for key in of_streams[0]
            }
            samples.append({**values, **{key: of_streams[0][key] for key in _OF_GROUP}, "group": name})
        return samples

    def _seconds(self, request: ClipRequest, place: int) -> tuple[np.ndarray, tuple[float, float]]:
        """Draw a clip of the first stream. Return the times of its frames, and its seconds, on the group's clock."""

        def draw(reader: RowReader, video: Video) -> tuple[np.ndarray, tuple[float, float]]:
            video.read_features = self._clips.features
            zero = _zero_of(video)
            part = _part_of(video, self._shared[place])
            numbers = np.asarray(self._sampler.frame_numbers(part, request), np.int64)
            if part is not video:
                numbers = numbers + part.first_row
            start, stop = video.seconds_of(int(numbers.min()), int(numbers.max()) + 1)
            return video.pts_seconds[numbers] - zero, (start - zero, stop - zero)

        return self._videos.read(int(self._members[place, 0]), draw)

    def _of_stream(
        self,
        position: int,
        request: ClipRequest,
        seconds: np.ndarray,
        span: tuple[float, float],
        buffer: FrameBuffer | None,
    ) -> dict[str, Any]:
        """Read the frames of a stream that are shown at some times, and all else of the same seconds."""

        def read(reader: RowReader, video: Video) -> dict[str, Any]:
            video.read_features = self._clips.features
            zero, stream = _zero_of(video), copy(video)
            sound = span[0] + zero, span[1] + zero
            vars(stream)["seconds_of"] = lambda start, stop: sound  # the frames of this stream begin and end elsewhere
            chosen = _Chosen(_shown_at(video, seconds + zero))
            return self._samples.with_sampler(chosen).read([request], [buffer], reader, stream)[0]

        return self._videos.read(position, read)


def _checked_pattern(pattern: str) -> re.Pattern[str]:
    try:
        checked = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"pattern: got {pattern!r}, expected a regular expression: {error}") from None
    if not {GROUP, STREAM} <= checked.groupindex.keys():
        raise UsageError(f"pattern: got {pattern!r}, expected one with the groups (?P<group>...) and (?P<stream>...)")
    return checked


def _names_of(video: Video, pattern: re.Pattern[str] | None) -> tuple[str, str]:
    """Return the names of the group and of the stream of a video."""
    if pattern is not None:
        match = pattern.fullmatch(video.path)
        if match is None:
            raise UsageError(
                f"pattern: got {pattern.pattern!r}, which does not match '{printable(video.path)}', expected one that "
                "matches the path of each video. Change it, or select videos by videos=."
            )
        return match[GROUP], match[STREAM]
    for column in (GROUP, STREAM):
        if video.extra.get(column) is None:
            raise NotFoundError(
                f"{column}: got none for video '{video.key}', expected a value in each row of the index. Add the "
                "column, give a pattern of paths, or select videos by videos=."
            )
    return str(video.extra[GROUP]), str(video.extra[STREAM])


def _zero_of(video: Video) -> float:
    """Return the time of a video that is 0 on the clock of its group [seconds on the clock of the source]."""
    segment = video.segment
    if segment is None:
        return 0.0
    by_frames = segment.start_seconds is None and segment.end_seconds is None
    return video.start_seconds if by_frames else segment.start_seconds or 0.0


def _span_of(video: Video) -> _Span:
    start = video.start_seconds - _zero_of(video)
    return _Span(start, start + video.duration_seconds)


def _part_of(video: Video, common: _Span) -> Video:
    """Return the part of a video in which all streams of its group have frames, or the video if that is all of it."""
    own, slack = _span_of(video), video.duration_seconds / video.num_frames / 2
    if common.start - own.start < slack and own.stop - common.stop < slack:
        return video
    part = Segment(start_seconds=common.start - own.start, end_seconds=common.stop - own.start)
    return SegmentOfFile(video, video.sidecar.record.replace(segment=part))


def _shown_at(video: Video, seconds: np.ndarray) -> np.ndarray:
    """Return the frames that are shown at some times [shape=(T,), dtype=int64], or begin within half a frame."""
    begins = np.maximum.accumulate(video.pts_seconds)  # where a clock is set back, the frames after it share a time
    half = float(np.median(np.diff(begins))) / 2 if len(begins) > 1 else 0.0
    numbers = np.searchsorted(begins, seconds + half, side="right") - 1
    return np.maximum(numbers, 0)
