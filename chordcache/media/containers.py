"""The one place that opens files of a corpus: with whitelists and limits."""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from typing import Any

import av
import av.format

from chordcache import progress
from chordcache.errors import MediaError
from chordcache.json_records import MAX_PIXELS
from chordcache.media.ffmpeg_log import LogMessage, described, reason_of
from chordcache.media.mp4_boxes import sample_kinds

CONTAINERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,m4v,ogg,flv,asf,mxf,nut,rm,ivf,gif,wav,mp3,aac,"
    "h264,hevc,vvc,av1,obu,dirac,vc1,yuv4mpegpipe,dv,mjpeg,apng"
)
"""Formats that hold media themselves. Playlists are excluded, since they name other files and addresses."""

_WITHOUT_VIDEO = frozenset(
    "concat dash hls sdp ffmetadata image2 ico tty bin xbin idf adf aqtitle ass jacosub lrc microdvd mpl2 mpsub pjs "
    "realtext sami scc srt stl subviewer subviewer1 sup tedcaptions vobsub vplayer webvtt".split()
)
"""Formats of playlists, pictures and text. Pictures also have formats whose names end with "_pipe"."""


_SLOW_BYTES_PER_SECOND = 16_000
"""Assumed rate of a file that does not state its duration, such as raw H.264 of a camera that sees nothing happen"""


_DOLBY_PROFILES = (5, 10, 20)
"""Profiles of Dolby Vision whose base layer may be in a color space of their own (ICtCp in full range, reshaped): HEVC,
AV1, MV-HEVC"""

_DOLBY_RECORD = re.compile(r"DOVI configuration record: .*\bprofile: (\d+),.*\bcompatibility id: (\d+)")
"""FFmpeg's words for the configuration that an MP4, Matroska or MPEG-TS has for a track"""


def open_container(path: str, messages: list[LogMessage]) -> Any:
    """Open a media file from an unknown author. See ``demux.hold_media``; ``messages`` gets FFmpeg's messages."""
    options = {"format_whitelist": CONTAINERS, "protocol_whitelist": "file", "max_pixels": str(MAX_PIXELS)}
    try:
        container: Any = av.open(os.path.abspath(path), "r", options=options, metadata_errors="replace")
    except MemoryError:
        raise
    except av.error.FFmpegError as error:
        raise _refusal(path, error, messages) from None
    for stream in container.streams if "mp4" in container.format.name else ():
        # Samples that do not exist only take memory. If it runs out, libavformat continues without the table, and
        # without a message. It has an entry for each chunk of compressed sound, whose tables count decoded samples
        num_entries = len(stream.index_entries) if stream.type == "audio" else 0
        num_samples = num_entries or stream.frames
        if num_samples > container.size:
            what = f"its header claims {num_samples} samples in {container.size} bytes"
            container.close()
            raise MediaError("open", "decode", what)
    # a file may take the more time, the more it says to have
    sizes = [stream.codec_context for stream in container.streams.video if stream.codec_context is not None]
    num_pixels = max((context.width * context.height for context in sizes), default=0)
    is_known = container.duration is not None and container.duration > 0
    seconds = container.duration / av.time_base if is_known else container.size / _SLOW_BYTES_PER_SECOND
    progress.expect(container.size, seconds, num_pixels)
    return container


def best_video(container: Any) -> av.VideoStream | None:
    """Return the video track that a player would show, except a cover picture, which is one packet without a time."""
    best: av.VideoStream | None = container.streams.best("video")
    if best is None or best.disposition & av.stream.Disposition.attached_pic:
        return None
    return best


def best_audio(container: Any) -> av.AudioStream | None:
    """Return the audio track that a player would play, of those that FFmpeg has a decoder for; None without one."""
    best: Any = container.streams.best("audio")
    if best is not None and best.codec_context is None:
        others = (track for track in container.streams.audio if track.codec_context and track.codec_context.sample_rate)
        best = max(others, key=lambda track: int(track.disposition & av.stream.Disposition.default), default=None)
    chosen: av.AudioStream | None = best
    return chosen


def why_no_sound(container: Any) -> str:
    """Return why a file has no ``best_audio``: it has "no audio track", or none that FFmpeg can decode."""
    if not container.streams.audio:
        return "no audio track"
    kinds = sample_kinds(container.name) if "mp4" in container.format.name else {}
    names = {ascii(kinds[track.id])[2:-1] for track in container.streams.audio if track.id in kinds}
    return f"no audio track that FFmpeg can decode ({', '.join(sorted(names)) or 'unknown codec'})"


def is_listed_key(container: Any, video: av.VideoStream, packet: Any) -> bool:
    """Return whether the container's index lists a packet of the video track as a keyframe."""
    name = container.format.name
    if name == "mpeg":  # it has no index, so libavformat makes one of all packets
        return False
    time = packet.pts if name == "matroska,webm" else packet.dts
    return any(entry.is_keyframe and entry.timestamp == time for entry in video.index_entries)


def refuse_unshowable(container: Any, video: av.VideoStream, packet: Any) -> None:
    """Raise ``MediaError`` if the video track, or its first packet, is encrypted, or its colors cannot be converted."""
    if (
        packet.has_sidedata("encryption_info")
        or "enc_key_id" in video.metadata  # set for Matroska
        or ("mp4" in container.format.name and b"encv" in sample_kinds(container.name).values())
    ):
        raise MediaError("decode", "encrypted", "the video track is encrypted; decrypt the file first")
    may_be_dolby = video.codec_context.codec.canonical_name in ("hevc", "av1")
    profile = _incompatible_profile(container, video) if may_be_dolby else None
    if profile is not None:
        what = f"Dolby Vision profile {profile} without a compatible base layer: its colors cannot be converted"
        raise MediaError("decode", "unsupported-color", what)


def _incompatible_profile(container: Any, video: av.VideoStream) -> int | None:
    """Return the Dolby Vision profile of a video track if its pictures cannot be shown as SDR, PQ or HLG, or None.

    Notes
    -----
    Source: Dolby Vision Streams Within the ISO Base Media File Format 2.1.2, 3.2 (dv_bl_signal_compatibility_id).
    """
    _, *parts = re.split(r"Stream #0:(\d+)", described(container))
    of_tracks = dict(zip(parts[::2], parts[1::2], strict=True))
    match = _DOLBY_RECORD.search(of_tracks.get(str(video.index), ""))
    if match is None or int(match[2]):
        return None
    return int(match[1]) if int(match[1]) in _DOLBY_PROFILES else None


def _refusal(path: str, error: av.error.FFmpegError, messages: list[LogMessage]) -> MediaError:
    for _, name, text in messages:
        if "not on whitelist" in text.lower() or text.startswith("Not detecting m3u8"):
            return MediaError("open", "refused-format", _unsupported(name))
    if error.errno in (errno.EACCES, errno.EIO, errno.ENOENT):
        return MediaError("open", "io", error.strerror or str(error))
    with suppress(OSError):
        if os.path.getsize(path) == 0:
            return MediaError("open", "decode", "the file is empty, 0 bytes")
    said = [" ".join(text.split()) for _, _, text in messages]
    if isinstance(error, av.error.InvalidDataError):
        said = said or ["FFmpeg does not recognize it"]
    return MediaError("open", "decode", reason_of(error, said[-1] if said else None))


def _unsupported(name: str) -> str:
    """Return why a format is not read, by its libavformat name."""
    if name == "webp_pipe":
        return "WebP is not read as a video. Convert it to APNG or GIF, for example with ImageMagick"
    if name in _WITHOUT_VIDEO or name.endswith("_pipe") or name not in av.formats_available:
        return "not a video container that is read (playlist, picture or text)"
    long_name = av.format.ContainerFormat(name, "r").long_name
    return f"format {name} ({long_name}) is not supported"
