"""Opens what is no file: streams over the network, and devices.

The second place that opens media, apart from ``decode`` since it allows what that one refuses: playlists and addresses.
Nothing that came out of a corpus leads here, only what a user asked for by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import av

from chordcache.errors import MediaError, UsageError
from chordcache.media.containers import CONTAINERS, MAX_PIXELS
from chordcache.media.demux import Media
from chordcache.media.ffmpeg_log import capture

_SCHEMES = {
    "http": "http,https,tcp,tls,crypto,data",
    "https": "http,https,tcp,tls,crypto,data",
    "rtsp": "rtsp,rtp,rtcp,udp,tcp",
    "rtsps": "rtsp,rtp,rtcp,udp,tcp,tls",
}
"""Of an address, and the protocols that it may lead to: never to files of this machine."""

_STREAM_FORMATS = f"{CONTAINERS},hls,rtsp,mpjpeg"


@contextmanager
def open_stream(url: str, *, timeout_seconds: float) -> Iterator[Media]:
    """Open a stream.

    Parameters
    ----------
    url : str
        http, https (a file or an HLS playlist), rtsp or rtsps; rtsp goes over TCP.
    timeout_seconds : float
        [seconds] Until it has answered, and from one packet to the next.

    Raises
    ------
    MediaError
        If it cannot be opened.
    UsageError
        If it is no such address.
    """
    scheme = url.partition("://")[0].lower()
    if "://" not in url or scheme not in _SCHEMES:
        raise UsageError(f"stream: got '{without_password(url)}', must be an address with {', '.join(_SCHEMES)}")
    options = {
        "format_whitelist": _STREAM_FORMATS,
        "protocol_whitelist": _SCHEMES[scheme],
        "max_pixels": str(MAX_PIXELS),
        "rw_timeout": str(round(timeout_seconds * 1e6)),
    }
    if scheme.startswith("rtsp"):
        options |= {"rtsp_transport": "tcp", "timeout": str(round(timeout_seconds * 1e6))}
        del options["rw_timeout"]
    with _opened(url, None, options, timeout_seconds) as media:
        yield media


@contextmanager
def open_device(name: str, device_format: str, *, options: dict[str, str], timeout_seconds: float) -> Iterator[Media]:
    """Open a device through libavdevice, such as "/dev/video0" with "v4l2"; raises as ``open_stream``."""
    with _opened(name, device_format, options, timeout_seconds) as media:
        yield media


def without_password(url: str) -> str:
    """An address as it may be printed: what stands before an @ may be a password."""
    return re.sub(r"//[^/@]*@", "//***@", url)


@contextmanager
def _opened(name: str, device_format: str | None, options: dict[str, str], timeout_seconds: float) -> Iterator[Media]:
    with capture() as messages:
        try:
            container: Any = av.open(
                name, "r", format=device_format, options=options, timeout=timeout_seconds, metadata_errors="replace"
            )
        except MemoryError:
            raise
        except av.error.ExitError:
            raise MediaError("open", "timeout", f"no answer for {timeout_seconds:g} s") from None
        except av.error.FFmpegError as error:
            raise MediaError("open", "io", f"it cannot be opened: {error.strerror or error}") from None
        except ValueError as error:  # an input format that this libavdevice does not know
            raise UsageError(f"device: {error}") from None
        media = Media(container, messages, is_file=False)
        try:
            yield media
        finally:
            media.close()
