"""Pictures as packets of a video codec, one packet for each picture, in short closed chains: encoder and decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, TypeAlias

import av
import numpy as np

from chordcache.errors import DamageError, MediaError
from chordcache.media.ffmpeg_log import reason_of
from chordcache.media.picture_data import plane_array

Picture: TypeAlias = av.VideoFrame
"""A decoded picture, of format yuv420p, or yuvj420p if its stream states the full range"""

_FORMATS = ("yuv420p", "yuvj420p")

_LOW_DELAY = 1 << 19
"""AV_CODEC_FLAG_LOW_DELAY: a packet gives its picture at once"""

_FULL_RANGE, _BT601 = 2, 5
"""FFmpeg's numbers of the color range and the matrix of all packets"""

_MAX_MPEG4_SIDE = 8191
"""Longest side of a picture that libavcodec's MPEG-4 encoder takes [pixels]"""


def _h264_options(crf: int, gop: int) -> Mapping[str, str]:
    # fastdecode: no CABAC and no deblocking, which take more than half of the time of decoding
    # cpu-independent: else x264 weighs blocks by code that reads uninitialized memory, and packets differ by chance
    chains = f"keyint={gop}:min-keyint={gop}:scenecut=0:bframes=0:open-gop=0:cpu-independent=1:log-level=error"
    return {"preset": "veryfast", "tune": "psnr,fastdecode", "crf": str(crf), "x264-params": chains}


def _mpeg4_options(quantizer: int, gop: int) -> Mapping[str, str]:
    # The quantizer is kept by its bounds, since PyAV does not pass global_quality on. A scene does not begin a chain
    bounds = {"qmin": str(quantizer), "qmax": str(quantizer), "b": "80M", "sc_threshold": "1000000000"}
    return {**bounds, "mpeg_quant": "1", "mbd": "rd"}


_ENCODERS: Mapping[str, tuple[str, Callable[[int, int], Mapping[str, str]]]] = {
    "h264": ("libx264", _h264_options),
    "mpeg4": ("mpeg4", _mpeg4_options),
}
"""Name of each codec to FFmpeg's encoder, and its options for a quality and a length of chains"""


def missing_encoder(codec: str) -> str | None:
    """Return what to do if FFmpeg was built without the encoder of a codec, or None if the encoder is there."""
    encoder = _ENCODERS[codec][0]
    if encoder in av.codecs_available:
        return None
    return (
        f"codec {codec} needs the encoder {encoder}, which this build of FFmpeg lacks; "
        "run: pip install --force-reinstall --only-binary av av"
    )


class PacketEncoder:
    """Encoder of pictures of one size to packets of the codec "h264" or "mpeg4".

    Pictures whose numbers differ by ``stride`` follow each other in a chain of ``gop`` packets. A chain begins with a
    keyframe, and does not depend on other chains. Its packets in a row are a stream that players can play. ``quality``
    is ``crf`` of H.264, or ``quantizer`` of MPEG-4. Lower is better.
    """

    def __init__(self, codec: str, *, gop: int, stride: int, **quality: int) -> None:
        self._codec = codec
        (self._quality,) = quality.values()
        self._gop = gop
        self._stride = stride
        self._contexts: list[Any] = []
        """The encoder of the pictures 0, ``stride``, 2 ``stride`` ..., then that of 1, ``stride`` + 1 ..."""
        self._waiting: dict[int, bytes] = {}
        """Packets by the number of their picture, until all pictures before it have theirs"""
        self._num_pictures = self._num_returned = 0

    def add(self, y: np.ndarray, u: np.ndarray, v: np.ndarray) -> list[bytes]:
        """Take the next picture. Return the packets that are complete now, in the order of the pictures.

        The planes [shape=(H, W), (H/2, W/2), (H/2, W/2), dtype=uint8] are full-range BT.601, as JPEG stores them, and
        may be strided. Raise ``MediaError``, ``refused-size``, if the codec does not take pictures of this size.
        """
        phase = self._num_pictures % self._stride
        if phase == len(self._contexts):
            self._contexts.append(self._open(y.shape[1], y.shape[0]))
        picture = av.VideoFrame(y.shape[1], y.shape[0], "yuv420p")
        for plane, samples in zip(picture.planes, (y, u, v), strict=True):
            plane_array(plane)[:] = samples
        picture.pts, picture.time_base = self._num_pictures // self._stride, Fraction(1, 25)
        self._num_pictures += 1
        self._encode(phase, picture)
        return self._returned()

    def finish(self) -> list[bytes]:
        """Return the remaining packets."""
        for phase in range(len(self._contexts)):
            self._encode(phase, None)
        return self._returned()

    def _encode(self, phase: int, picture: av.VideoFrame | None) -> None:
        for packet in self._contexts[phase].encode(picture):
            assert packet.pts is not None
            if packet.is_keyframe != (packet.pts % self._gop == 0):
                raise ValueError(f"{self._codec} encoder: got a keyframe inside of a chain, or a chain without one")
            self._waiting[packet.pts * self._stride + phase] = bytes(packet)

    def _returned(self) -> list[bytes]:
        packets = []
        while self._num_returned in self._waiting:
            packets.append(self._waiting.pop(self._num_returned))
            self._num_returned += 1
        return packets

    def _open(self, width: int, height: int) -> Any:
        if self._codec == "mpeg4" and max(width, height) > _MAX_MPEG4_SIDE:
            what = f"got pictures of {width}x{height} pixels, expected at most {_MAX_MPEG4_SIDE} on a side for mpeg4"
            raise MediaError("frames", "refused-size", f"{what}. Set frames.short_side, or frames.codec to h264.")
        encoder, options = _ENCODERS[self._codec]
        context: Any = av.VideoCodecContext.create(encoder, "w")
        context.options = dict(options(self._quality, self._gop))
        context.width, context.height, context.pix_fmt = width, height, "yuv420p"
        context.time_base, context.framerate = Fraction(1, 25), Fraction(25)
        context.thread_count, context.gop_size, context.max_b_frames = 1, self._gop, 0
        context.color_range, context.colorspace = _FULL_RANGE, _BT601
        context.open()
        return context


class PacketDecoder:
    """Decoder of one or several chains at the same time.

    ``codec`` is "h264" or "mpeg4", ``size`` the (width, height) of the pictures, [pixels], and ``stride`` the number of
    chains at the same time.
    """

    def __init__(self, codec: str, size: tuple[int, int], stride: int) -> None:
        self._codec = codec
        self._size = size
        self._contexts: list[Any] = [None] * stride

    def decode(self, chain: int, packet: Any, *, is_first: bool) -> Picture:
        """Return the picture of the next packet of a chain, whose number is in [0, stride).

        The packet was checked before: the decoder does not notice every change. ``is_first`` is True for the first one
        of a chain.

        Raise ``DamageError`` if the packet does not give exactly one whole picture of the size, or a chain does not
        begin with a keyframe.
        """
        context = self._contexts[chain]
        if context is None:
            context = self._contexts[chain] = _open_decoder(self._codec)
        if is_first:
            context.flush_buffers()
        coded = av.Packet(len(packet))  # of libavcodec's own memory, which has the padding that decoders read
        coded.update(packet)
        try:
            pictures = context.decode(coded)
        except av.error.FFmpegError as error:
            raise DamageError(f"a packet of {self._codec} cannot be decoded: {reason_of(error)}") from None
        if len(pictures) != 1 or pictures[0].is_corrupt or pictures[0].format.name not in _FORMATS:
            raise DamageError(f"a packet of {self._codec} gave {len(pictures)} pictures, expected a whole one")
        size = pictures[0].width, pictures[0].height
        if size != self._size:
            raise DamageError("the picture is {}x{}, expected {}x{}".format(*size, *self._size))
        if is_first and not pictures[0].key_frame:
            raise DamageError(f"a chain of {self._codec} begins with another packet than a keyframe")
        picture: Picture = pictures[0]
        return picture


def _open_decoder(codec: str) -> Any:
    context = av.VideoCodecContext.create(codec, "r")
    context.thread_count = 1
    context.flags |= _LOW_DELAY
    context.open()
    return context


def planes_of(picture: Picture) -> list[np.ndarray]:
    """Return views of the planes of a picture [shape=(1, H, W), twice (1, H / 2, W / 2), dtype=uint8]."""
    return [plane_array(plane)[None] for plane in picture.planes]
