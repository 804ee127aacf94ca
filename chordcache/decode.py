"""The one place that opens media: with whitelists and limits, and with an ear for what the libraries complain of."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import av
import av.codec.context
import numpy as np
from av.sidedata.sidedata import SideDataContainer
from av.sidedata.sidedata import Type as SideDataType

from chordcache import watchdog
from chordcache.clock import Clock
from chordcache.complaints import Complaint, listening
from chordcache.endings import end_problem
from chordcache.errors import MediaError
from chordcache.source_file import identify

CONTAINERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,m4v,ogg,flv,asf,mxf,nut,rm,ivf,gif,wav,mp3,aac,"
    "h264,hevc,vvc,av1,obu,dirac,vc1,yuv4mpegpipe,dv,mjpeg"
)
"""Formats that hold media themselves. Playlists, which name other files and addresses, are not among them."""

MAX_PIXELS = 1 << 27
"""Largest coded picture, 134 megapixels (16384 x 8192); a header that claims more is refused before it is allocated."""

_FLAGGING_DECODERS = frozenset(
    "h264 hevc vp8 vp9 libdav1d mpeg1video mpeg2video mpeg4 h263 flv msmpeg4v1 msmpeg4v2 msmpeg4 wmv1 wmv2".split()
)
"""Decoders that raise, or flag the frame, when they meet damage, and also grumble at what does no harm. The others
(FFV1, MJPEG, Theora ...) conceal damage and tell it in words only, so their words count."""

Sound: TypeAlias = av.AudioFrame
"""A piece of the audio track as its decoder made it."""

_SIDE_DATA: Any = SideDataContainer
"""PyAV's stubs do not know that it takes a picture."""

_FALLBACK_FPS = Fraction(25)
"""libavformat's own assumption for raw streams that state no rate."""


@dataclass(frozen=True)
class DecodedFrame:
    """One picture in presentation order."""

    number: int
    """From 0, counted over all decoded frames"""
    pts_seconds: float
    """[seconds] on the clock that audio and video share; not shifted to start at 0"""
    picture: av.VideoFrame
    """As the decoder made it: coded size, not rotated"""


def plane_array(plane: Any) -> np.ndarray:
    """A plane of 8-bit samples as a view [shape=(H, W), dtype=uint8]; rows may be padded."""
    return np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[: plane.height, : plane.width]


def side_data(picture: av.VideoFrame, kind: SideDataType) -> Any:
    """Side data of one kind, None if there is none.

    Raises
    ------
    ValueError
        PyAV 18 cannot list the side data of a picture that has a kind newer than its enum.
    """
    # A list of its own: the one that PyAV keeps and its picture hold each other, so that pictures stay in memory, and
    # are not used again, until the garbage collector comes: 0.3 ms a picture at 720p
    return _SIDE_DATA(picture).get(kind)


class Media:
    """An open media file and its best video track. Made by ``open_media`` and ``hold_media``."""

    def __init__(self, container: Any, complaints: list[Complaint], *, is_file: bool = True) -> None:
        self.container = container
        self._is_file = is_file
        self._complaints = complaints
        self._num_at_open = len(complaints)
        self.video: av.VideoStream | None = _best_video(container)
        self.audio: av.AudioStream | None = _best_audio(container)
        self.num_refused_sound = 0
        """Packets of the audio track that its decoder refused, so far"""
        self.clock = "pts"
        """How frames get their time: "pts", or "dts" or "rate" where packets carry none"""

    def close(self) -> None:
        """Close the file; the object is of no use any more."""
        self.container.close()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hear what is complained of from here on, in this thread; for a file that ``hold_media`` opened."""
        with listening() as complaints:
            self._complaints, self._num_at_open = complaints, 0
            yield

    def seek(self, pts: int) -> bool:
        """Go to a keyframe at or before a time [ticks of the video track]; whether the container can.

        It may go elsewhere all the same: MPEG-TS has no index.
        """
        try:
            self.container.seek(pts, stream=self.require_video())
        except av.error.FFmpegError:
            return False
        return True

    def seek_sound(self, seconds: float) -> bool:
        """Go to a time of the audio track, as ``seek``."""
        try:
            self.container.seek(round(seconds * av.time_base))
        except av.error.FFmpegError:
            return False
        return True

    def sounds(self) -> Iterator[Sound]:
        """Decode the audio track from where the file stands; what its decoder refuses is passed over."""
        if self.audio is None:
            return
        try:
            for packet in self._demuxed([self.audio]):
                yield from self._heard(packet)
        except MemoryError:
            raise
        except av.error.FFmpegError as error:
            raise MediaError("decode", "decode", f"cannot read the audio track: {error.strerror}") from None

    @property
    def frame_seconds(self) -> Fraction:
        """Duration of a frame at the rate that the headers state."""
        rate = self.require_video().guessed_rate or self.require_video().average_rate
        return 1 / (rate or _FALLBACK_FPS)

    def require_video(self) -> av.VideoStream:
        """The video track, or ``MediaError`` if there is none that can be decoded."""
        if self.video is None:
            raise MediaError("probe", "no-video", "no video track")
        if self.video.codec_context is None:
            raise MediaError("probe", "decode", "there is no decoder for the video track")
        return self.video

    def packets(self, *, on_sound: Callable[[Sound], None] | None = None) -> Iterator[av.Packet[av.VideoStream]]:
        """Demux the video track, up to and with the empty packet that flushes the decoder; settles ``clock``.

        Parameters
        ----------
        on_sound : callable, optional
            Gets the audio track, decoded, as its packets are met on the way.

        Raises
        ------
        MediaError
            If the container complains after its headers: a file cut short or damaged, which libavformat itself
            passes over.
        """
        video = self.require_video()
        tracks = [video] if self.audio is None or on_sound is None else [video, self.audio]
        num_packets = 0
        try:
            for packet in self._demuxed(tracks):
                watchdog.beat()
                if packet.stream.index != video.index:
                    for sound in self._heard(packet):
                        on_sound(sound)  # type: ignore[misc]
                    continue
                if not packet.size and packet.pts is not None:
                    continue  # Theora's "show the last frame again", which a decoder would take for the end
                if not num_packets and packet.size:
                    self._settle_clock(packet)
                num_packets += bool(packet.size)
                yield packet
                if len(self._complaints) > self._num_at_open:
                    self._raise_complaint(num_packets)
        except MemoryError:  # libav's is an FFmpegError too, and says nothing of the file
            raise
        except av.error.ExitError:  # of streams and devices; files have no such limit
            raise MediaError("decode", "timeout", f"nothing came after packet {num_packets}", num_packets) from None
        except av.error.FFmpegError as error:
            raise MediaError("decode", "decode", f"cannot read packet {num_packets}: {error.strerror}") from None
        if self._is_file:
            self._check_end(num_packets)

    def _check_end(self, num_packets: int) -> None:
        try:
            problem = end_problem(self.container.name, self.container.format.name)
        except OSError as error:  # it was removed, or its disk fails
            raise MediaError("decode", "io", error.strerror or str(error), num_packets) from None
        if problem:
            raise MediaError("decode", "truncated", f"the file ends {problem}", num_packets)

    def _demuxed(self, tracks: Sequence[Any]) -> Iterator[Any]:
        """Packets of some tracks, and an empty one of each at the end."""
        try:
            yield from self.container.demux(tracks)
        except IndexError:  # PyAV 18 knows no track that begins behind the headers
            raise MediaError("decode", "decode", "a packet is of a track that the headers do not have") from None

    def _heard(self, packet: Any) -> list[Sound]:
        """Decode a packet of the audio track; nothing if the decoder refuses it."""
        try:
            return list(packet.decode())
        except MemoryError:
            raise
        except av.error.FFmpegError:
            self.num_refused_sound += 1
            return []

    def _settle_clock(self, packet: av.Packet[av.VideoStream]) -> None:
        # AVI stores no presentation times; what libavformat makes up for them is wrong once there are B-frames
        if packet.pts is None or self.container.format.name == "avi":
            self.clock = "rate" if packet.dts is None else "dts"

    def _raise_complaint(self, num_packets: int) -> None:
        listened_to = {self.container.format.name, self.require_video().codec_context.name} - _FLAGGING_DECODERS
        for _, source, text in self._complaints[self._num_at_open :]:
            if source in listened_to:
                truncated = "partial file" in text or "prematurely" in text
                message = f"after packet {num_packets}: {' '.join(text.split())}"
                raise MediaError("decode", "truncated" if truncated else "decode", message, num_packets)
        self._num_at_open = len(self._complaints)

    def _raise_lack_of_memory(self) -> None:
        """The H.264 decoder calls it invalid data when it gets no memory for a picture, but says so in words."""
        if any("get_buffer() failed" in text for _, _, text in self._complaints):
            raise MemoryError("the decoder gets no memory for a picture")

    def frames(
        self,
        *,
        motion_vectors: bool = False,
        on_sound: Callable[[Sound], None] | None = None,
        entry_pts: int | None = None,
    ) -> Iterator[DecodedFrame]:
        """Decode every frame that is to be shown, in presentation order, on one thread.

        Parameters
        ----------
        motion_vectors : bool
            Ask the decoder for its motion vectors, as side data of the pictures.
        on_sound : callable, optional
            Gets the audio track, decoded in the same pass. What its decoder refuses is passed over, as players do.
        entry_pts : int, optional
            [ticks] Begin with the keyframe of this time, wherever the file stands before it. No frames if another
            one comes first.

        Raises
        ------
        MediaError
            ``decode`` at the first picture that the decoder refuses or conceals, ``truncated`` or ``short`` if the
            file ends before its last packet should be shown, ``no-frames`` if none comes out.
        """
        video = self.require_video()
        for track in (video, self.audio):
            if track is not None and not track.codec_context.is_open:  # else it was set when it was opened
                track.codec_context.thread_count = 1
        if motion_vectors:
            video.codec_context.flags2 |= av.codec.context.Flags2.export_mvs
        clock = Clock(self)
        number = 0
        packets = self.packets(on_sound=on_sound)
        for packet in packets if entry_pts is None else _from_entry(packets, entry_pts):
            try:
                pictures = packet.decode()
            except MemoryError:
                raise
            except av.error.FFmpegError as error:
                self._raise_lack_of_memory()
                what = f"the decoder refuses the packet after frame {number}: {error.strerror}"
                raise MediaError("decode", "decode", what, number) from None
            clock.expect(packet)
            for picture in pictures:
                watchdog.beat()
                if picture.is_corrupt:
                    raise MediaError("decode", "decode", f"frame {number} is damaged", number)
                yield DecodedFrame(number, clock.time_of(picture, number), picture)
                number += 1
        if not number and entry_pts is None:
            raise MediaError("decode", "no-frames", "no frame can be decoded")
        clock.check_end(number)


def _from_entry(packets: Iterator[Any], entry_pts: int) -> Iterator[Any]:
    """The packets from a keyframe on; none if they go on after it already."""
    for packet in packets:
        if packet.is_keyframe and packet.pts is not None and packet.pts >= entry_pts:
            if packet.pts == entry_pts:
                yield packet
                yield from packets
            return


def _best_video(container: Any) -> av.VideoStream | None:
    """The track a player would show: never a cover picture, which is one packet without a time."""
    best: av.VideoStream | None = container.streams.best("video")
    if best is None or best.disposition & av.stream.Disposition.attached_pic:
        return None
    return best


def _best_audio(container: Any) -> av.AudioStream | None:
    """The track a player would play: none that it has no decoder for."""
    best: av.AudioStream | None = container.streams.best("audio")
    return None if best is None or best.codec_context is None else best


@contextmanager
def open_media(path: str) -> Iterator[Media]:
    """Open a media file that strangers made, and listen to its complaints until it is closed. See ``hold_media``."""
    with listening() as complaints:
        media = Media(_open_container(path, complaints), complaints)
        try:
            yield media
        finally:
            media.close()


def hold_media(path: str) -> Media:
    """Open a media file that strangers made, to come back to it: whoever reads on does so within ``listening``.

    The format whitelist keeps a playlist that calls itself .mp4 from opening other files and addresses, the absolute
    path keeps a name like ``http:x.mp4`` from being one.

    Parameters
    ----------
    path : str
        As ``os.fsdecode`` gives it; checked by ``identify``.

    Raises
    ------
    MediaError
        If it is no media file, or one that is not allowed.
    """
    with listening() as complaints:
        return Media(_open_container(path, complaints), complaints)


def _open_container(path: str, complaints: list[Complaint]) -> Any:
    identify(path)
    options = {"format_whitelist": CONTAINERS, "protocol_whitelist": "file", "max_pixels": str(MAX_PIXELS)}
    try:
        container = av.open(os.path.abspath(path), "r", options=options, metadata_errors="replace")
    except MemoryError:
        raise
    except av.error.FFmpegError as error:
        raise _refusal(error, complaints) from None
    try:
        _refuse_impossible(container)
    except MediaError:
        container.close()
        raise
    return container


def _refuse_impossible(container: Any) -> None:
    """Refuse an MP4 whose tables list more samples than it has bytes: there are none, only memory is eaten by them.

    Where that runs out, libavformat goes on without the table and without a word, as if the track were empty.
    """
    for stream in container.streams:
        if "mp4" in container.format.name and stream.frames > container.size:
            what = f"its header claims {stream.frames} samples in {container.size} bytes"
            raise MediaError("open", "refused-size", what)


def _refusal(error: av.error.FFmpegError, complaints: list[Complaint]) -> MediaError:
    said = [" ".join(text.split()) for _, _, text in complaints]
    if any("not on whitelist" in text.lower() for text in said):
        return MediaError("open", "refused-format", "not a video container that is read (playlist, picture or text)")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EIO, errno.ENOENT):
        return MediaError("open", "io", error.strerror or str(error))
    reason = f"{error.strerror}" + (f" ({said[-1]})" if said else "")
    return MediaError("open", "decode", reason)
