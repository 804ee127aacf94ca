"""One decode of a video that feeds every extractor and passes their rows on at once."""

from __future__ import annotations

import json
from array import array
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from chordcache.amounts import counted
from chordcache.config.picture import Bucket, PictureConfig
from chordcache.engine.worker import DeviceLostError
from chordcache.errors import MediaError, StoppedError, UsageError, describe
from chordcache.features.base import Extractor, Rows, VideoInfo
from chordcache.features.frames import FpsFilter
from chordcache.features.item_fields import value_of
from chordcache.features.registry import FeatureSpec
from chordcache.json_records import MAX_FRAMES, MAX_ROWS
from chordcache.media.activity import ContentMeter
from chordcache.media.audio_track import Sound
from chordcache.media.containers import why_no_sound
from chordcache.media.decoding import DecodedFrame
from chordcache.media.demux import Media
from chordcache.media.frame import FrameMaker
from chordcache.records import ContentFacts, Segment
from chordcache.storage.artefacts.writer import Block
from chordcache.storage.row_clock import CLOCK_FACTS, clock_problem


class Sink(Protocol):
    """A receiver of rows, such as an ``ArtefactWriter``."""

    def append(self, name: str, rows: Block) -> None:
        """Take the next rows of an array."""


@dataclass
class FeatureResult:
    """The result of one extractor for a video."""

    absent: str | None = None
    shape: tuple[int, ...] = ()
    """Shape of the feature's own array"""
    dtype: str = ""
    num_rows: dict[str, int] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DecodeResult:
    """The result of the decode itself."""

    pts_seconds: np.ndarray
    """[shape=(T,), dtype=float64, seconds] times of the kept frames"""
    source_frames: np.ndarray
    """[shape=(T,), dtype=int64] numbers of the kept frames in the source"""
    keyframes: np.ndarray
    """[shape=(K,), dtype=int64] for each keyframe of the source, the first kept frame at or after it, ascending"""
    width: int
    """[pixels] of the cached frames"""
    height: int
    """[pixels] of the cached frames"""
    display_size: tuple[int, int]
    """(width, height) [pixels] of the displayed source"""
    display_crop: tuple[float, float, float, float] | None
    """(left, top, width, height) [pixels of the displayed source] of the part that is in the bucket, or None"""
    frame_seconds: float
    """[seconds] duration of the last frame in the source, or of a frame of ``fps`` if that is longer"""
    timestamp_source: str
    num_frames_skipped: int
    """Number of frames before the first that can be decoded"""
    notes: tuple[str, ...]
    content: ContentFacts | None


class DecodePass:
    """One decode of one video, which ``feed.decode_item`` feeds.

    If an extractor raises, or returns another number of rows than it declares, the decode ends with ``MediaError``: the
    stage is the feature's name and the cause is ``extractor``.

    ``sinks`` receive the rows of each feature of ``specs``. With ``with_content``, ``ContentFacts`` are measured too.
    ``only`` has the numbers of the kept frames that the extractors receive, by default all. ``item`` has the fields
    that they use, such as a ``VideoRecord``. ``segment`` is the part of the file that is decoded, by default all of it.
    ``folder`` is as in ``VideoInfo``.
    """

    def __init__(
        self,
        specs: Mapping[str, FeatureSpec],
        sinks: Mapping[str, Sequence[Sink]],
        picture: PictureConfig,
        *,
        with_content: bool,
        only: Container[int] | None = None,
        item: Any = None,
        segment: Segment | None = None,
        folder: tuple[str, str | None] = ("", None),
    ) -> None:
        self._specs = specs
        self._sinks = sinks
        self.picture = picture
        self._only = only
        self._item, self._folder = item, folder
        self.segment = segment
        self.result: DecodeResult | None = None
        """Result of ``finish``"""
        self.error: MediaError | None = None
        """Error that ended the decode"""
        self._extractors: dict[str, Extractor] = {}
        """Extractors of the features that are not absent"""
        self._num_frames = 0
        self._filter = FpsFilter(picture.fps)
        self._pts_seconds, self._source_frames = array("d"), array("q")  # a tenth of a list's memory
        self._keyframes, self._is_after_keyframe = array("q"), False
        """Kept frames that are keyframes of the source, or follow one; True if one came since the last kept frame"""
        self._meter = ContentMeter() if with_content else None
        self.results: dict[str, FeatureResult] = {}

    def begin(self, media: Media, bucket: Bucket | None = None) -> None:
        """Make the extractors for an item, in its bucket if there are buckets."""
        codec = media.require_video().codec_context
        why_silent = "" if media.audio else why_no_sound(media.container)
        facts = codec.codec.canonical_name, codec.width, codec.height, not why_silent
        video = VideoInfo(*facts, sound_problem=why_silent, folder=self._folder)
        self._maker = FrameMaker(self.picture, media.require_video().sample_aspect_ratio, bucket)
        for name, spec in self._specs.items():
            spec.set_up()
            with _calling(name, 0):
                extractor = spec.make()
                fields = {name: value_of(name, self._item) for name in spec.uses}
                absent = extractor.begin(replace(video, fields=fields) if fields else video)
            self.results[name] = FeatureResult(absent=absent)
            if absent is None:
                self._extractors[name] = extractor

    @property
    def needs_sound(self) -> bool:
        """True after ``begin`` if something takes the sound."""
        return self._meter is not None or any(extractor.needs_sound for extractor in self._extractors.values())

    @property
    def needs_motion_vectors(self) -> bool:
        """True if something takes the decoder's motion vectors."""
        return any(spec.needs_motion_vectors for spec in self._specs.values())

    def add_sound(self, sound: Sound) -> None:
        """Take the next part of the audio track."""
        if self._meter is not None:
            self._meter.add_sound(sound)
        for name, extractor in self._extractors.items():
            if extractor.needs_sound:
                with _calling(name, self._num_frames):
                    rows = extractor.add_sound(sound)
                self._pass_rows(name, rows)

    def add_frame(self, decoded: DecodedFrame) -> None:
        """Take the next frame of the source, in presentation order."""
        self._is_after_keyframe = self._is_after_keyframe or decoded.picture.key_frame
        if self._meter is not None:
            self._meter.add_frame(decoded)
        if not self._filter.keeps(decoded.pts_seconds):
            return
        frame = self._maker.frame(decoded)
        if frame.number >= MAX_FRAMES:
            what = f"it has more than {MAX_FRAMES:,} frames; list segments of it, or set frames.fps"
            raise MediaError("decode", "refused-size", what, frame.number)
        if self._only is None or frame.number in self._only:
            for name, extractor in self._extractors.items():
                with _calling(name, self._num_frames):
                    rows = extractor.add_frame(frame)
                self._pass_rows(name, rows)
            self._num_frames += 1
        self._pts_seconds.append(frame.pts_seconds)
        self._source_frames.append(frame.source_number)
        if self._is_after_keyframe:
            self._keyframes.append(frame.number)
            self._is_after_keyframe = False

    def finish(self, media: Media, sounds: Iterable[Sound] = (), end_seconds: float | None = None) -> DecodeResult:
        """Take the sound that ``add_sound`` did not get, after the last frame, and return the result.

        ``end_seconds`` is the end of the last frame [seconds]. By default the file states its duration.
        """
        self.finish_features(media, sounds)
        scaler, fps = self._maker.scaler, self.picture.fps
        last_seconds = float(media.last_frame_seconds) if end_seconds is None else end_seconds - self._pts_seconds[-1]
        width, height = scaler.size
        self.result = DecodeResult(
            pts_seconds=np.asarray(self._pts_seconds),
            source_frames=np.asarray(self._source_frames),
            keyframes=np.asarray(self._keyframes),
            width=width,
            height=height,
            display_size=scaler.display_size,
            display_crop=scaler.display_crop,
            frame_seconds=max(last_seconds, 1 / fps if fps else 0.0),
            timestamp_source=media.timestamp_source,
            num_frames_skipped=media.num_skipped,
            notes=_notes(media, self._maker),
            content=self._meter.facts() if self._meter else None,
        )
        return self.result

    def fail(self, error: MediaError) -> None:
        """Take the error that ended the decode."""
        self.error = error

    def finish_features(self, media: Media, sounds: Iterable[Sound]) -> None:
        """Take the remaining sound, and complete ``results``. Features of sound need no frame before that."""
        for sound in sounds:
            self.add_sound(sound)
        refusal = media.sound_decoder.refusal
        for name, extractor in self._extractors.items():
            with _calling(name, self._num_frames):
                rows = extractor.finish()
                absent, facts = extractor.absent, json.loads(json.dumps(extractor.facts, allow_nan=False))
                expected = extractor.num_rows(self._num_frames)
            if absent is not None:  # any rows that were written before are not used
                why = f"{absent}; {refusal}" if extractor.needs_sound and refusal else absent
                self.results[name] = FeatureResult(absent=why)
                continue
            self._pass_rows(name, rows)
            state = self.results[name]
            state.facts = facts
            if name not in state.num_rows:
                raise self._fault(name, f"extractor returned no array '{name}'")
            if expected is None and state.num_rows:
                problem = clock_problem(facts, state.num_rows, self._num_frames)
                if problem is not None:
                    raise self._fault(name, f"num_rows() returned None, and facts do not fit: {problem}")
            elif not CLOCK_FACTS.isdisjoint(facts):
                raise self._fault(name, "facts describe a clock; num_rows() must return None")
            for part, num_rows in state.num_rows.items():
                if num_rows > MAX_ROWS:
                    raise self._fault(name, f"'{part}' has {num_rows} rows, expected at most {MAX_ROWS:,}")
                if expected is not None and num_rows != expected:
                    what = f"expected {expected} for {counted(self._num_frames, 'frame')}"
                    raise self._fault(name, f"'{part}' has {counted(num_rows, 'row')}, {what}")

    def _pass_rows(self, name: str, rows: Rows) -> None:
        """Pass rows to the feature's sinks and count them."""
        state = self.results[name]
        if not isinstance(rows, Mapping):
            raise self._fault(name, f"extractor returned a {type(rows).__name__}, expected a mapping of names to rows")
        with _calling(name, self._num_frames):
            blocks = list(rows.items())
            sizes = [len(block) if getattr(block, "ndim", 1) else 0 for _, block in blocks]
        for (part, block), size in zip(blocks, sizes, strict=True):
            if not isinstance(part, str) or (part != name and not part.startswith(f"{name}.")):
                raise self._fault(name, f"extractor returned '{part}', expected a name that begins with '{name}.'")
            if isinstance(block, np.ndarray) and not block.ndim:
                raise self._fault(name, f"'{part}' is a single number, expected rows")
            state.num_rows[part] = state.num_rows.get(part, 0) + size
            try:
                for sink in self._sinks[name]:
                    sink.append(part, block)
            except UsageError as error:
                raise self._fault(name, str(error)) from None
            if part == name and isinstance(block, np.ndarray):
                state.shape, state.dtype = (state.num_rows[part], *block.shape[1:]), str(block.dtype.newbyteorder("="))

    def _fault(self, name: str, what: str) -> MediaError:
        return MediaError(name, "extractor", what, self._num_frames)


@contextmanager
def _calling(name: str, num_frames: int) -> Iterator[None]:
    """Turn any exception of an extractor into a ``MediaError``. A plug-in may raise anything. Only one video fails."""
    try:
        yield
    except (DeviceLostError, MediaError, MemoryError, StoppedError):  # a ``MediaError`` is a fault of the video
        raise
    except (Exception, SystemExit) as error:  # item boundary
        raise MediaError(name, "extractor", describe(error), num_frames) from error


def _notes(media: Media, maker: FrameMaker) -> tuple[str, ...]:
    scaler = maker.scaler
    turn = scaler.orientation
    notes = []
    if turn.mirrored or turn.rotation:
        notes.append(f"{'mirrored and ' if turn.mirrored else ''}turned {turn.rotation} degrees clockwise")
    aspect = media.require_video().sample_aspect_ratio
    if aspect and aspect != 1:
        notes.append(f"pixels of {aspect.numerator}:{aspect.denominator} made square")
    if maker.num_resized:
        notes.append(f"{counted(maker.num_resized, 'frame')} of another size scaled to the first one's")
    notes += maker.notes
    if media.sound_decoder.refusal:
        notes.append(f"{media.sound_decoder.refusal}: silence in their place")
    if media.num_skipped:
        frames = counted(media.num_skipped, "frame")
        notes.append(f"begins in the middle of a group of pictures: {frames} before the first whole one skipped")
    if media.timestamp_source != "pts":
        notes.append(f"no presentation times in the file: taken from its {media.timestamp_source}")
    if media.completeness != "proved":
        notes.append("completeness reported by FFmpeg: its container has no numbers that are compared")
    return tuple(notes)
