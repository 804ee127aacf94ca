"""Open inputs that are not files: streams over the network, and devices.

This is the second module that opens media. It is separate from ``demux``, since it allows playlists and addresses,
which ``demux`` refuses. It only opens addresses that a user names, never one that was found in a corpus.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any

import av

from chordcache.errors import MediaError, UsageError
from chordcache.json_records import MAX_PIXELS
from chordcache.media.containers import CONTAINERS
from chordcache.media.demux import Media
from chordcache.media.ffmpeg_log import capture

_SCHEMES = {
    "http": "http,https,tcp,tls,crypto,data",
    "https": "http,https,tcp,tls,crypto,data",
    "rtsp": "rtsp,rtp,rtcp,udp,tcp",
    "rtsps": "rtsp,rtp,rtcp,udp,tcp,tls",
}
"""Protocols that an address may lead to, by its scheme. Files of this machine are never allowed."""

_STREAM_FORMATS = f"{CONTAINERS},hls,rtsp,mpjpeg"


def open_stream(url: str, *, timeout_seconds: float) -> AbstractContextManager[Media]:
    """Open a stream: http, https (a file or an HLS playlist), rtsp or rtsps; rtsp goes over TCP.

    ``timeout_seconds`` is the longest wait for an answer, and from one packet to the next. Raise ``MediaError`` if the
    stream cannot be opened, and ``UsageError`` if ``url`` is not such an address.
    """
    scheme = url.partition("://")[0].lower()
    if "://" not in url or scheme not in _SCHEMES:
        raise UsageError(f"stream: got '{without_password(url)}', expected an address with {', '.join(_SCHEMES)}")
    options = {
        "format_whitelist": _STREAM_FORMATS,
        "protocol_whitelist": _SCHEMES[scheme],
        "max_pixels": str(MAX_PIXELS),
        "rw_timeout": str(round(timeout_seconds * 1e6)),
    }
    if scheme.startswith("rtsp"):
        options |= {"rtsp_transport": "tcp", "timeout": str(round(timeout_seconds * 1e6))}
        del options["rw_timeout"]
    return open_device(url, None, options=options, timeout_seconds=timeout_seconds)


def without_password(url: str) -> str:
    """Return an address that can be printed: the part before an @ may be a password."""
    return re.sub(r"//[^/@]*@", "//***@", url)


@contextmanager
def open_device(
    name: str, device_format: str | None, *, options: dict[str, str], timeout_seconds: float
) -> Iterator[Media]:
    """Open a device through libavdevice, such as "/dev/video0" with "v4l2"; raises as ``open_stream``."""
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
            raise MediaError("open", "io", f"the source cannot be opened: {error.strerror or error}") from None
        except ValueError as error:  # an input format that this libavdevice does not know
            raise UsageError(f"device: {error}") from None
        with closing(Media(container, messages, is_file=False)) as media:
            yield media
