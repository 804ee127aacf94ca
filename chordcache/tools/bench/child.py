"""The parent's side of a row's process."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from typing import Any

from chordcache.errors import ChordcacheError, printable
from chordcache.records import to_json
from chordcache.tools.bench.setup import RowSetup

_PATIENCE_SECONDS = 300.0
"""Time that an answer may take before the process is ended [seconds]"""


class RowFailedError(ChordcacheError):
    """A row that cannot be measured. The message is the reason."""


class Child:
    """The process of one row.

    Parameters
    ----------
    setup : RowSetup
        The row.

    Raises
    ------
    RowFailedError
        If the process ended before it was ready.
    """

    def __init__(self, setup: RowSetup) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 -- closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chordcache.tools.bench.row_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        try:
            self.is_slow = bool(self._ask(json.dumps(to_json(setup)))["is_slow"])
            """True if a round has batches of one clip"""
        except BaseException:  # cleanup boundary
            self.close()
            raise

    def ask(self, request: str) -> dict[str, Any]:
        """Return the answer to "round", "cold" or "stages".

        Raises
        ------
        RowFailedError
            If the process ended or took too long.
        """
        return self._ask(request)

    def close(self) -> None:
        """End the process."""
        with suppress(BrokenPipeError):
            if self._process.stdin:
                self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
        self._errors.close()

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        timer = threading.Timer(_PATIENCE_SECONDS, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            timer.cancel()
        if not answer:
            raise RowFailedError(self._last_words())
        found: dict[str, Any] = json.loads(answer)
        return found

    def _last_words(self) -> str:
        """Return the last line that the process printed, or how it ended."""
        code = self._process.wait()
        if code < 0:
            return f"the process was killed by signal {-code}"
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return printable(lines[-1]) if lines else f"the process ended with exit code {code}"
