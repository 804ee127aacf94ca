"""The exception tree and its exit codes."""

from __future__ import annotations

import pickle
import signal

import pytest

from chordcache import errors
from chordcache.engine.signals import stop_signals
from chordcache.errors import (
    OTHER_FORMAT,
    AbsentFeatureError,
    ChordcacheError,
    MediaError,
    NotFoundError,
    StoppedError,
    StorageError,
    UsageError,
    cannot_write,
)

EXIT_CODES = {
    "ChordcacheError": 1,
    "UsageError": 2,
    "MediaError": 3,
    "DamageError": 5,
    "NotFoundError": 10,
    "AbsentFeatureError": 2,
    "LockedError": 11,
    "StoppedError": 14,
    "StorageError": 15,
}
"""By class; 6 is verify's alone. Some errors state their own: 2, 4, 12, 13, and 128 + n for a signal."""

CLASSES = {name: value for name, value in vars(errors).items() if isinstance(value, type)}


def test_one_base() -> None:
    assert all(issubclass(value, ChordcacheError) for value in CLASSES.values())


def test_exit_codes_are_the_documented_ones() -> None:
    assert {name: value.exit_code for name, value in CLASSES.items() if "exit_code" in vars(value)} == EXIT_CODES


def test_exit_codes_are_distinct() -> None:
    assert len(set(EXIT_CODES.values())) == len(EXIT_CODES) - 1  # an absent feature was asked for by mistake


@pytest.mark.parametrize(("number", "code"), [(signal.SIGHUP, 129), (signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("resumes", [False, True])
def test_exit_codes_of_signals_are_those_of_the_shell(number: int, code: int, resumes: bool) -> None:
    with pytest.raises(StoppedError) as caught, stop_signals(resumes=resumes):
        signal.raise_signal(number)
    assert caught.value.exit_code == code
    assert str(caught.value) == f"stopped by signal {int(number)}{'; the same command resumes' * resumes}"


@pytest.mark.parametrize(
    "error",
    [
        *(value("what") for name, value in CLASSES.items() if name != "MediaError"),
        MediaError("decode", "short", "the last 2.000 s cannot be decoded", 48),
        StoppedError("stopped by signal 15", exit_code=143),
        AbsentFeatureError("no sound"),
        cannot_write("no space"),
        ChordcacheError("version 4", exit_code=OTHER_FORMAT),
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
        raise StorageError("x")
    with pytest.raises(LookupError, match="x"):
        raise NotFoundError("x")
