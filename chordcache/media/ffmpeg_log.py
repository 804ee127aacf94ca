"""FFmpeg's log: its errors are collected and judged inside ``capture``, and the log is silent outside of it."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import av.error
import av.logging

LogMessage: TypeAlias = "tuple[int, str, str]"
"""Level, source and text of a message. PyAV 18 does not pass on the class of the source, so a demuxer and a decoder of
one name, as of raw streams, differ only in the call during which a message comes."""

_HARMLESS = re.compile(
    r"SEI type \d+ size \d+ truncated"  # a message beside the pictures
    r"|missing mandatory atoms"  # a track is left out: not the one that is read, since it would not have a decoder
    r"|missing picture in access unit"  # a parser's words, on which decoders have the last one
    r"|low_delay flag set incorrectly"  # a parser's guess. ``video_decoder`` lets the decoder guess nothing
    r"|sps_id \d+ out of range"  # parameters of a second view; a picture that needs them has an error of its own
)
"""Errors that do not affect the pictures"""

_PARSERS = ("NULL", "extract_extradata")
"""Names under which FFmpeg's parsers complain. Decoders get the same bytes, and complain too if a picture needs them.
A stream that begins in the middle of a group of pictures refers to parameters that were sent before."""

_lock = threading.Lock()
_num_captures = 0
_quiet_level: int | None = None
"""Level from before the first capture. FFmpeg has one level for all threads."""


def _reset_captures() -> None:
    """Reset the count in the child of a fork, which has none of the threads that captured."""
    global _lock, _num_captures
    _lock = threading.Lock()
    if _num_captures:
        _num_captures = 0
        av.logging.set_level(_quiet_level)


os.register_at_fork(after_in_child=_reset_captures)


@contextmanager
def capture() -> Iterator[list[LogMessage]]:
    """Collect FFmpeg's error messages of this thread; outside the block FFmpeg stays silent, as PyAV sets it."""
    global _num_captures, _quiet_level
    with _lock:
        if not _num_captures:
            _quiet_level = av.logging.get_level()
            av.logging.set_level(av.logging.ERROR)
            av.logging.set_skip_repeated(False)
        _num_captures += 1
    try:
        with av.logging.Capture() as messages:
            yield messages
    finally:
        with _lock:
            _num_captures -= 1
            if not _num_captures:
                av.logging.set_level(_quiet_level)


def described(container: Any) -> str:
    """Return FFmpeg's description of an open file, as the command ffmpeg prints it. PyAV 18 lacks most of its facts."""
    with _lock:
        level = av.logging.get_level()
        av.logging.set_level(av.logging.INFO)
        try:
            text: str = container.dumps_format()
        finally:
            av.logging.set_level(level)
    return text


def first_serious(messages: Sequence[LogMessage], *, besides: Collection[str] = ()) -> str | None:
    """Return the first message that reports damage, such as "hevc: Could not find ref with POC 12".

    Messages of the sources ``besides`` are ignored.
    """
    for level, source, text in messages:
        if level <= av.logging.ERROR and source not in (*_PARSERS, *besides) and not _HARMLESS.search(text):
            return f"{source}: {' '.join(text.split())}"
    return None


def reason_of(error: av.error.FFmpegError, words: str | None = None) -> str:
    """Return why FFmpeg failed: its error, and the words of its log.

    Many of its functions return -1 for any failure, as GIF's do. That is the number of "Operation not permitted".
    """
    if error.errno == errno.EPERM:
        return words or "FFmpeg does not say why"
    reason = error.strerror or str(error)
    return f"{reason} ({words})" if words else reason
