"""Reader of a video that is not cached. It reads the source, with the same result as from a cache."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chordcache.building.build_plan import artefacts_of, resolve_features
from chordcache.building.build_task import BuildTask
from chordcache.building.file_build import build_file
from chordcache.building.requested import Features
from chordcache.config.config import Config, config_from_json
from chordcache.config.picture import FramesConfig
from chordcache.errors import MediaError, NotFoundError
from chordcache.features.decode_pass import DecodePass
from chordcache.features.feed import decode_item
from chordcache.features.packet_frames import PACKET_CODECS
from chordcache.features.registry import resolve
from chordcache.media import jpeg
from chordcache.media.planes import to_rgb
from chordcache.media.scaling import PictureScaler
from chordcache.media.source_file import identify, open_source
from chordcache.read.cache import Cache
from chordcache.read.clips import FeatureReader
from chordcache.read.video import Video
from chordcache.records import ContentFacts, Identity, VideoRecord
from chordcache.sources.media_file import MP4Source, Show, naming
from chordcache.storage.artefacts.open_files import forget
from chordcache.storage.artefacts.tiers import TIERS
from chordcache.storage.cache_header import Header, write_header
from chordcache.storage.feature_info import FeatureInfo
from chordcache.storage.find_sidecars import write_catalog
from chordcache.storage.layout import key_of
from chordcache.storage.quarantine import Failure
from chordcache.storage.sidecar import Sidecar
from chordcache.temporary import temporary_folder
from chordcache.train.misses.source_videos import SourceFrames, UncachedVideo, sidecar_of


@dataclass(frozen=True)
class SourceVideo:
    """The source of a video."""

    record: VideoRecord
    path: str
    """Absolute path"""
    inside: str | None
    """Real folder that links must not lead ``path`` out of. None if they may"""

    @property
    def key(self) -> str:
        """Key of the video in a cache."""
        return key_of(self.record)


@contextmanager
def read_source(
    origin: SourceVideo,
    header: Header,
    features: Collection[str],
    *,
    trusted: Collection[str] = (),
) -> Iterator[tuple[FeatureReader, Video]]:
    """Yield a video and a reader of its features. They are bit for bit as they will be cached.

    If only frames are read, they are decoded on request. Any other feature takes a whole decode, into a private cache
    that lasts as long as the context. ``header``, of the cache that the video is missing from, defines how features are
    made. ``trusted`` are the classes
    and models that the user has named, see ``config_from_json``.

    Raises
    ------
    NotFoundError
        If the file does not exist.
    MediaError
        If the file cannot be read, now or later, when its frames are decoded.
    """
    try:
        with ExitStack() as stack:
            with naming(origin.path):
                identity = identify(origin.path, origin.inside)
            build = _TemporaryBuild(origin, identity, header, stack, trusted)
            has_frames_only = set(features) == {"frames"}
            source = _source_of_frames(origin, build.config, stack) if has_frames_only else None
            if source is None:
                cache, video = build.cache({*features, "motion"})
                yield cache, video
            else:
                frames = SourceFrames(source, build.config.picture.fps, origin.record.segment)
                sidecar = sidecar_of(origin.record, identity, frames, build.info_of_frames(), build.known_content)
                yield frames, _SourceVideo(sidecar, frames, build)
    except MediaError as error:
        what = f"{error.message}; video '{origin.key}' is not cached either. Restore or repair the file, or scan again."
        if (error.stage, error.cause) == ("open", "io"):
            raise NotFoundError(what) from None
        raise MediaError(error.stage, error.cause, what, error.num_frames_ok) from error


def first_tiers(held: Features, features: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return, for each tier, the features that are read from it: the first tier that holds each, see ``Cache.read``.

    Examples
    --------
    >>> first_tiers({"lmdb": ("frames",), "npz": ("flow", "mel"), "hdf5": ("frames", "mel")}, {"frames", "flow"})
    {'lmdb': ('frames',), 'npz': ('flow',)}
    """
    tiers: dict[str, tuple[str, ...]] = {}
    for tier in TIERS:
        earlier = {name for names in tiers.values() for name in names}
        names = tuple(name for name in held.get(tier, ()) if name in features and name not in earlier)
        if names:
            tiers[tier] = names
    return tiers


class _TemporaryBuild:
    """Builder of private caches of one video. The stack removes them."""

    def __init__(
        self, origin: SourceVideo, identity: Identity, header: Header, stack: ExitStack, trusted: Collection[str]
    ) -> None:
        self.origin = origin
        self._identity = identity
        self._header = header
        self._stack = stack
        self.config: Config = config_from_json(header.config, trusted=trusted)

    def cache(self, features: Collection[str]) -> tuple[Cache, Video]:
        """Build a cache of this video alone, with those of the features that the cache's builds include."""
        folder = self._stack.enter_context(temporary_folder())
        with naming(self.origin.path):
            sidecar = self._build(folder, first_tiers(self._header.features, features))
        write_header(folder, self._header)
        write_catalog(folder)
        for file in sidecar.files:
            self._stack.callback(forget, folder / file.name)
        cache = Cache(folder)
        self._stack.callback(cache.close)
        return cache, Video(folder, sidecar)

    def _build(self, folder: Path, features: Features) -> Sidecar:
        origin, record = self.origin, self.origin.record
        specs = resolve_features(features, self.config, required=frozenset().union(*features.values()))
        artefacts = artefacts_of(features, specs, self.config)
        task = BuildTask(
            cache=folder,
            item=record.replace(identity=self._identity, content=self.known_content),
            source_path=origin.path,
            inside=origin.inside,
            picture=self.config.picture,
            artefacts=artefacts,
        )
        (outcome,) = build_file([task])
        if isinstance(outcome, Failure):
            raise MediaError(outcome.stage, outcome.cause, outcome.message, outcome.num_frames_ok)
        return outcome

    def keyframes(self) -> np.ndarray:
        """Return the keyframes. This decodes the file, because the marks of packets may differ from those of frames."""
        with naming(self.origin.path):
            decode_pass = DecodePass({}, {}, self.config.picture, with_content=False)
            with open_source(self.origin.path, self.origin.inside) as source:
                return decode_item(source.place, decode_pass, self.origin.record.segment).keyframes

    @property
    def known_content(self) -> ContentFacts | None:
        """Content facts from the scan, None if the file has changed since, or the item is not the whole file."""
        record = self.origin.record
        is_whole = record.segment is None and self.config.picture.buckets is None
        return record.content if record.identity == self._identity and is_whole else None

    def info_of_frames(self) -> FeatureInfo:
        """Return the description that the cache will have of the frames, without their shape."""
        (tier,) = first_tiers(self._header.features, {"frames"})
        spec = resolve("frames", self.config)
        return FeatureInfo("frames", tier, spec.fingerprint, spec.params)


def _source_of_frames(origin: SourceVideo, config: Config, stack: ExitStack) -> MP4Source | None:
    """Open a source of frames as the cache will hold them.

    Return None if this takes the whole file: its frames are counted from its start, or stored as packets. Also with
    buckets, of which an item takes all frames.
    """
    if config.picture.buckets is not None or (config.frames is not None and config.frames.codec in PACKET_CODECS):
        return None
    source = stack.enter_context(_Stored(config, origin.inside).open(origin.path))
    return None if source.sequential_reason else source


class _Stored(MP4Source):
    """Source of frames that went through the cache's codec."""

    def __init__(self, config: Config, inside: str | None) -> None:
        super().__init__(config.picture)
        self._inside = inside
        frames = config.frames or FramesConfig()
        if frames.codec == "jpeg":
            self._show = _through_jpeg(frames.quality)
        elif frames.codec == "yuv420":
            self._show = _through_planes


def _through_jpeg(quality: int) -> Show:
    def show(scaler: PictureScaler, picture: Any) -> np.ndarray:
        planes = scaler.planes(picture)
        shown = np.empty((*planes[0].shape, 3), np.uint8)
        jpeg.decode_into(jpeg.encode_planes(*planes, quality=quality), shown)
        return shown

    return show


def _through_planes(scaler: PictureScaler, picture: Any) -> np.ndarray:
    planes = scaler.planes(picture)
    shown = np.empty((*planes[0].shape, 3), np.uint8)
    to_rgb([plane[None] for plane in planes], 0, 0, shown[None])
    return shown


class _SourceVideo(UncachedVideo):
    """A video whose frames are decoded on request. Facts that need more than frames take a whole decode."""

    def __init__(self, sidecar: Sidecar, frames: SourceFrames, build: _TemporaryBuild) -> None:
        super().__init__(sidecar, frames, build.origin.path)
        self._build = build
        self._decoded: Video | None = None

    @property
    def content(self) -> ContentFacts | None:
        """Motion of the picture and loudness of the sound, second by second."""
        if self.sidecar.content is not None:
            return self.sidecar.content
        if self._decoded is None:  # not a cached_property, see Video
            self._decoded = self._build.cache({"frames", "motion"})[1]
        return self._decoded.content

    def _array(self, name: str) -> np.ndarray:
        return self._build.keyframes() if name == "keyframes" else super()._array(name)
