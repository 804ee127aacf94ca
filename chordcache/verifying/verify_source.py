"""The check that a source still shows what is cached. Some rows of each feature are made again and compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from chordcache.amounts import counted
from chordcache.config.config import Config
from chordcache.errors import DamageError, MediaError, UsageError
from chordcache.features.decode_pass import DecodePass, DecodeResult
from chordcache.features.feed import decode_item
from chordcache.features.packet_frames import PACKET_CODECS, read_planes
from chordcache.features.registry import FeatureSpec, resolve
from chordcache.media import jpeg
from chordcache.media.planes import split
from chordcache.records import SERIES
from chordcache.storage import feature_files
from chordcache.storage.artefacts.artefact import Artefact
from chordcache.storage.artefacts.writer import Block
from chordcache.storage.feature_info import FeatureInfo, StoredFile
from chordcache.storage.row_clock import CLOCK_FACTS, has_times
from chordcache.storage.sidecar import Sidecar

NUM_SOURCE_FRAMES = 4
"""Number of random frames of each source that are made again. For each, the next frame is made again too."""

MIN_SOURCE_PSNR_DB = 40.0
"""PSNR below which a frame is a different picture [dB]. Both frames went through the same lossy steps. Another version
of a codec library may round differently, but stays far above."""

_BLOCK = 8
"""Side of the squares [samples] whose means are compared of frames that are packets, in each plane for itself. The
details of such a frame depend on the frames before it.

Planes are compared, and not RGB: noise of the codec in saturated color leaves the gamut, and is clipped there, so that
means of sound frames had 31.5 dB. Over 83 natural files and 28 of them with three times their saturation, the worst
plane of any frame has 51.8 dB with H.264 at crf 17, 44.5 at 24, 37.8 at 32 and 28.3 at 40, and 48.6 dB with MPEG-4 at
quantizer 8. Hence the bound, which leaves at least 8 dB. Half of all frames are below 40 dB to the frame before them.
"""

MIN_ALIKE = 0.98
"""Share of a feature's values that must agree. It is below 1 for the same reason."""

_BEST_CRF = 20
"""Quality of H.264 from which on each step lowers ``MIN_SOURCE_PSNR_DB`` by 1 dB"""

_TOLERANCE = 0.02
"""Relative and absolute tolerance: two values this close agree."""


def compare_with_source(
    cache: Path, sidecar: Sidecar, config: Config, path: str, folder: tuple[str, str | None] = ("", None)
) -> None:
    """Decode the source of a video again and compare times, keyframes, random frames, and the features made from them.

    Some features are left out, because their rows depend on all frames before them: pose, which tracks, and plug-ins
    that do not declare otherwise. Only their digests are checked. ``folder`` is as in ``VideoInfo``. Raises
    ``MediaError`` if the source cannot be decoded, or shows something else, and ``DamageError`` if an artefact cannot
    be read.
    """
    num_frames = sidecar.num_frames
    shown = _random_frames(num_frames)
    specs = _comparable(sidecar, config)
    comparers = [
        _Comparer(cache, sidecar, info, info.file, shown)
        for info in sidecar.features
        if info.file and info.feature in specs
    ]
    sinks = {name: [comparer for comparer in comparers if comparer.feature == name] for name in specs}
    segment, only = sidecar.about.segment, frozenset(shown)
    decode_pass = DecodePass(
        specs, sinks, config.picture, with_content=False, only=only, item=sidecar.record, segment=segment, folder=folder
    )
    facts = decode_item(path, decode_pass)
    if len(facts.pts_seconds) != num_frames:
        raise _differs(f"got {counted(len(facts.pts_seconds), 'frame')}, expected {num_frames} as in the cache")
    for file in sidecar.files:
        _compare_frames(feature_files.open_file(cache, file, sidecar.claims), facts)
    for comparer in comparers:
        absent = decode_pass.results[comparer.feature].absent
        if absent is not None:
            raise _differs(f"'{comparer.feature}' is cached, and absent now: {absent}")
        comparer.finish()


def _compare_frames(artefact: Artefact, facts: DecodeResult) -> None:
    """Compare the times, the numbers in the source, and the keyframes. Raises ``MediaError`` if they differ."""
    cached = artefact.array("pts_seconds")
    if not np.array_equal(cached, facts.pts_seconds):
        number = int(np.argmax(cached != facts.pts_seconds))
        raise _differs(
            f"frame {number}, cached at {cached[number]:.6f} s, is shown at {facts.pts_seconds[number]:.6f} s"
        )
    cached = artefact.array("source_frames")
    if not np.array_equal(cached, facts.source_frames):
        number = int(np.argmax(cached != facts.source_frames))
        raise _differs(f"frame {number}, cached as {cached[number]} of the source, is {facts.source_frames[number]}")
    cached = artefact.array("keyframes")
    if not np.array_equal(cached, facts.keyframes):
        number = np.setxor1d(cached, facts.keyframes)[0]
        raise _differs(f"frame {number} is a keyframe either in the cache or in the source, but not in both")


def _random_frames(num_frames: int) -> list[int]:
    """Return frame 0, which fixes size and orientation, and random frames with the frame after each, ascending."""
    chosen = np.random.default_rng().choice(num_frames, min(NUM_SOURCE_FRAMES, num_frames), replace=False)
    return sorted({0, *(n for number in chosen.tolist() for n in (number, number + 1) if n < num_frames)})


def _comparable(sidecar: Sidecar, config: Config) -> Mapping[str, FeatureSpec]:
    specs: dict[str, FeatureSpec] = {}
    for info in sidecar.features:
        if info.absent is None and info.feature in config.names():
            try:
                spec = resolve(info.feature, config)
            except UsageError:  # a plug-in that is not installed here
                continue
            is_comparable = CLOCK_FACTS.isdisjoint(info.facts) or has_times(info.facts)
            of_source = not spec.uses and (spec.is_local or spec.is_of_sound)
            if spec.fingerprint == info.fingerprint and is_comparable and (of_source or info.feature == SERIES):
                specs[info.feature] = replace(spec, arguments={"codec": "yuv420"}) if _is_packets(info) else spec
    return specs


def _is_packets(info: FeatureInfo) -> bool:
    return info.feature == "frames" and info.params["codec"] in PACKET_CODECS


class _Comparer:
    """A sink that compares the rows of an extractor with the cached rows."""

    def __init__(
        self, cache: Path, sidecar: Sidecar, info: FeatureInfo, file: StoredFile, shown: Sequence[int]
    ) -> None:
        self._claims = sidecar.claims
        self._cache = cache
        self._info, self._file = info, file
        self.feature = info.feature
        self._shown = shown
        self._num_taken: dict[str, int] = {}

    def append(self, name: str, rows: Block) -> None:
        """Compare the next rows. Raises ``MediaError`` at the first difference."""
        first = self._num_taken.get(name, 0)
        self._num_taken[name] = first + len(rows)
        info = self._info
        artefact = feature_files.open_file(self._cache, self._file, self._claims)
        if "row_seconds" in info.facts:
            numbers = range(first, min(first + len(rows), info.num_rows[name]))
            again, cached = np.asarray(rows)[: len(numbers)], artefact.rows(name, numbers)
            if info.feature == SERIES and not np.array_equal(again, cached):
                raise _differs(f"'{name}' is not what its table has")
            self._compare(name, first, again, cached)
            return
        for i, row in enumerate(rows):
            number = self._shown[first + i]
            if number >= info.num_rows[name] or not self._is_followed(first + i):
                continue
            if _is_packets(info):
                self._compare_planes(number, np.asarray(row), read_planes(artefact, info, number))
            elif info.feature == "frames" and info.params["codec"] == "jpeg":
                cached = self._decoded(next(iter(artefact.records(name, [number]))))
                self._require(number, _psnr_db(cached, self._decoded(row)))
            else:
                again, cached = np.asarray(row)[None], artefact.rows(name, [number])
                if info.feature != "frames":
                    self._compare(name, number, again, cached)
                elif info.params["codec"] == "yuv420":
                    self._compare_planes(number, again[0], cached[0])
                else:
                    self._require(number, _psnr_db(cached, again) if again.shape == cached.shape else 0.0)

    def _is_followed(self, position: int) -> bool:
        """Return whether the next frame was shown too, or does not exist. A row may depend on it."""
        number = self._shown[position]
        return position + 1 == len(self._shown) or self._shown[position + 1] == number + 1

    def finish(self) -> None:
        """Compare the number of rows of sound. Raises ``MediaError`` if it differs."""
        for name, num_taken in self._num_taken.items():
            if "row_seconds" in self._info.facts and num_taken != self._info.num_rows[name]:
                raise _differs(f"'{name}' has {counted(num_taken, 'row')}, cached are {self._info.num_rows[name]}")

    def _decoded(self, record: bytes) -> np.ndarray:
        picture = np.empty(self._info.shape[1:], np.uint8)
        try:
            jpeg.decode_into(record, picture)
        except DamageError as error:
            raise _differs(str(error)) from None
        return picture

    def _compare_planes(self, number: int, again: np.ndarray, cached: np.ndarray) -> None:
        """Compare planes, see ``_BLOCK``. The one that differs most counts."""
        pairs = zip(_plane_means(cached), _plane_means(again), strict=True)
        least = MIN_SOURCE_PSNR_DB - max(0, self._info.params.get("crf", 0) - _BEST_CRF)
        self._require(number, min(_psnr_db(*pair) for pair in pairs) if again.shape == cached.shape else 0.0, least)

    def _require(self, number: int, psnr: float, least: float = MIN_SOURCE_PSNR_DB) -> None:
        if psnr < least:
            raise _differs(f"frame {number} is shown with a PSNR of {psnr:.1f} dB to the cached one")

    def _compare(self, name: str, number: int, again: np.ndarray, cached: np.ndarray) -> None:
        alike = _share_alike(again, cached) if again.shape == cached.shape else 0.0
        if alike < MIN_ALIKE:
            raise _differs(f"row {number} of '{name}' agrees with the cached one in {alike:.0%} of its values")


def _differs(what: str) -> MediaError:
    return MediaError("decode", "changed", what)


def _share_alike(a: np.ndarray, b: np.ndarray) -> float:
    """Return the share of values that agree."""
    if a.dtype.kind in "SUb":
        return float(np.mean(a == b)) if a.size else 1.0
    x, y = a.astype(np.float64), b.astype(np.float64)
    close = np.isclose(x, y, rtol=_TOLERANCE, atol=1 if a.dtype.kind in "iu" else _TOLERANCE, equal_nan=True)
    return float(np.mean(close)) if a.size else 1.0


def _plane_means(planes: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the means of squares of each plane of ``joined`` planes. Squares that are not whole are left out."""
    for plane in split(planes):
        height, width = plane.shape
        rows, columns = (min(_BLOCK, side) for side in plane.shape)
        whole = plane[: height // rows * rows, : width // columns * columns]
        yield whole.reshape(height // rows, rows, width // columns, columns).mean((1, 3))


def _psnr_db(a: np.ndarray, b: np.ndarray) -> float:
    error = np.mean(np.square(a.astype(np.float32) - b))
    return float("inf") if error == 0 else float(10 * np.log10(255**2 / error))
