"""One video as a picture for people: frames, flow, motion and sound on one axis in seconds."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from chordcache.amounts import counted, shortened
from chordcache.arguments import names_arguments
from chordcache.errors import AbsentFeatureError, DamageError, UsageError, printable
from chordcache.look import pictures
from chordcache.look.pictures import ALARM, FAINT, MARK, NORMAL, SMALL, TimeAxis, put_text
from chordcache.media.frame_numbers import evenly_spread
from chordcache.read.cache import Cache
from chordcache.read.video import Video
from chordcache.storage.atomic import new_file

MAX_FRAMES = 48
"""Largest number of frames in a sheet"""

_MIN_WIDTH = 1600
"""[pixels] Width of a sheet, unless it has many frames"""
_MIN_SLOT = 90
"""[pixels] Least width for each frame"""
_LEFT, _RIGHT = 118, 24
"""[pixels] Columns for the names of rows, and the margin"""
_GAP = 8
"""[pixels] between two rows"""
_MIN_THUMB_HEIGHT, _MAX_THUMB_HEIGHT = 44, 220
"""[pixels] Least height of a row of pictures, for its name, and largest height of the pictures"""
_KEYFRAMES_HEIGHT = 16
_MOTION_HEIGHT = 96
_MEL_HEIGHT = 128
_MAX_POINTS = 1000
"""Largest number of frames whose motion is read"""

_BODY = (
    (11, 12), (11, 23), (12, 24), (23, 24), (11, 13), (13, 15), (12, 14), (14, 16), (23, 25), (25, 27), (27, 31),
    (24, 26), (26, 28), (28, 32), (0, 11), (0, 12),
)  # fmt: skip
"""Pairs of landmarks that a line connects: shoulders, hips, arms, legs, and the nose with the shoulders"""


@dataclass(frozen=True)
class FramePlace:
    """A rectangle of a sheet that shows a frame, [pixels]."""

    number: int
    """Number of the frame in the cache"""
    seconds: float
    """Presentation time of the frame"""
    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True)
class Sheet:
    """A picture of a video with one axis in seconds. A notebook displays it."""

    picture: np.ndarray
    """[shape=(H, W, 3), dtype=uint8, RGB]"""
    key: str
    axis: TimeAxis
    """Columns of times, on the clock of ``Video.pts_seconds``"""
    rows: dict[str, tuple[int, int]]
    """First row of pixels and height of "frames", "keyframes", "flow", "motion" and "mel", as far as they are drawn"""
    frames: tuple[FramePlace, ...]
    """The frames that are drawn, each in the middle of its part of the axis"""
    absent: dict[str, str]
    """Feature that a build was asked for and that the video does not have, to the reason"""
    damage: dict[str, str]
    """Feature that is damaged, to the message"""

    def __repr__(self) -> str:
        height, width = self.picture.shape[:2]
        return f"<Sheet of video {self.key}: {width}x{height}, {', '.join(self.rows)}>"

    def png(self) -> bytes:
        """Return the picture as a PNG file."""
        return pictures.png(self.picture)

    def _repr_png_(self) -> bytes:
        return self.png()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the picture as PNG. The file appears complete or not at all.

        Raises ``UsageError`` if the file is not a .png, not a regular one or cannot be written, and ``StorageError``.
        """
        target = Path(path)
        if target.suffix.lower() not in (".png", ""):
            raise UsageError(f"output: got '{printable(target)}', expected a .png file. Name another file.")
        with new_file(target, "cannot write the picture") as file:
            file.write(self.png())
        return target


@names_arguments
def show(video: Video, *, num_frames: int = 12, seconds: tuple[float | None, float | None] = (None, None)) -> Sheet:
    """Draw a video: frames, flow, motion and sound on one axis in seconds. A notebook displays the result.

    Parameters
    ----------
    video : Video
        A video of a cache.
    num_frames : int
        Number of frames to draw, 1 to 48.
    seconds : (float or None, float or None)
        Start and stop of the part to draw [seconds], on the clock of ``Video.pts_seconds``, half open. None is an end
        of the video.

    Returns
    -------
    Sheet
        ``save(path)`` writes it as PNG.

    Raises
    ------
    UsageError
        If ``video`` is not one, the times hold no frame, or ``num_frames`` is out of range.
    ImportError
        If OpenCV is not installed.
    """
    if not isinstance(video, Video):
        raise UsageError(f"video: got {video!r}, expected a video of a cache, such as cache[0]")
    if isinstance(num_frames, bool) or not 1 <= num_frames <= MAX_FRAMES:
        raise UsageError(f"num_frames: got {num_frames}, expected a number from 1 to {MAX_FRAMES}")
    width = max(_MIN_WIDTH - _LEFT - _RIGHT, min(num_frames, video.num_frames) * _MIN_SLOT)
    axis = _axis_of(video, seconds, width)
    with Cache(video.cache_path) as cache:
        drawn = _Drawing(cache, video, num_frames, axis)
        drawn.add_title()
        for name in ("frames", "flow", "motion", "mel"):
            with drawn.noting(name):
                getattr(drawn, f"add_{name}")()
        return drawn.finished()


def _times(video: Video) -> np.ndarray:
    """Return the times of the frames [shape=(num_frames,), dtype=float64, seconds], ascending.

    They are evenly spread if no file has them, or the file is damaged.
    """
    try:
        return np.maximum.accumulate(video.pts_seconds)
    except (AbsentFeatureError, DamageError):
        end = video.start_seconds + video.duration_seconds
        return np.linspace(video.start_seconds, end, video.num_frames, endpoint=False)


def _axis_of(video: Video, seconds: tuple[float | None, float | None], width: int) -> TimeAxis:
    first = video.start_seconds
    last = first + max(video.duration_seconds, 1e-3)
    start = first if seconds[0] is None else seconds[0]
    stop = last if seconds[1] is None else seconds[1]
    if not (np.isfinite([start, stop]).all() and start < stop and start < last and stop > first):
        raise UsageError(
            f"seconds: got {start:g} to {stop:g}, expected a part of [{first:g}, {last:g}) s of video '{video.key}'"
        )
    return TimeAxis(float(max(start, first)), float(min(stop, last)), _LEFT, width)


@dataclass
class _Drawing:
    """A sheet in progress. Each row is added below the others."""

    cache: Cache
    video: Video
    num_frames: int
    axis: TimeAxis
    parts: list[np.ndarray] = field(default_factory=list)
    height: int = 0
    rows: dict[str, tuple[int, int]] = field(default_factory=dict)
    frames: list[FramePlace] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    damage: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.times = _times(self.video)
        self.first = max(0, int(np.searchsorted(self.times, self.axis.start_seconds, side="right")) - 1)
        """Frame that is on the screen at the start of the axis"""
        self.stop = max(self.first + 1, int(np.searchsorted(self.times, self.axis.stop_seconds)))
        self.stop = min(self.stop, self.video.num_frames)
        count = max(1, min(self.num_frames, self.stop - self.first))
        self.slot = self.axis.width / count
        """[pixels] Width of the part of the axis that belongs to each drawn frame"""
        step = (self.axis.stop_seconds - self.axis.start_seconds) / count
        middles = self.axis.start_seconds + (np.arange(count) + 0.5) * step
        on_screen = np.searchsorted(self.times, middles + 1e-6, side="right") - 1
        self.numbers: list[int] = np.clip(on_screen, self.first, max(self.first, self.stop - 1)).tolist()

    @contextlib.contextmanager
    def noting(self, name: str) -> Iterator[None]:
        """Remember why a row cannot be drawn."""
        try:
            yield
        except AbsentFeatureError as error:
            info = self.video.sidecar.feature(name)
            if info is not None:  # otherwise no build was asked for it
                self.absent[name] = info.absent or str(error)
        except (DamageError, OSError) as error:
            if not any(str(error).startswith(known) for known in self.damage.values()):  # of the same file
                self.damage[name] = str(error)

    def add(self, height: int, name: str = "") -> np.ndarray:
        """Add a white row and return it [shape=(height, W, 3), dtype=uint8]."""
        part = np.full((height + _GAP, _LEFT + self.axis.width + _RIGHT, 3), 255, np.uint8)
        self.parts.append(part)
        if name:
            self.rows[name] = (self.height, height)
            put_text(part, name, 10, 14)
        self.height += len(part)
        return part

    def add_title(self) -> None:
        """Add the key, the path and the facts."""
        video = self.video
        part = self.add(52)
        put_text(part, video.key, 10, 24, scale=pictures.LARGE)
        facts = [
            shortened(video.path, 90),
            counted(video.num_frames, "frame"),
            f"{video.width} x {video.height}",
            f"{video.duration_seconds:.2f} s",
            *([f"label {shortened(video.label, 40)}"] if video.label else []),
            *([f"segment {video.segment} of the file"] if video.segment else []),
        ]
        put_text(part, "  |  ".join(facts), 10, 46, color=FAINT)

    def _add_pictures(
        self,
        name: str,
        shape: tuple[int, int],
        rows: Iterable[np.ndarray | None],
        drawn: Callable[[np.ndarray, FramePlace], np.ndarray],
    ) -> tuple[np.ndarray, list[FramePlace]]:
        """Add a row of small pictures of a shape (height, width), of which None is damaged. Return it, and its places.

        ``drawn`` returns what is drawn in a place, of any size.
        """
        height, width = shape
        wide = max(4, int(self.slot) - 4)
        high = max(4, round(wide * height / width))
        if high > _MAX_THUMB_HEIGHT:
            wide, high = max(4, round(wide * _MAX_THUMB_HEIGHT / high)), _MAX_THUMB_HEIGHT
        top, part = self.height, self.add(max(high, _MIN_THUMB_HEIGHT), name)
        lefts = self.axis.left + (np.arange(len(self.numbers)) + 0.5) * self.slot - wide / 2
        places = []
        for number, left, row in zip(self.numbers, map(round, lefts.tolist()), rows, strict=True):
            place = FramePlace(number, float(self.times[number]), left, top, wide, high)
            places.append(place)
            if row is None:
                part[:high, left : left + wide] = 236
                put_text(part, "damaged", left + wide // 2, high // 2 + 5, color=ALARM, align="center")
            else:
                part[:high, left : left + wide] = pictures.resized_to(drawn(row, place), wide, high)
        return part, places

    def add_frames(self) -> None:
        """Add the frames with their times, and the row of keyframes."""
        video = self.video
        if not video.num_frames:
            raise AbsentFeatureError("no frames")
        video.feature("frames")
        poses = self._poses()

        def drawn(frame: np.ndarray, place: FramePlace) -> np.ndarray:
            picture = pictures.resized_to(frame, place.width, place.height)
            if (pose := poses.get(place.number)) is not None:
                shares = pictures.visible_landmarks(pose, video.width, video.height)
                pictures.draw_lines(picture, shares * (place.width, place.height), _BODY, (0, 230, 118))
            return picture

        frames = self._one_by_one("frames", self.numbers)
        _, self.frames = self._add_pictures("frames", (video.height, video.width), frames, drawn)
        self._add_frame_times(self.frames)
        self._add_keyframes()

    def _poses(self) -> dict[int, np.ndarray]:
        """Return the landmarks of the drawn frames by frame, if the video has them."""
        if self.video.sidecar.feature("pose") is None:
            return {}
        poses: dict[int, np.ndarray] = {}
        with self.noting("pose"):
            poses.update(zip(self.numbers, self.cache.read(self.video, "pose", indices=self.numbers), strict=True))
        return poses

    def _add_frame_times(self, places: list[FramePlace]) -> None:
        part = self.add(20)
        for place in places:
            part[:4, self.axis.x_of(place.seconds)] = FAINT
            if place.width >= 60:
                text = f"{place.seconds:.2f} s" if place.width < 110 else f"#{place.number}  {place.seconds:.2f} s"
                center = place.x + place.width // 2
                put_text(part, text, center, 17, scale=SMALL, color=FAINT, align="center")

    def _add_keyframes(self) -> None:
        with self.noting("keyframes"):
            times = self.times[self.video.keyframes].tolist()
            part = self.add(_KEYFRAMES_HEIGHT, "keyframes")
            pictures.draw_grid(part, self.axis, _KEYFRAMES_HEIGHT)
            for seconds in times:
                if self.axis.start_seconds <= seconds < self.axis.stop_seconds:
                    part[:_KEYFRAMES_HEIGHT, self.axis.x_of(seconds)] = MARK

    def _one_by_one(self, feature: str, numbers: list[int]) -> Iterator[np.ndarray | None]:
        """Read rows of a feature. If one is damaged, the others are read all the same."""
        for number in numbers:
            try:
                yield self.cache.read(self.video, feature, indices=[number])[0]
            except DamageError as error:
                self.damage.setdefault(feature, str(error))
                yield None

    def add_flow(self) -> None:
        """Add the flow at each frame, with the wheel of colors and the length of the full color."""
        num_rows = self.video.num_rows(self.video.feature("flow"), "flow")
        if not num_rows:
            raise AbsentFeatureError("no rows")
        numbers = [min(number, num_rows - 1) for number in self.numbers]
        rows = [row if row is None else pictures.thinned(row) for row in self._one_by_one("flow", numbers)]
        known = [row for row in rows if row is not None]
        scale = pictures.flow_scale(np.stack(known)) if known else 1.0
        shape = known[0].shape[:2] if known else (self.video.height, self.video.width)
        part, _ = self._add_pictures("flow", shape, rows, lambda row, _: pictures.flow_colors(row, scale))
        size = min(56, len(part) - _GAP - 22)
        if size >= 16:
            part[22 : 22 + size, 10 : 10 + size] = pictures.color_wheel(size)
            middle = 22 + size // 2
            for text, baseline in (("rim is", middle - 3), (f"{scale:.3g} px", middle + 13)):
                put_text(part, text, 16 + size, baseline, scale=SMALL, color=FAINT)

    def add_motion(self) -> None:
        """Add the mean length of the codec's vectors as a curve."""
        self.video.feature("motion")
        numbers = self.first + evenly_spread(self.stop - self.first, _MAX_POINTS)
        means = pictures.motion_lengths(self.cache, self.video, numbers)
        full = float(np.nanmax(means)) if np.isfinite(means).any() else 0.0
        part = self.add(_MOTION_HEIGHT, "motion")
        pictures.draw_grid(part, self.axis, _MOTION_HEIGHT)
        seconds = np.clip(self.times[numbers], self.axis.start_seconds, self.axis.stop_seconds)
        xs = np.array([self.axis.x_of(value) for value in seconds.tolist()], float)
        pictures.draw_curve(part, xs, means, _MOTION_HEIGHT, full or 1.0)
        self._scale_of(part, _MOTION_HEIGHT, f"{full:.3g} px", "0 px")

    def add_mel(self) -> None:
        """Add the spectrogram, the lowest band at the bottom."""
        info = self.video.feature("mel")
        rows = pictures.mel_rows(self.cache, self.video, self.first, self.stop, 2 * self.axis.width)
        if not len(rows):
            raise AbsentFeatureError("no rows")
        start, stop = self.video.seconds_of(self.first, self.stop)
        step = (stop - start) / len(rows)  # cut to the axis, in rows
        skipped = round(max(0.0, self.axis.start_seconds - start) / step)
        kept = rows[skipped : max(skipped + 1, round((self.axis.stop_seconds - start) / step))]
        left = self.axis.x_of(start + skipped * step)
        right = min(self.axis.x_of(start + (skipped + len(kept)) * step), self.axis.left + self.axis.width)
        part = self.add(_MEL_HEIGHT, "mel")
        width = max(1, right - left)
        part[:_MEL_HEIGHT, left : left + width] = pictures.mel_colors(kept, width, _MEL_HEIGHT)
        params: dict[str, Any] = dict(info.params)
        top = params.get("fmax") or params.get("sample_rate", 0) / 2
        self._scale_of(part, _MEL_HEIGHT, f"{top / 1000:.3g} kHz", f"{params.get('fmin', 0) / 1000:.3g} kHz")

    def _scale_of(self, part: np.ndarray, height: int, top: str, bottom: str) -> None:
        put_text(part, top, _LEFT - 8, 12, scale=SMALL, color=FAINT, align="right")
        put_text(part, bottom, _LEFT - 8, height - 2, scale=SMALL, color=FAINT, align="right")

    def finished(self) -> Sheet:
        """Add the axis and the reasons, and return the sheet."""
        pictures.draw_axis(self.add(28), self.axis)
        notes: list[tuple[str, pictures.Color]] = [
            *((f"{name}: absent, {shortened(text, 300)}", FAINT) for name, text in self.absent.items()),
            *((f"{name}: damaged, {shortened(text, 600)}", ALARM) for name, text in self.damage.items()),
        ]
        for text, color in notes:
            for line in pictures.wrapped(text, self.axis.width):
                put_text(self.add(14), line, _LEFT, 12, scale=NORMAL, color=color)
        picture = np.vstack(self.parts)
        return Sheet(
            picture, self.video.key, self.axis, self.rows, tuple(self.frames), dict(self.absent), dict(self.damage)
        )
