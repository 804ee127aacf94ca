"""Decoder of samples that are read from a mapped MP4, without a container."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import av

from chordcache import progress
from chordcache.errors import MediaError
from chordcache.json_records import MAX_PIXELS
from chordcache.media.checks.bitstream import packet_reader
from chordcache.media.checks.faults import Faults
from chordcache.media.checks.packet_check import PacketCheck
from chordcache.media.ffmpeg_log import LogMessage, capture
from chordcache.media.mp4_samples import VideoTrack
from chordcache.media.video_decoder import VideoDecoder

_DECODERS = {"av1": "libdav1d"}
"""Decoder by codec, if libavcodec's first one is not sufficient: its own AV1 decoder needs hardware"""


class SampleDecoder:
    """Decoder for one track of a file, whose whole content is ``data``.

    Raise ``MediaError`` if libavcodec does not accept the configuration.
    """

    def __init__(self, track: VideoTrack, data: memoryview) -> None:
        self._track = track
        self._data = data
        self._codec = self._context(track)
        self._said: list[LogMessage] = []
        self._decoder = VideoDecoder(self._codec, lambda: self._said)
        try:
            with capture():
                self._codec.open()
        except MemoryError:
            raise
        except (av.error.FFmpegError, ValueError) as error:
            raise MediaError("open", "tables", f"its decoder does not take the configuration: {error}") from None

    @staticmethod
    def _context(track: VideoTrack) -> Any:
        codec: Any = av.CodecContext.create(_DECODERS.get(track.codec, track.codec), "r")
        codec.thread_count = 1
        codec.extradata = track.extradata
        codec.width, codec.height = track.width, track.height
        codec.options = {"max_pixels": str(MAX_PIXELS)}
        if track.color is not None:
            codec.color_primaries = track.color.primaries
            codec.color_trc = track.color.transfer
            codec.colorspace = track.color.matrix
            if track.color.is_full is not None:
                codec.color_range = 2 if track.color.is_full else 1
        return codec

    @property
    def aspect(self) -> Fraction | None:
        """Aspect ratio of a pixel, from the container, or from the stream once a picture was decoded."""
        return self._track.aspect or self._codec.sample_aspect_ratio

    def pictures(self, first: int, stop: int) -> Iterator[Any]:
        """Decode samples [first, stop), in decode order; yield all pictures, with times in ticks of the track.

        Only one such generator can be in use: a new one resets the decoder of the one before. Raise ``MediaError`` at
        the first picture that the decoder refuses or conceals.
        """
        self._decoder.flush()
        faults = Faults()
        check = PacketCheck(packet_reader(self._track.codec, self._track.extradata), is_thorough=True)
        for sample in range(first, stop):
            progress.beat()
            packet = self._packet(sample)
            check.role(packet)
            check.report(faults, f"packet {sample}")
            if faults:
                raise faults.error(check.num_shown, check.num_shown - 1)
            yield from self._decoded(packet, sample)
        yield from self._decoded(None, stop)

    def _decoded(self, packet: Any, sample: int) -> list[Any]:
        with capture() as self._said:
            pictures = self._decoder.decode(packet, sample) if packet is not None else self._decoder.finish()
        if self._decoder.problem:
            raise MediaError("decode", "decode", f"packet {sample}: {self._decoder.problem}")
        return [picture for _, picture in pictures]

    def _packet(self, sample: int) -> Any:
        # av.Packet(bytes) leaves no zeros after the data, but decoders read beyond its end
        start, size = int(self._track.offsets[sample]), int(self._track.sizes[sample])
        packet: Any = av.Packet(size)
        packet.update(self._data[start : start + size])
        packet.pts = int(self._track.pts[sample])
        packet.time_base = self._track.time_base
        return packet
