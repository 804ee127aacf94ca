"""The exception tree. Each class carries the exit code that the command line ends with."""

from __future__ import annotations

import os
import re
import traceback


class ChordcacheError(Exception):
    """Base of every exception that chordcache raises on purpose."""

    exit_code = 1


class UsageError(ChordcacheError, ValueError):
    """An argument or an option is wrong."""

    exit_code = 2


class ConfigError(UsageError):
    """A configuration has an unknown key or a value out of range."""


class FeatureAbsentError(UsageError, LookupError):
    """A feature was not cached for this video. The message gives the reason."""


class MediaError(ChordcacheError):
    """One input cannot be scanned or cached.

    Parameters
    ----------
    stage : str
        Name of the step that failed: ``open``, ``probe``, ``decode``, or the name of the feature in progress.
    cause : str
        One word for machines: ``decode`` (damage, or lost frames), ``short``, ``truncated``, ``encrypted``,
        ``no-video``, ``no-decoder``, ``no-frames``, ``edit-list`` (its frames go back in time), ``refused-format``,
        ``refused-size``, ``refused-link`` (it leads out of its root), ``not-regular``, ``changed``, ``io``, ``tables``
        (of an MP4, see ``mp4_samples``), ``clock`` (of a source that is read without a cache), ``segment`` (it has no
        frames), ``bucket`` (it has fewer frames than each),
        ``stereo`` (no eye can be cut out), ``unsupported-color`` (its colors cannot be converted), ``extractor`` (it
        raised, or returned another number of rows than it declares), ``features`` (those that the file has in the
        cache cannot be made again here), ``frames`` (others than those of its cached features).
        In quarantine also ``oom``, ``timeout``, ``signal`` and ``bug``, for a worker that did not return.
    message : str
        One line for people, without the file's name.
    num_frames_ok : int
        Frames that were decoded before the error.
    """

    exit_code = 3

    def __init__(self, stage: str, cause: str = "", message: str = "", num_frames_ok: int = 0) -> None:
        if not message:  # a DataLoader makes a worker's exception again, from one text
            stage, message = "", stage
        super().__init__(stage, cause, message, num_frames_ok)
        self.stage, self.cause, self.message, self.num_frames_ok = stage, cause, message, num_frames_ok

    def __str__(self) -> str:
        return self.message


class TooManyFailuresError(ChordcacheError):
    """A build was stopped by ``fail_fast`` or ``max_failures``. The same command resumes it."""

    exit_code = 4


class DamageError(ChordcacheError):
    """A file of a cache, or a line of an index, is not what was written."""

    exit_code = 5


class NotFoundError(ChordcacheError, FileNotFoundError):
    """A missing cache, index, folder or video."""

    exit_code = 10


class LockedError(ChordcacheError):
    """Another build is writing to this cache."""

    exit_code = 11


class CacheWriteError(ChordcacheError, OSError):
    """The disk of the cache takes no more data. The same command resumes the build once it does."""

    exit_code = 12


class NoSpaceError(CacheWriteError):
    """The disk of the cache is full."""


class FormatVersionError(ChordcacheError):
    """The cache or index was written by another version of the format."""

    exit_code = 13


class UnreadableError(ChordcacheError, OSError):
    """A file or folder cannot be read because of its permissions, its disk, or something else in its place."""

    exit_code = 15


class WorkersDiedError(ChordcacheError):
    """Five tasks in a row killed their workers. The cause is the environment, not the input."""

    exit_code = 14


class StoppedError(ChordcacheError):
    """A signal stopped the run. The same command starts it again, or resumes it if ``resumes`` is set."""

    def __init__(self, signal_number: int, resumes: bool = False) -> None:
        super().__init__(signal_number, resumes)
        self.signal_number, self.resumes = signal_number, resumes
        self.exit_code = 128 + signal_number

    def __str__(self) -> str:
        return f"stopped by signal {self.signal_number}{'; the same command resumes' * self.resumes}"


_OBJECT_PATH = re.compile(r"/(s3a?|gs|gcs|az|azure|adl|abfss?):/([^/]+)(?:/(.*))?", re.DOTALL)


def match_of_object(path: str) -> re.Match[str] | None:
    """Match the path of an object or a folder in an object store: scheme, store and name."""
    return _OBJECT_PATH.fullmatch(path)


def printable(name: str | os.PathLike[str]) -> str:
    """Return a file's name for people and terminals, with control characters and undecodable bytes escaped.

    The path of an object in an object store becomes its URL.
    """
    text = str(name)
    if match := match_of_object(text):
        text = "/".join(filter(None, (f"{match[1]}://{match[2]}", match[3])))
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def printable_lines(text: str) -> str:
    """Return a text for terminals as ``printable`` does, but with its line ends and tabs."""
    is_plain = text.replace("\n", "").replace("\t", "").isprintable()
    return text if is_plain else "".join(c if c in "\n\t" else printable(c) for c in text)


def describe(error: BaseException) -> str:
    """Return an exception as one line, even if it fails to print itself."""
    return " ".join(traceback.format_exception_only(error)[-1].split())
