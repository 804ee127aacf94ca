"""Videos of two splits that show the same seconds, though one may be compressed, scaled, trimmed or mirrored.

Hashes of their seconds find pairs that may be alike, see ``media.picture_facts.SecondHashes``. They show the room and
the people, so clips of one person in one room have alike hashes too. So the cached frames of such pairs are compared:
how the picture changes within 3 seconds is alike in copies alone. bench/leaks.py measures both.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from chordcache.arguments import check_at_least, names_arguments
from chordcache.errors import AbsentFeatureError, UsageError
from chordcache.features.read_side import RowReader
from chordcache.media.opencv import cv2
from chordcache.media.picture_facts import mirrored
from chordcache.read.cache import Cache, open_cache
from chordcache.read.cached_videos import CachedVideos, VideoSet
from chordcache.read.video import Video
from chordcache.verifying.findings import Leak

_HASH_DIGITS = 16
"""Number of hex digits of the hash of a second"""

_WINDOW_SECONDS = 3
"""[seconds] Stretch whose hashes, and whose changes, are compared at once"""

_MAX_BITS = 14
"""Largest mean number of bits in which the hashes of a stretch differ. It is 32 for most pairs of videos. For 99 of 100
copies of 3 s it is at most 14, but also for 3 of 1,000 pairs of unrelated videos"""

_LENIENCE_BITS = 6
"""Number of bits by which a second may differ more than the mean of its stretch"""

_NUM_TABLES = 32
_MIN_KEY_BITS, _MAX_KEY_BITS = 8, 20
"""Hashes are compared if they have the same values in some bits of theirs, in one of several choices of bits"""

_MAX_PAIRS = 1 << 21
"""Number of pairs of hashes that are compared at once, which bounds the memory"""

_STILL_LEVELS = 0.1
"""[gray levels] Motion of each second below which a video is still"""

_RATE_HERTZ = 8
_SIDE = 10
"""Pictures per second that are compared, and their rows and columns"""

_ROUNDING_SECONDS = 0.001
"""[seconds] Precision of presentation times"""

_MIN_CHANGE_LEVELS = 0.5
"""[gray levels, root mean square] Change below which it is noise for the most part"""

_MIN_SIMILARITY = 0.6
"""Smallest correlation of the changes of two stretches that are alike"""

_STEP = _RATE_HERTZ // 2
"""Stretches of the second split begin each half second"""

_NUM_AT_ONCE = 2048
"""Number of stretches of the first split that are compared at once, which bounds the memory"""

_ONES = np.unpackbits(np.arange(1 << 16, dtype=np.uint16).view(np.uint8).reshape(-1, 2), axis=1).sum(1, dtype=np.uint8)
"""Number of bits that are 1 in each number of 16 bits"""

_KEPT_BYTES = 128 << 20
"""Size of the small pictures of a split that are kept [bytes]"""


class Split(Protocol):
    """A set of videos, as ``chordcache.videos.cached`` makes it."""

    @property
    def open(self) -> Callable[[tuple[str, ...]], VideoSet]:
        """Function of the features that will be read, which returns the videos."""
        ...


@names_arguments
def leaks(
    train: Split | Cache | str | Path, val: Split | Cache | str | Path | None = None, *, seconds: int = 3
) -> list[Leak]:
    """Find the pairs of videos, one of each split, that show the same seconds.

    Black and still stretches do not count. A video that is in both splits, and copies with the same ``content_id``, are
    pairs whatever their length.

    Parameters
    ----------
    train, val : set of videos, Cache, str or Path
        The splits, such as ``chordcache.videos.cached("cache", "train.txt")``, or caches. Without ``val``, pairs of
        ``train`` are found.
    seconds : int
        Least length of a stretch.

    Returns
    -------
    list of Leak
        One for each pair, in the order of the videos of ``train``.

    Raises
    ------
    UsageError
        If a video was built without the hashes of its seconds, or as the splits do when they are opened.
    DamageError
        If a frame that is compared is damaged.

    Notes
    -----
    The hashes of 90,000 and 10,000 videos of 10 s take 9 s of CPU time and 0.3 GB to compare. For a video with alike
    hashes, 8 frames per second are read, 40 ms for 10 s. Where one camera shows all videos, that is all of them.
    """
    check_at_least(1, seconds=seconds)
    one = _Split(_opened(train))
    other = one if val is None else _Split(_opened(val))
    return _search(one, other, seconds)


def _opened(split: Split | Cache | str | Path) -> VideoSet:
    if isinstance(split, (str, Path)):
        split = open_cache(split)
    return CachedVideos(split) if isinstance(split, Cache) else split.open(())


class _Split:
    """The videos of a split, and the hashes of all their seconds, one after the other."""

    def __init__(self, videos: VideoSet) -> None:
        self.videos = videos
        self.keys: list[str] = []
        self.paths: list[str] = []
        self.seconds: list[float] = []
        """Length of each video"""
        self.contents: dict[str, list[int]] = {}
        """Positions of the videos with a content, by its id. That of a still video also names the video"""
        hashes = [videos.read(position, self._add) for position in range(len(videos))]
        lengths = np.array([len(part) for part in hashes], np.int64)
        self.hashes = np.concatenate([*hashes, np.empty(0, np.uint64)])
        """Hash of each second [dtype=uint64], 0 if it does not count"""
        self.owners = np.repeat(np.arange(len(hashes)), lengths)
        """Position of the video of each second"""
        self.starts = np.cumsum(lengths) - lengths
        """Number of the first second of each video"""
        self._pictures: dict[int, np.ndarray | None] = {}

    def _add(self, _: RowReader, video: Video) -> np.ndarray:
        facts = video.content
        if facts is None or not facts.content_id:
            raise UsageError(
                f"'{video.path}': got a video without the hashes of its seconds, expected them. Build it again."
            )
        hashes = np.frombuffer(bytes.fromhex(facts.second_hashes), ">u8").astype(np.uint64)
        moves = max(facts.motion_per_second, default=0.0) >= _STILL_LEVELS and hashes.any()
        content = facts.content_id if moves else facts.content_id + video.key
        self.contents.setdefault(content, []).append(len(self.keys))
        self.keys.append(video.key)
        self.paths.append(video.path)
        self.seconds.append(video.duration_seconds)
        return hashes

    def pictures(self, position: int) -> np.ndarray | None:
        """Return small gray pictures at a fixed rate [shape=(n, 10, 10), dtype=float16], or None without frames."""
        if position not in self._pictures:
            if sum(0 if kept is None else kept.nbytes for kept in self._pictures.values()) > _KEPT_BYTES:
                self._pictures.clear()
            self._pictures[position] = self.videos.read(position, _small_pictures)
        return self._pictures[position]


def _small_pictures(reader: RowReader, video: Video) -> np.ndarray | None:
    try:
        seconds = np.maximum.accumulate(video.pts_seconds - video.pts_seconds[0])
        assert video.content is not None
        most_seconds = len(video.content.second_hashes) // _HASH_DIGITS + 1  # a header may state any duration
        ticks = np.arange(int(min(video.duration_seconds, most_seconds) * _RATE_HERTZ)) / _RATE_HERTZ
        numbers = np.minimum(np.searchsorted(seconds, ticks - _ROUNDING_SECONDS), video.num_frames - 1)
        numbers, places = np.unique(numbers, return_inverse=True)
        frames = (frame for frames in reader.iter_frames(video, numbers) for frame in frames)
        small = [cv2.resize(frame, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA).mean(2) for frame in frames]
    except AbsentFeatureError:
        return None
    return np.array(small, np.float16).reshape(-1, _SIDE, _SIDE)[places]


_Span: TypeAlias = "tuple[float, float]"
_Stretch: TypeAlias = "tuple[_Span, _Span, bool, float | None]"
"""Fields of ``Leak`` from ``train_seconds`` on"""


def _search(train: _Split, val: _Split, seconds: int) -> list[Leak]:
    """Return the pairs that are alike."""
    length = min(seconds, _WINDOW_SECONDS)
    alike: dict[tuple[int, int], _Stretch] = {}
    for one, other in _equal(train, val):
        alike[one, other] = (0.0, train.seconds[one]), (0.0, val.seconds[other]), False, 1.0
    for is_mirrored in (False, True):
        for one, other, *place in _candidates(train, val, length, is_mirrored):
            if (one, other) not in alike:
                pictures = train.pictures(one), val.pictures(other)
                if stretch := _compared(pictures, (place[0], place[1], is_mirrored), length, seconds):
                    alike[one, other] = stretch
    return [
        Leak(train.keys[one], val.keys[other], train.paths[one], val.paths[other], *stretch)
        for (one, other), stretch in sorted(alike.items())
    ]


def _equal(train: _Split, val: _Split) -> Iterator[tuple[int, int]]:
    """Yield the positions of videos with the same content."""
    for content, others in val.contents.items():
        for one, other in itertools.product(train.contents.get(content, ()), others):
            if train is not val or one < other:
                yield one, other


def _candidates(train: _Split, val: _Split, length: int, is_mirrored: bool) -> Iterator[tuple[int, int, int, int]]:
    """Yield pairs of videos with alike hashes in a stretch: two positions, and the first second of each stretch."""
    hashes = mirrored(val.hashes) if is_mirrored else val.hashes
    random = np.random.default_rng(0)
    num_bits = min(max(len(train.hashes).bit_length() + 1, _MIN_KEY_BITS), _MAX_KEY_BITS)
    known: dict[int, tuple[int, int]] = {}
    """First seconds of a stretch of each pair of videos, by a number for the pair"""
    for _ in range(_NUM_TABLES):
        mask = np.bitwise_or.reduce(np.uint64(1) << random.permutation(64)[:num_bits].astype(np.uint64))
        for first, second in _equal_keys(train.hashes, hashes, mask):
            is_near = _num_bits(train.hashes[first] ^ hashes[second]) <= _MAX_BITS + _LENIENCE_BITS
            if train is val:
                is_near &= train.owners[first] < train.owners[second]
            starts = _starts_of_stretches(train, val, hashes, first[is_near], second[is_near], length)
            codes = train.owners[starts[0]] * len(val.keys) + val.owners[starts[1]]
            codes, places = np.unique(codes, return_index=True)
            for code, start, other_start in zip(codes.tolist(), *starts[:, places].tolist(), strict=True):
                known.setdefault(code, (start, other_start))
    for code, (start, other_start) in sorted(known.items()):
        one, other = divmod(code, len(val.keys))
        yield one, other, start - int(train.starts[one]), other_start - int(val.starts[other])


def _equal_keys(one: np.ndarray, other: np.ndarray, mask: np.uint64) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield numbers of hashes of both that are equal in the bits of a mask, as many at a time as fit into memory."""
    order = np.argsort(one & mask)
    keys, wanted = (one & mask)[order], other & mask
    firsts = np.searchsorted(keys, wanted)
    counts = np.where(other == 0, 0, np.searchsorted(keys, wanted, side="right") - firsts)
    ends = np.cumsum(counts)
    start = 0
    while start < len(other):
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _MAX_PAIRS, side="right")))
        second = np.repeat(np.arange(start, stop), counts[start:stop])
        within = np.arange(len(second)) - np.repeat(ends[start:stop] - counts[start:stop] - before, counts[start:stop])
        yield order[firsts[second] + within], second
        start = stop


def _num_bits(hashes: np.ndarray) -> np.ndarray:
    """Return the number of bits that are 1 in each number [dtype=uint8]. NumPy 1 has no function for it."""
    words = hashes.view(np.uint16).reshape(-1, 4)
    return sum((_ONES[words[:, place]] for place in range(4)), np.zeros(len(words), np.uint8))


def _starts_of_stretches(
    train: _Split, val: _Split, hashes: np.ndarray, first: np.ndarray, second: np.ndarray, length: int
) -> np.ndarray:
    """Return the first seconds of alike stretches around pairs of seconds [shape=(2, n), dtype=int64]."""
    steps = np.arange(1 - length, length)[:, None]
    one, other = first + steps, second + steps
    is_inside = (one >= 0) & (one < len(train.hashes)) & (other >= 0) & (other < len(hashes))
    one, other = np.where(is_inside, one, first), np.where(is_inside, other, second)
    is_inside &= (train.owners[one] == train.owners[first]) & (val.owners[other] == val.owners[second])
    is_inside &= (train.hashes[one] != 0) & (hashes[other] != 0)
    bits = _num_bits((train.hashes[one] ^ hashes[other]).ravel()).reshape(one.shape)
    distances = np.where(is_inside, bits, 64 * length).astype(np.int64)
    sums = sliding_window_view(distances, length, axis=0).sum(2)
    place, best = sums.argmin(0), sums.min(0) if len(first) else np.empty(0)
    is_alike = best <= _MAX_BITS * length
    return np.stack([(start + place - length + 1)[is_alike] for start in (first, second)])


def _compared(
    pictures: tuple[np.ndarray | None, np.ndarray | None], place: tuple[int, int, bool], length: int, seconds: int
) -> _Stretch | None:
    """Return the longest stretch in which the pictures of two videos change alike, or None.

    ``place`` is where their hashes are alike, which is returned if a video has no pictures.
    """
    (one, other), (start, other_start, is_mirrored) = pictures, place
    if one is None or other is None:
        return (start, start + length), (other_start, other_start + length), is_mirrored, None
    others = _changes(other[:, :, ::-1] if is_mirrored else other, length, _STEP)
    best, places = np.full(len(others), -1.0), np.zeros(len(others), np.int64)
    for begin in range(0, len(one), _NUM_AT_ONCE):
        windows = _changes(one[begin : begin + _NUM_AT_ONCE + length * _RATE_HERTZ - 1], length)
        if len(windows) and len(others):
            similarities = windows @ others.T
            is_better = similarities.max(0) > best
            places[is_better] = begin + similarities.argmax(0)[is_better]
            best = np.maximum(best, similarities.max(0))
    first, last = _longest_run(best >= _MIN_SIMILARITY, places)
    if last < first or (last - first) * _STEP / _RATE_HERTZ + length < seconds:
        return None
    begins_and_ends = (places[first], places[last]), (first * _STEP, last * _STEP)
    one_span, other_span = ((float(a / _RATE_HERTZ), float(b / _RATE_HERTZ + length)) for a, b in begins_and_ends)
    return one_span, other_span, is_mirrored, round(float(best[first : last + 1].max()), 3)


def _changes(pictures: np.ndarray, length: int, step: int = 1) -> np.ndarray:
    """Return the changes within stretches of ``length`` seconds [shape=(n, size), dtype=float32, of length 1].

    Changes of the brightness of the whole picture are left out, because fades are all alike. Small changes, which are
    noise for the most part, are shorter than 1.
    """
    num_pictures = length * _RATE_HERTZ
    if len(pictures) == num_pictures - 1:  # the last frame of a clip of whole seconds
        pictures = np.concatenate([pictures, pictures[-1:]])
    if len(pictures) < num_pictures:
        return np.empty((0, 0), np.float32)
    flat = pictures.reshape(len(pictures), -1).astype(np.float32)
    windows = sliding_window_view(flat - flat.mean(1, keepdims=True), num_pictures, axis=0)[::step]
    changes = (windows - windows.mean(2, keepdims=True)).reshape(len(windows), -1)
    lengths = np.sqrt(np.square(changes).mean(1, keepdims=True))
    result: np.ndarray = changes / (np.maximum(lengths, _MIN_CHANGE_LEVELS) * math.sqrt(changes.shape[1]))
    return result


def _longest_run(is_alike: np.ndarray, places: np.ndarray) -> tuple[int, int]:
    """Return the first and the last number of the longest run whose places go on with it. (0, -1) if there is none."""
    longest, begin = (0, -1), 0
    for number in range(len(is_alike)):
        if not is_alike[number] or number == 0 or abs(places[number] - places[number - 1] - _STEP) > _STEP // 2:
            begin = number
        if is_alike[number] and number - begin > longest[1] - longest[0]:
            longest = begin, number
    return longest
