"""The exception tree. Each class carries the exit code that the command line ends with."""

from __future__ import annotations

import os
import re
import traceback


class ChordcacheError(Exception):
    """Base of every exception that chordcache raises on purpose.

    ``exit_code`` is that of the command line: of the class, unless one error states its own. A cache or an index of
    another version of the format is an error of this class with exit code 13.
    """

    exit_code = 1

    def __init__(self, *args: object, exit_code: int | None = None) -> None:
        super().__init__(*args)
        if exit_code is not None:
            self.exit_code = exit_code


OTHER_FORMAT = 13
"""Exit code of a cache or an index of another version of the format"""


class UsageError(ChordcacheError, ValueError):
    """An argument, an option, or a key of a configuration is wrong."""

    exit_code = 2


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
        ``series`` (its table of numbers is missing or wrong),
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


class DamageError(ChordcacheError):
    """A file of a cache, or a line of an index, is not what was written."""

    exit_code = 5


class NotFoundError(ChordcacheError, FileNotFoundError, LookupError):
    """A missing cache, index, folder or video, or a feature that was not cached for a video (exit code 2)."""

    exit_code = 10


class AbsentFeatureError(NotFoundError):
    """A feature that was not cached for a video. The message gives the reason."""

    exit_code = UsageError.exit_code


class LockedError(ChordcacheError):
    """Another build is writing to this cache."""

    exit_code = 11


CANNOT_WRITE = 12
"""Exit code of a disk or an object store that takes no more data"""


class StorageError(ChordcacheError, OSError):
    """A disk or an object store cannot be read, or takes no more data (exit code 12).

    Permissions, the disk, or something else in the place of a file keep it from being read. A build that could not
    write is resumed by the same command once the disk takes data again.
    """

    exit_code = 15


def cannot_write(message: str) -> StorageError:
    """Return the error of a disk or an object store that takes no more data."""
    return StorageError(message, exit_code=CANNOT_WRITE)


TOO_MANY_FAILED = 4
"""Exit code of a run that ``max_failures`` stopped"""


class StoppedError(ChordcacheError):
    """A run was stopped before its end, mostly by dead workers. The same command starts it again, or resumes it.

    Its exit code is 4 if ``max_failures`` stopped the run, 128 + n if signal n did, and 14 if five
    tasks in a row killed their workers, or a cluster was lost: the cause is the environment, not the input.
    """

    exit_code = 14


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
