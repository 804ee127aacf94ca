"""Open media files. Opening is limited by whitelists, and FFmpeg's messages are collected."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from fractions import Fraction
from functools import partial
from typing import Any

import av

from chordcache import progress
from chordcache.errors import MediaError
from chordcache.media.audio_track import Sound
from chordcache.media.checks.bitstream import packet_reader
from chordcache.media.checks.container_watch import PROVED, ContainerWatch, first_loss
from chordcache.media.checks.faults import Faults
from chordcache.media.checks.packet_check import PacketCheck, Role
from chordcache.media.checks.truncation import may_end_anywhere
from chordcache.media.containers import best_audio, best_video, is_listed_key, open_container, refuse_unshowable
from chordcache.media.ffmpeg_log import LogMessage, capture, first_serious, reason_of
from chordcache.media.joints import JOINABLE, Joints, TrackPart, find_joints, on_one_clock, whole_units
from chordcache.media.sound_decoder import SoundDecoder
from chordcache.media.video_decoder import VideoDecoder

_FALLBACK_FPS = Fraction(25)
"""Rate that libavformat assumes for raw streams that state none"""

LONG_STEPS = Fraction(3, 2)
"""Least duration of a frame that stands for longer than others, in usual steps"""


class Media:
    """Open media file and its best video track. Made by ``open_media`` and ``hold_media``."""

    def __init__(
        self, container: Any, messages: list[LogMessage], *, is_file: bool = True, joints: Joints | None = None
    ) -> None:
        self.container = container
        self.is_file = is_file
        """False for streams and devices, which have neither numbers nor an end to compare with"""
        self._messages = messages
        self._num_heard = 0
        """Number of messages that were judged already"""
        self.video: av.VideoStream | None = best_video(container)
        self.audio: av.AudioStream | None = best_audio(container)
        self._parts: dict[int, TrackPart] = {}  # the last packet of each track is of, in a file of joined recordings
        self.sound_decoder = SoundDecoder(container.format.name, self._parts)
        self.num_packets = 0
        """Number of packets of the video track, counted by the last pass without decoding"""
        self.num_skipped = 0
        """Number of frames at the start that cannot be decoded, counted by the last whole pass"""
        self.timestamp_source = "pts"
        """Source of the frames' times: "pts", or "dts" or "rate" if packets carry no presentation times"""
        self._last_pts = self._last_ticks = -1
        """[ticks] Time of the frame that is shown last, and the duration that the container states for it"""
        self._decoder: VideoDecoder | None = None
        self._joints = joints if is_file and container.format.name in JOINABLE else {}
        self._opening_fault = self._demuxer_fault(all_codecs=True) if is_file else None

    @property
    def completeness(self) -> str:
        """Evidence that no frame is missing in the file, see ``PacketFacts``."""
        return "proved" if self.is_file and self.container.format.name in PROVED else "reported"

    def close(self) -> None:
        """Close the file. The object cannot be used after that."""
        self.container.close()

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Collect FFmpeg's messages of this thread from here on, for a file that ``hold_media`` opened."""
        with capture() as messages:
            self._messages, self._num_heard = messages, 0
            yield

    @property
    def joints(self) -> Joints:
        """Recordings that were joined in the file. All packets are read once to find them."""
        if self._joints is None and self.video is None:
            self._joints = {}
        elif self._joints is None:
            tracks = [track.index for track in (self.video, self.audio) if track is not None]
            self._joints = find_joints(tracks, self.frame_seconds, lambda: open_container(self.container.name, []))
        return self._joints

    def seek(self, time: int, track: av.VideoStream | None = None) -> bool:
        """Go to a keyframe at or before a time [ticks of the track, or microseconds]. Return False if that fails.

        The position may be wrong even so: MPEG-TS has no index. Joined recordings are only read from the start.
        """
        if self.joints:
            return False
        try:
            self.container.seek(time, stream=track)
            return True
        except av.error.FFmpegError:
            return False

    def sounds(self) -> Iterator[Sound]:
        """Decode the audio track from the current position on; skip packets that its decoder refuses."""
        if self.audio is None:
            return
        try:
            for packet in self._demuxed([self.audio]):
                yield from self.sound_decoder.decode(packet)
        except MemoryError:
            raise
        except av.error.FFmpegError as error:
            raise MediaError("decode", "decode", f"cannot read the audio track: {reason_of(error)}") from None

    def expect(self, num_frames: int) -> None:
        """Let the task take longer for one more item of some frames."""
        context = self.require_video().codec_context
        progress.expect(None, float(num_frames * self.frame_seconds), context.width * context.height)

    @property
    def frame_seconds(self) -> Fraction:
        """Duration of a frame at the rate that the headers state."""
        rate = self.require_video().guessed_rate or self.require_video().average_rate
        return 1 / (rate or _FALLBACK_FPS)

    @property
    def last_frame_seconds(self) -> Fraction:
        """Duration of the last frame, known after all packets were read. It may be longer than ``frame_seconds``."""
        return max(self.frame_seconds, self.long_seconds(self.frame_seconds))

    def long_seconds(self, step_seconds: Fraction) -> Fraction:
        """Return the stated duration of the last frame, up to the end of the file.

        Return 0 if it is not longer than others, which take ``step_seconds``. Containers round, and guess.
        """
        unit, length = self.require_video().time_base, self.container.duration
        if self.timestamp_source != "pts" or unit is None or length is None:
            return Fraction(0)
        end_seconds = Fraction((self.container.start_time or 0) + length, av.time_base)
        stated = min(self._last_ticks * unit, end_seconds - self._last_pts * unit)
        return stated if stated > LONG_STEPS * step_seconds else Fraction(0)

    def require_video(self) -> av.VideoStream:
        """Return the video track, or raise ``MediaError`` if there is none that can be decoded."""
        if self.video is None:
            raise MediaError("probe", "no-video", "no video track")
        if self.video.codec_context is None:
            raise MediaError("probe", "no-decoder", "FFmpeg has no decoder for the video track")
        return self.video

    def packet_check(self, *, is_thorough: bool) -> PacketCheck:
        """Return a new check for the packets of the video track, from the packet where decoding begins."""
        codec = self.require_video().codec_context
        reader = packet_reader(codec.codec.canonical_name, codec.extradata or b"", codec.pix_fmt or "")
        return PacketCheck(
            reader,
            is_thorough=is_thorough,
            is_called_key=partial(is_listed_key, self.container, self.require_video()),
            dts_counts_frames=self.container.format.name == "avi",
        )

    def shown_packets(self, *, is_thorough: bool) -> Iterator[tuple[av.Packet[av.VideoStream], PacketCheck]]:
        """Demux the video track from start to end, without decoding; yield the packets that each promise a frame.

        Raise ``MediaError`` at the end: if the container reports damage, or ends too early; ``no-frames`` if no packet
        was yielded.
        """
        faults = Faults()
        check = self.packet_check(is_thorough=is_thorough)
        for packet in self.packets(faults, check):
            if not packet.size:
                continue
            role = check.role(packet)
            if check.problem or check.num_left_out:
                check.report(faults, f"packet {check.num_packets - 1}")
            if role is Role.SHOWN:
                yield packet, check
        self.num_packets, self.num_skipped = check.num_packets, check.num_skipped
        if faults:
            raise faults.error(check.num_shown, check.num_shown)
        if not check.num_shown:
            raise MediaError("probe", "no-frames", check.why_nothing())

    def packets(
        self, faults: Faults, check: PacketCheck, *, on_sound: Callable[[Sound], None] | None = None
    ) -> Iterator[av.Packet[av.VideoStream]]:
        """Demux from the start up to and with the empty packet that flushes the decoder, and set ``timestamp_source``.

        ``faults`` gets what the container reports: messages, marks on packets, an end that comes too early. ``check``
        judges the packets that are yielded. Parsers report errors in those before the first keyframe. ``on_sound`` gets
        the decoded audio track, as its packets are read.
        """
        if self._opening_fault:
            faults.add("decode", f"when it was opened: {self._opening_fault}")
        video = self.require_video()
        index = video.index
        name = self.container.name
        loss = first_loss(name, self.container.format.name, track=video.id) if self.is_file else None
        watch = ContainerWatch(self.container, video, loss, lambda: open_container(name, []))
        try:
            for packet in self._video_packets(on_sound):
                progress.beat()
                if not watch.num_packets and packet.size:
                    self._choose_timestamp_source(packet)
                    if self.is_file:
                        refuse_unshowable(self.container, video, packet)
                is_silent = len(self._messages) == self._num_heard
                fault = None if is_silent else self._demuxer_fault(all_codecs=not check.has_started)
                if fault or self._opening_fault or watch.counts_frames:
                    watch.refuse_chained(packet, fault or self._opening_fault)
                if fault:
                    is_cut = "partial file" in fault or "prematurely" in fault
                    faults.add("truncated" if is_cut else "decode", f"after packet {watch.num_packets}: {fault}")
                for what in watch.faults_before(packet, self._parts.get(index)):
                    faults.add("decode", what)
                if packet.pts is not None and not packet.is_discard:
                    # a container states durations between decoding times: those of pictures if no packet follows
                    is_last = packet.pts > self._last_pts
                    self._last_ticks = (packet.duration or 0) if is_last else 0
                    self._last_pts = max(self._last_pts, packet.pts)
                if packet.size or packet.pts is None:  # an empty packet with a time is Theora's repeat, not the end
                    yield packet
                    self._num_heard = len(self._messages)  # decoders' messages are judged elsewhere
        except MemoryError:  # FFmpeg's is an FFmpegError too, and does not mean a fault of the file
            raise
        except av.error.ExitError:  # only for streams and devices; files have no such limit
            what = f"nothing came after packet {watch.num_packets}"
            raise MediaError("decode", "timeout", what, watch.num_packets) from None
        except av.error.FFmpegError as error:
            faults.add("decode", f"cannot read packet {watch.num_packets}: {reason_of(error)}")
            return
        if self.is_file:
            try:
                for cause, what in watch.faults_at_end():
                    faults.add(cause, what)
            except OSError as error:  # the file was removed, or its disk fails
                raise MediaError("decode", "io", error.strerror or str(error), watch.num_packets) from None
        faults.num_missing += watch.num_missing
        faults.num_damaged = max(faults.num_damaged, watch.num_marked)  # the decoder may have found them too
        if faults and not faults.num_missing:
            faults.num_missing = max(0, video.frames - watch.num_packets)  # according to the header

    def _video_packets(self, on_sound: Callable[[Sound], None] | None) -> Iterator[av.Packet[av.VideoStream]]:
        """Yield the packets of the video track; the decoded audio track goes to ``on_sound``."""
        video = self.require_video()
        if self.audio is None or on_sound is None:
            yield from self._demuxed([video])
            return
        index = video.index
        for packet in self._demuxed([video, self.audio]):
            if packet.stream.index == index:  # the empty packet at the end has it only there
                yield packet
                continue
            progress.beat()
            num_said = len(self._messages)
            for sound in self.sound_decoder.decode(packet):
                on_sound(sound)
            del self._messages[num_said:]  # messages about sound do not concern the pictures

    def _demuxed(self, tracks: Sequence[Any]) -> Iterator[Any]:
        """Yield the packets of some tracks, and an empty packet of each at the end. All recordings have one clock."""
        try:
            packets = whole_units(self.container, tracks)
            yield from on_one_clock(packets, self.joints, self._parts) if self.joints else packets
        except IndexError:  # PyAV 18 does not find a track that begins after the headers
            raise MediaError("decode", "decode", "a packet is of a track that the headers do not have") from None

    def _choose_timestamp_source(self, packet: av.Packet[av.VideoStream]) -> None:
        # AVI stores no presentation times. Those that libavformat makes up are wrong once there are B-frames
        if packet.pts is None or self.container.format.name == "avi":
            self.timestamp_source = "rate" if packet.dts is None else "dts"

    def _demuxer_fault(self, *, all_codecs: bool = False) -> str | None:
        """Return the first new message about damage since the last call, without messages of other tracks' decoders.

        ``all_codecs``: also without those of the video's decoder, which will report its errors once more.
        """
        if len(self._messages) == self._num_heard:
            return None
        said, self._num_heard = self._messages[self._num_heard :], len(self._messages)
        codecs = {
            name
            for stream in self.container.streams
            if stream.codec_context is not None
            and (all_codecs or self.video is None or stream.index != self.video.index)
            for name in (stream.codec_context.name, stream.codec_context.codec.canonical_name)
        }
        if "mpeg1video" in codecs:  # libavformat first takes it for MPEG-2
            codecs.add("mpeg2video")
        return first_serious(said, besides=codecs)

    def packets_from(self, entry_pts: int | None) -> Iterator[av.Packet[av.VideoStream]]:
        """Demux the video track from a keyframe on, in a file whose packets were all checked before.

        ``entry_pts`` [ticks] is the time of the keyframe to begin with. The current position of the file must be before
        it. If another keyframe comes first, no packets are yielded. None begins at the current position of the file.
        Raise ``MediaError`` if a packet cannot be read.
        """
        is_first = True
        try:
            for packet in self._video_packets(None):
                progress.beat()
                if not packet.size and packet.pts is not None:  # Theora's repeat, as in ``packets``
                    continue
                if is_first and entry_pts is not None:
                    if not packet.is_keyframe or packet.pts is None or packet.pts < entry_pts:
                        continue
                    if packet.pts > entry_pts:
                        return
                if is_first and packet.size:
                    self._choose_timestamp_source(packet)
                    is_first = False
                yield packet
        except MemoryError:
            raise
        except av.error.FFmpegError as error:
            raise MediaError("decode", "decode", f"cannot read a packet: {reason_of(error)}") from None

    def video_decoder(self, *, motion_vectors: bool = False) -> VideoDecoder:
        """Return the decoder of the video track, flushed of all packets."""
        if self._decoder is None:
            video = self.require_video()
            context = video.codec_context
            checks_end = (
                self.is_file
                and context.name == "hevc"
                and may_end_anywhere(self.container.name, self.container.format.name, track=video.id)
            )
            self._decoder = VideoDecoder(
                context, lambda: self._messages, motion_vectors=motion_vectors, checks_end=checks_end
            )
            if self.audio is not None and not self.audio.codec_context.is_open:
                self.audio.codec_context.thread_count = 1
        self._decoder.flush()
        return self._decoder


@contextmanager
def open_media(path: str, joints: Joints | None = None) -> Iterator[Media]:
    """Open a media file from an unknown author. Collect FFmpeg's messages until it is closed. See ``hold_media``."""
    with capture() as messages, closing(Media(open_container(path, messages), messages, joints=joints)) as media:
        yield media


def hold_media(path: str, joints: Joints | None = None) -> Media:
    """Open a media file from an unknown author and keep it open. Every later read must run inside ``capture``.

    The format whitelist keeps a playlist that calls itself .mp4 from opening other files and addresses. The absolute
    path keeps a name like ``http:x.mp4`` from being used as an address. ``path`` is the ``place`` of an
    ``open_source``, which stays open as long as the container. ``joints`` are the recordings that were joined in the
    file, if it was read before.

    Raise ``MediaError`` if it is not a media file, or is of a format that is not allowed.
    """
    with capture() as messages:
        return Media(open_container(path, messages), messages, joints=joints)
