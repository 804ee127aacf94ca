"""The feature "frames": the pictures that are kept, the record made of each, and its way into a sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from chordcache.config.picture import PictureConfig
from chordcache.errors import UsageError
from chordcache.features import packet_frames
from chordcache.features.base import NO_ROWS, Extractor, Rows
from chordcache.features.packet_frames import PACKET_CODECS
from chordcache.features.read_side import Arrays, Clip, EncodedFrames, ReadSide
from chordcache.media import jpeg
from chordcache.media.cropping import CropBox, Rectangle, blacken_padding, cut, resize_pictures
from chordcache.media.frame import Frame
from chordcache.media.planes import joined, split, to_rgb
from chordcache.storage.artefacts.artefact import Artefact
from chordcache.storage.feature_info import FeatureInfo

if TYPE_CHECKING:
    from chordcache.media.packet_codec import PacketEncoder

_BLOCK_BYTES = 1 << 20
"""Size of a block of frames that are decoded, then scaled. It fits into the cache of a core."""

_LEAST_PX_FOR_PARTS = 20_000
"""Number of pixels from which a part of a JPEG takes less time than the whole. To begin a part takes 20 us."""


class FramesExtractor(Extractor):
    """Kept frames: JPEG, planes, raw pixels, or short chains of packets of a video codec.

    The parameters are the codec of ``FramesConfig`` and its settings. "yuv420" has the planes that JPEGs and packets
    are made of, see ``media.planes.joined``, "raw" has RGB24 [shape=(H, W, 3), dtype=uint8].
    """

    version = 2
    is_local = True

    def __init__(self, name: str, *, codec: str, **settings: int) -> None:
        super().__init__(name)
        self._codec = codec
        self._settings = settings
        self._encoder: PacketEncoder | None = None

    @classmethod
    def arguments(cls, section: Any, picture: PictureConfig) -> dict[str, Any]:
        """Return the codec, and its settings."""
        return {"codec": section.codec, **section.codec_settings}

    @classmethod
    def missing_requirement(cls, arguments: Mapping[str, Any]) -> str | None:
        """Return what to do if OpenCV is not installed, or FFmpeg was built without the encoder."""
        if arguments["codec"] == "raw" and find_spec("cv2") is None:  # its pixels are RGB
            return "codec raw needs OpenCV; run: pip install 'chordcache[build]'"
        if arguments["codec"] not in PACKET_CODECS:
            return None
        from chordcache.media.packet_codec import missing_encoder

        return missing_encoder(arguments["codec"])

    def add_frame(self, frame: Frame) -> Rows:
        """Return one record, or one row of pixels. Packets may come later."""
        if self._codec == "raw":
            return {self.name: frame.rgb()[None]}
        if self._codec == "yuv420":
            return {self.name: joined(frame.planes())[None]}
        if self._codec in PACKET_CODECS:
            if self._encoder is None:
                from chordcache.media.packet_codec import PacketEncoder

                self._encoder = PacketEncoder(self._codec, **self._settings)
            return {self.name: self._encoder.add(*frame.planes())}
        file = frame.jpeg()
        if file is not None and jpeg.is_baseline(file):
            return {self.name: [file]}
        return {self.name: [jpeg.encode_planes(*frame.planes(), quality=self._settings["quality"])]}

    def finish(self) -> Rows:
        """Return the packets that did not come yet."""
        return {self.name: self._encoder.finish()} if self._encoder else NO_ROWS


class FpsFilter:
    """Filter that keeps the first frame at or after each tick of a clock that starts with the first frame.

    All frames of a slower source are kept, and no frame is repeated. A timestamp may be 0.5 ms early, due to rounding.
    An ``fps`` of None keeps every frame.
    """

    def __init__(self, fps: float | None) -> None:
        self._fps = fps
        self._next_tick = self._last = float("-inf")
        self._start, self._num_ticks = 0.0, 0

    def keeps(self, pts_seconds: float) -> bool:
        """Take the time of the next frame in presentation order. Return whether the frame is kept."""
        if self._fps is None:
            return True
        if pts_seconds < self._last or self._last == float("-inf"):  # the first, or a stream whose clock was set back
            self._start, self._num_ticks, self._next_tick = pts_seconds, 0, pts_seconds
        self._last = pts_seconds
        if pts_seconds < self._next_tick - 0.0005:
            return False
        self._num_ticks = max(self._num_ticks, int((pts_seconds - self._start + 0.0005) * self._fps)) + 1
        self._next_tick = self._start + self._num_ticks / self._fps
        return True


class FramesReadSide(ReadSide):
    """The read side of frames: decoded, cropped and scaled, with channels first."""

    padding: ClassVar[Mapping[str, float]] = {"frames": 0}

    def rows(
        self, artefact: Artefact, info: FeatureInfo, array: str, numbers: Sequence[int], out: np.ndarray | None
    ) -> np.ndarray:
        """Decode frames [shape=(T, H, W, 3), dtype=uint8, 0 to 255, RGB]. See ``ReadSide``."""
        out = artefact.memory_for(array, (len(numbers), *info.shape[1:]), np.dtype(np.uint8), out)
        if info.params["codec"] == "raw":
            return artefact.rows(array, numbers, out)
        if info.params["codec"] in PACKET_CODECS:
            packet_frames.read_rgb(artefact, info, numbers, out)
            return out
        if info.params["codec"] == "yuv420":
            done = 0
            for pictures in _iter_planes(artefact, info, numbers):
                to_rgb(split(pictures), 0, 0, out[done : done + len(pictures)])
                done += len(pictures)
            return out
        _decode_each(artefact.records(array, numbers), numbers, out, jpeg.decode_into)
        return out

    def iter_rows(
        self, artefact: Artefact, info: FeatureInfo, numbers: Sequence[int], part: Rectangle | None = None
    ) -> Iterator[np.ndarray]:
        """Yield frames a few at a time [shape=(t, H, W, 3), dtype=uint8, RGB], each time in the same memory.

        With ``part``, yield only those pixels.
        """
        picture = info.shape[1], info.shape[2]
        if info.params["codec"] in PACKET_CODECS:  # one at a time: the decode of a chain is not interrupted
            for frame in packet_frames.iter_rgb(artefact, info, numbers, part or Rectangle(0, 0, *picture)):
                yield frame[None]
            return
        if info.params["codec"] == "yuv420":
            part = part or Rectangle(0, 0, *picture)
            block: np.ndarray | None = None
            for pictures in _iter_planes(artefact, info, numbers):
                if block is None:  # the last pictures may be fewer
                    block = _scratch((len(pictures), part.height, part.width, 3))
                frames = block[: len(pictures)]
                to_rgb(split(pictures), part.top, part.left, frames)
                yield frames
            return
        is_large = info.params["codec"] == "jpeg" and math.prod(picture) >= _LEAST_PX_FOR_PARTS
        region = jpeg.region_around(part, picture) if part and is_large else None
        shape = (*(region[2:] if region else picture), *info.shape[3:])
        num_frames = max(1, _BLOCK_BYTES // max(1, math.prod(shape)))
        block = _scratch((min(num_frames, len(numbers)), *shape))
        for start in range(0, len(numbers), num_frames):
            few = numbers[start : start + num_frames]
            frames = block[: len(few)]
            if region and part:
                decode = partial(jpeg.decode_region_into, region=region, picture=picture)
                _decode_each(artefact.records(self.name, few), few, frames, decode)
                yield part.within(region).of(frames)
            else:
                frames = self.rows(artefact, info, self.name, few, frames)
                yield part.of(frames) if part else frames

    def read_clip(self, clip: Clip) -> Arrays:
        """Return ``frames`` [shape=(T, 3, h, w), dtype=uint8], or nothing if the clip has memory for them."""
        if isinstance(clip.frames_out, EncodedFrames):
            clip.frames_out.stored = clip.reader.read_encoded(clip.video, clip.numbers)
            clip.frames_out.picture, clip.frames_out.crop = clip.picture, clip.crop
            return {}
        if clip.crop is None or _is_whole(clip.crop, clip.picture):
            frames = clip.reader.rows(clip.video, self.name, clip.numbers, clip.frames_out)
        else:
            frames = _cut_in_blocks(clip, clip.crop, clip.frames_out)
        # Contiguous: stacking permuted views without a worker takes several times as long as this copy
        return {"frames": frames.transpose(0, 3, 1, 2).copy()} if clip.frames_out is None else {}


def record_decoder(info: FeatureInfo) -> Callable[[int, Any], None]:
    """Return a function that decodes the records of an artefact, which it takes in order, each with its number.

    It raises ``DamageError`` for a record that does not give its frame. Rows of pixels need no decoder.
    """
    codec = info.params["codec"]
    if codec in PACKET_CODECS:
        return packet_frames.packet_check(info)
    out = np.empty(info.shape[1:], np.uint8)
    return lambda _number, record: jpeg.decode_into(record, out) if codec == "jpeg" else None


def _iter_planes(artefact: Artefact, info: FeatureInfo, numbers: Sequence[int]) -> Iterator[np.ndarray]:
    """Yield the planes of frames, a few at a time [shape=(t, H * 3 / 2, W), dtype=uint8], in the same memory."""
    shape = info.shape[1] * 3 // 2, info.shape[2]
    num_frames = max(1, _BLOCK_BYTES // math.prod(shape))
    block = _scratch((min(num_frames, len(numbers)), *shape))
    for start in range(0, len(numbers), num_frames):
        few = numbers[start : start + num_frames]
        yield artefact.rows("frames", few, block[: len(few)])


def _decode_each(
    records: Iterable[Any], numbers: Sequence[int], out: np.ndarray, decode_into: Callable[..., None]
) -> None:
    """Decode the records of some frames into ``out`` [shape=(T, ...)]."""
    for i, record in enumerate(records):
        if i and numbers[i] == numbers[i - 1]:  # the repeated last frame of a short video
            out[i] = out[i - 1]
        else:
            decode_into(record, out=out[i])


def _scratch(shape: tuple[int, ...]) -> np.ndarray:
    """Return memory for pictures that are read at once, at an odd address.

    libjpeg-turbo writes rows that are aligned to 32 bytes past the processor's cache. Samples take 1 to 3 % less
    time, with parts of JPEGs 4 to 9 %.
    """
    return np.empty(math.prod(shape) + 1, np.uint8)[1:].reshape(shape)


def _is_whole(crop: CropBox, picture: tuple[int, int]) -> bool:
    """Return whether a crop shows the picture [(height, width)] as it is."""
    return crop == CropBox(0, 0, *picture, picture)


def _cut_in_blocks(clip: Clip, crop: CropBox, out: np.ndarray | None) -> np.ndarray:
    """Decode and crop the frames of a clip, a few at a time, while their pixels are still in the CPU's cache."""
    part = crop.visible(clip.picture) if math.prod(clip.picture) >= _LEAST_PX_FOR_PARTS else None
    crop = crop.within(part) if part else crop
    out = np.empty((len(clip.numbers), *crop.size, 3), np.uint8) if out is None else out
    done = 0
    for frames in clip.reader.iter_frames(clip.video, clip.numbers, part=part):
        cut_frames(frames, crop, out=out[done : done + len(frames)], one_thread=clip.one_thread)
        done += len(frames)
    return out


def cut_frames(
    frames: np.ndarray, crop: CropBox, *, out: np.ndarray | None = None, one_thread: bool = False
) -> np.ndarray:
    """Cut a crop out of frames [shape=(T, H, W, 3), dtype=uint8, any channel order], scale it, and mirror it.

    The cut comes first, so that only the remaining pixels are scaled. The filter is linear, and antialiased when the
    crop shrinks: see ``media.cropping.resize_pictures``. The result [shape=(T, h, w, 3)] is black where the crop lies
    outside of the frames. It is in ``out``, if that is given, which must be C-contiguous. Otherwise it is C-contiguous,
    unless mirrored, and may share the memory of ``frames`` if they already have this size. ``one_thread`` switches
    OpenCV's own threads off, for the whole process and from now on, if anything has to be scaled.

    Raises
    ------
    UsageError
        If ``frames`` has another shape or dtype, or has no pixels.

    Examples
    --------
    >>> cut_frames(np.zeros((16, 256, 456, 3), np.uint8), CropBox(0, 100, 256, 256, size=(224, 224))).shape
    (16, 224, 224, 3)
    """
    if frames.ndim != 4 or frames.shape[3] != 3 or not all(frames.shape[1:3]) or frames.dtype != np.uint8:
        raise UsageError(f"frames: got {frames.dtype} of shape {frames.shape}, expected uint8 of shape (T, H, W, 3)")
    part = cut(frames, crop)
    if part.shape[1:3] != crop.size:
        scaled = np.empty((len(frames), *crop.size, 3), np.uint8) if out is None else out
        resize_pictures(part, scaled, one_thread)
        if part.base is None:  # not a view: the crop reaches beyond the picture
            blacken_padding(scaled, crop, frames.shape[1:3])
        part = scaled
    if crop.flip:
        part = part[:, :, ::-1]
    if out is None:
        return part if crop.flip else np.ascontiguousarray(part)
    if part is not out:
        out[...] = part
    return out
