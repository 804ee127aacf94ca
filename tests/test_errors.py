"""The exception tree and its exit codes."""

from __future__ import annotations

import pickle
import signal

import pytest

from chordcache import errors
from chordcache.errors import ChordcacheError, MediaError, NoSpaceError, NotFoundError, StoppedError, UsageError

EXIT_CODES = {
    "ChordcacheError": 1,
    "UsageError": 2,
    "MediaError": 3,
    "TooManyFailuresError": 4,
    "DamageError": 5,
    "NotFoundError": 10,
    "LockedError": 11,
    "CacheWriteError": 12,
    "FormatVersionError": 13,
    "WorkersDiedError": 14,
    "UnreadableError": 15,
}
"""By class, for those that define one; 6 is verify's alone, 128 + n is a signal's."""

CLASSES = {name: value for name, value in vars(errors).items() if isinstance(value, type)}


def test_one_base() -> None:
    assert all(issubclass(value, ChordcacheError) for value in CLASSES.values())


def test_exit_codes_are_the_documented_ones() -> None:
    assert {name: value.exit_code for name, value in CLASSES.items() if "exit_code" in vars(value)} == EXIT_CODES


def test_exit_codes_are_distinct() -> None:
    assert len(set(EXIT_CODES.values())) == len(EXIT_CODES)


def test_every_other_error_inherits_a_code_that_is_not_a_bug() -> None:
    inheriting = {name for name, value in CLASSES.items() if "exit_code" not in vars(value)} - {"StoppedError"}
    assert inheriting == {"ConfigError", "FeatureAbsentError", "NoSpaceError"}
    assert all(CLASSES[name].exit_code != ChordcacheError.exit_code for name in inheriting)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGHUP, 129), (signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_exit_codes_of_signals_are_those_of_the_shell(number: int, code: int) -> None:
    assert StoppedError(number).exit_code == code
    assert str(StoppedError(number)) == f"stopped by signal {int(number)}"
    assert str(StoppedError(number, True)) == f"stopped by signal {int(number)}; the same command resumes"


@pytest.mark.parametrize(
    "error",
    [
        *(value("what") for name, value in CLASSES.items() if name not in ("MediaError", "StoppedError")),
        MediaError("decode", "short", "the last 2.000 s cannot be decoded", 48),
        StoppedError(15, True),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_dataset_returns_from_a_worker_unchanged(error: ChordcacheError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), vars(copy), copy.exit_code) == (str(error), vars(error), error.exit_code)


def test_some_are_the_builtin_too() -> None:
    with pytest.raises(ValueError, match="x"):
        raise UsageError("x")
    with pytest.raises(FileNotFoundError, match="x"):
        raise NotFoundError("x")
    with pytest.raises(OSError, match="x"):
        raise NoSpaceError("x")
    with pytest.raises(LookupError, match="x"):
        raise errors.FeatureAbsentError("x")
