"""A video that is not cached: its frames, its sound, and the facts that samplers ask for, all from its source."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from chordcache.config.config import Config
from chordcache.config.picture import FramesConfig, PictureConfig
from chordcache.errors import UsageError
from chordcache.features.built_in import read_side
from chordcache.features.decode_pass import DecodePass, DecodeResult
from chordcache.features.feed import decode_item
from chordcache.features.frames import FpsFilter
from chordcache.features.packet_frames import PACKET_CODECS
from chordcache.features.read_side import Numbers, in_memory
from chordcache.features.registry import FeatureSpec, resolve
from chordcache.media import jpeg
from chordcache.media.audio import parts_of_sound
from chordcache.media.cropping import Rectangle
from chordcache.media.demux import open_media
from chordcache.media.planes import to_rgb
from chordcache.media.scaling import PictureScaler
from chordcache.media.segments import end_of, span_of
from chordcache.media.source_file import open_source
from chordcache.read.video import Video
from chordcache.records import ContentFacts, Identity, VideoRecord
from chordcache.sources.mapped_mp4 import MappedMP4Source
from chordcache.sources.media_file import MP4Source, naming
from chordcache.sources.video_source import VideoSource
from chordcache.storage.artefacts.artefact import Artefact, checked_out
from chordcache.storage.artefacts.writer import Block
from chordcache.storage.feature_info import FeatureInfo
from chordcache.storage.layout import key_of
from chordcache.storage.sidecar import Sidecar

_OF_SOUND = ("librosa", "mel", "waveform")


class StoredSource(MP4Source):
    """Source of frames that went through the codec of a cache. Raises ``UsageError`` if a feature takes a build."""

    def __init__(self, config: Config, features: Sequence[str] = ("frames",)) -> None:
        super().__init__(config.picture)
        features_of_sound(self, features, config)
        frames = config.frames or FramesConfig()
        self._codec, self._quality = frames.codec, frames.quality
        if "frames" in features and self._codec in PACKET_CODECS:
            what = f"frames.codec: got {self._codec}, whose frames depend on those before them, expected another one"
            raise UsageError(f"{what} for a source of single frames. Build a cache.")

    def _shown(self, scaler: PictureScaler, picture: Any) -> np.ndarray:
        if self._codec == "raw":
            return super()._shown(scaler, picture)
        planes = scaler.planes(picture)
        shown = np.empty((*planes[0].shape, 3), np.uint8)
        if self._codec == "jpeg":
            jpeg.decode_into(jpeg.encode_planes(*planes, quality=self._quality), shown)
        else:
            to_rgb([plane[None] for plane in planes], 0, 0, shown[None])
        return shown


_OF_BUILDS = (MP4Source, MappedMP4Source, StoredSource)
"""Sources that show the frames which a build decodes. A class that is derived from one may show others"""


def features_of_sound(source: VideoSource, features: Iterable[str], config: Config) -> list[FeatureSpec]:
    """Return the features of sound that a source gives. Raise ``UsageError`` for one that it cannot give."""
    kind, given = type(source).__name__, ("frames", *(_OF_SOUND if type(source) in _OF_BUILDS else ()))
    for name in features:
        if name not in given:
            raise UsageError(
                f"features: got '{name}' with a {kind}, expected only {', '.join(given)}. For sound, take MP4Source "
                "or MappedMP4Source. For other features, build a cache."
            )
    return [resolve(name, config) for name in features if name in _OF_SOUND]


class UncachedVideo(Video):
    """A video whose features a source gives, which is open at ``path``, and their reader in place of a ``Cache``.

    ``of_sound`` are the features of sound. They are made of the whole sound at once. ``owner`` decides the pixels too.
    """

    def __init__(
        self,
        source: VideoSource,
        path: str,
        record: VideoRecord,
        identity: Identity,
        of_sound: Sequence[FeatureSpec],
        owner: object,
    ) -> None:
        self._source, self._path, self._record = source, path, record
        self._rows = _Rows()
        self._measured: DecodeResult | None = None
        times, segment = source.pts_seconds, record.segment
        index = getattr(source, "frame_index", None)  # not every source knows the rate that the headers state
        frame_seconds = float(index.frame_seconds) if index else 1 / source.fps
        span = range(len(times)) if segment is None else span_of(segment, times, frame_seconds)
        end_seconds = end_of(segment, span, times, frame_seconds)
        keeps = FpsFilter(source.max_fps).keeps
        numbers = np.array([number for number in span if keeps(float(times[number]))], np.int64)
        kept = times[numbers]
        self._span_seconds = None if segment is None else (float(times[span.start]), end_seconds)
        last_seconds = frame_seconds if segment is None else end_seconds - float(kept[-1])
        height, width, _ = shape = source.get_frame(int(numbers[0])).shape  # the first one fixes the size of all frames
        frames = FeatureInfo("frames", "source", "", {}, shape=(len(numbers), *shape), dtype="uint8")
        sidecar = Sidecar(
            key=key_of(record),
            root=record.root,
            path=record.path,
            source=identity,
            num_frames=len(numbers),
            width=width,
            height=height,
            start_seconds=float(kept[0]),
            duration_seconds=float(np.ptp(kept)) + max(last_seconds, 1 / source.max_fps if source.max_fps else 0.0),
            timestamp_source="pts",
            features=(frames, *(self._heard(of_sound) if of_sound else ())),
            content=record.content if record.identity == identity and segment is None else None,
            about=record.description(),
            display_size=getattr(source, "display_size", None),
        )
        super().__init__(Path(), sidecar)
        self._arrays |= {"pts_seconds": kept, "source_frames": numbers}
        self.origin = owner, path, sidecar.source, record.segment

    def _heard(self, specs: Sequence[FeatureSpec]) -> Iterator[FeatureInfo]:
        """Make the features of sound, and yield the record of each."""
        sinks = {spec.name: [self._rows] for spec in specs}
        heard = DecodePass({spec.name: spec for spec in specs}, sinks, PictureConfig(), with_content=False)
        with open_source(self._path, self._source.inside) as opened, open_media(opened.place) as media:
            heard.begin(media)
            sounds = parts_of_sound(media, *self._span_seconds) if self._span_seconds else media.sounds()
            heard.finish_features(media, sounds if heard.needs_sound else ())
        for spec in specs:
            yield FeatureInfo(spec.name, "source", spec.fingerprint, spec.params, **vars(heard.results[spec.name]))

    @property
    def content(self) -> ContentFacts | None:
        """Motion of the picture and loudness of the sound, for which the video is decoded if the index lacks them."""
        known = self.sidecar.content
        return self._decoded().content if known is None and type(self._source) in _OF_BUILDS else known

    def _array(self, name: str) -> np.ndarray:
        if type(self._source) not in _OF_BUILDS:
            raise UsageError(
                f"clip_sampler: got one that needs {name}, expected one that needs frame times only, "
                "because a source of your own reads the video. Take MP4Source, or build a cache."
            )
        return self._numbers_of_cuts() if name == "cuts" else self._decoded().keyframes

    def _decoded(self) -> DecodeResult:
        if self._measured is None:
            picture, segment = PictureConfig(fps=self._source.max_fps), self._record.segment
            decode = DecodePass({}, {}, picture, with_content=True, segment=segment)
            with naming(self._path), open_source(self._path, self._source.inside) as opened:
                self._measured = decode_item(opened.place, decode)
        return self._measured

    def rows(self, video: Video, feature: str, numbers: Any, out: np.ndarray | None = None) -> np.ndarray:
        """Read frames, or the sound of a slice of them. See ``Cache.rows``."""
        if feature == "frames":
            return in_memory("frames", self._source.get_frames(self.source_frames[numbers]), out)
        info, span = self.feature(feature.partition(".")[0]), range(self.num_frames)[numbers]
        seconds, rows = self.seconds_of(span.start, span.stop), cast(Artefact, self._rows)
        return read_side(info.feature).rows_in(rows, info, feature, seconds, out)

    def iter_frames(self, video: Video, indices: Numbers, *, part: Rectangle | None = None) -> Iterator[np.ndarray]:
        """Decode all frames at once, and yield them. See ``Cache.iter_frames``."""
        frames = self.rows(video, "frames", indices)
        yield part.of(frames) if part else frames

    def read_encoded(self, video: Video, indices: Numbers) -> list[bytes] | np.ndarray:
        """Raise ``UsageError``: a source does not have frames as a cache stores them."""
        what = f"video '{self.key}': got frames from its source, expected a cached video"
        raise UsageError(f"{what}. Decode them on the CPU.")


class _Rows:
    """Arrays in memory, in place of an ``Artefact`` and of its writer."""

    def __init__(self) -> None:
        self._blocks: dict[str, list[Any]] = defaultdict(list)

    def append(self, name: str, rows: Block) -> None:
        """Take the next rows of an array."""
        self._blocks[name].append(rows)

    def rows(self, name: str, numbers: range) -> np.ndarray:
        """Return consecutive rows."""
        if len(self._blocks[name]) > 1:
            self._blocks[name] = [np.concatenate(self._blocks[name])]
        rows: np.ndarray = self._blocks[name][0]
        return rows[numbers.start : numbers.stop]

    memory_for = staticmethod(checked_out)
