"""The progress of a run: a bar on a terminal, plain lines elsewhere, and events in a log file."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, BinaryIO

from chordcache.amounts import counted, duration, human_bytes, unit_of
from chordcache.engine import terminal
from chordcache.engine.display import Display
from chordcache.errors import ChordcacheError, UsageError, printable

_LAST_SECONDS = 1.0
"""[seconds] Longest wait for a line that is being written, perhaps to a pipe that nothing reads"""

NUM_NAMED = 5
"""Number of failures that are named at the end"""


@dataclass
class Tally:
    """The numbers of a run so far."""

    total: int | None = None
    """Number of all videos, or None if it is not known"""
    total_seconds: float | None = None
    """[seconds] Length of all videos, or None if it is not known"""
    num_videos: int = 0
    """Number of videos that are settled"""
    video_seconds: float = 0.0
    """[seconds] Length of these videos"""
    num_worked: int = 0
    """Number of these videos that were not up to date"""
    worked_seconds: float = 0.0
    """[seconds] Length of the videos that took work"""
    num_failed: int = 0
    num_frames: int = 0
    num_bytes: int = 0

    def seconds_left(self, elapsed_seconds: float) -> float | None:
        """Return the estimate of the time left, or None before the first video that took work.

        It counts seconds of video where the length of all videos is known, since one video may be as long as a
        hundred others. The videos that are left count as videos that take work.
        """
        if self.total_seconds is not None and self.worked_seconds > 0:
            return max(0.0, self.total_seconds - self.video_seconds) * elapsed_seconds / self.worked_seconds
        if self.total is not None and self.num_worked > 0:
            return max(0, self.total - self.num_videos) * elapsed_seconds / self.num_worked
        return None


class Progress:
    """The progress of one run. Use it as a context manager, and report each video once, or once in each pass.

    ``total`` and ``total_seconds`` are the number and the length of all videos, if they are known. With ``num_passes``,
    each video is reported so often, and each pass counts for its share of it. ``see`` names the command or file that
    shows all failures, and ``failed`` is the word for their number.
    """

    def __init__(
        self,
        command: str,
        display: Display,
        *,
        total: int | None = None,
        total_seconds: float | None = None,
        num_passes: int = 1,
        see: str = "",
        failed: str = "failed",
    ) -> None:
        self.tally = Tally(total, total_seconds)
        self._command, self._display, self._see, self._failed = command, display, see, failed
        self._num_passes, self._num_reports = num_passes, 0
        self._has_bar = display.progress and terminal.is_terminal()
        self._has_lines = display.progress and not self._has_bar
        self._bar = terminal.progress_bar(total, "video", shown=self._has_bar, estimates=False)
        self._log: BinaryIO | None = None
        self._named: list[str] = []
        self._started = time.monotonic()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def needs_total(self) -> bool:
        """True if a number of videos that takes time to find will be shown."""
        return self._display.progress

    def __enter__(self) -> Progress:
        if self._display.log_file is not None:
            self._log = _open_log(self._display.log_file)
        self._event("start", total=self.tally.total, total_video_seconds=self.tally.total_seconds)
        self._line()
        if self._has_lines or self._log is not None:
            self._thread = threading.Thread(target=self._repeat, name="chordcache progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        self._is_over.set()
        if self._thread is not None:
            self._thread.join(_LAST_SECONDS)
        can_print = self._thread is None or not self._thread.is_alive()
        self._has_lines = self._has_lines and can_print
        self._bar.close()
        elapsed = duration(self._elapsed())
        self._line(f"stopped after {elapsed}" if error else f"done in {elapsed}")
        if can_print and self._display.messages and not self._display.verbose:
            for line in self._named:
                terminal.write_line(line)
            if more := self.tally.num_failed - len(self._named):
                terminal.write_line(f"  ... and {more:,} more{f'; see {self._see}' if self._see else ''}")
        outcome = "done" if kind is None else kind.__name__
        message = str(error) if isinstance(error, ChordcacheError) else None
        self._event("end", outcome=outcome, message=message, **self._numbers())
        if self._log is not None:
            self._log.close()

    def expect(self, total: int) -> None:
        """Set the number of videos."""
        self.tally.total = total
        self._bar.total = total

    def show(self, numbers: Mapping[str, Any]) -> None:
        """Show numbers of a ``Tally`` that other processes counted."""
        for name, number in numbers.items():
            setattr(self.tally, name, number)
        self.tally.num_worked, self.tally.worked_seconds = self.tally.num_videos, self.tally.video_seconds
        if self._has_bar:
            self._bar.n = self.tally.num_videos
            self._bar.set_postfix_str(", ".join(self._rates(self._elapsed())))

    def skip(self, seconds: float | None = None) -> None:
        """Count a video that took no work. ``seconds`` is its length."""
        self._count_video(seconds, is_work=False)

    def done(self, path: str, *, seconds: float | None = None, num_frames: int = 0, num_bytes: int = 0) -> None:
        """Count a video that was made."""
        self.tally.num_frames += num_frames
        self.tally.num_bytes += num_bytes
        if self._display.verbose:
            self._event("done", path=path, num_frames=num_frames, num_bytes=num_bytes)
        self._count_video(seconds, is_work=True)

    def fail(self, path: str, cause: str, message: str, *, seconds: float | None = None, is_work: bool = True) -> None:
        """Count a video that failed, and name it now or at the end."""
        self.tally.num_failed += 1
        line = f"  {printable(path)}: {printable(cause)}: {printable(' '.join(message.split()))}"
        if self._display.verbose and self._display.messages:
            terminal.write_line(line)
        elif len(self._named) < NUM_NAMED:
            self._named.append(line)
        self._event("failed", path=path, cause=cause, message=message)
        self._count_video(seconds, is_work=is_work)

    def _count_video(self, seconds: float | None, *, is_work: bool) -> None:
        tally = self.tally
        self._num_reports += 1
        num_new = self._num_reports // self._num_passes - tally.num_videos
        seconds = (seconds or 0.0) / self._num_passes
        tally.num_videos += num_new
        tally.video_seconds += seconds
        if is_work:
            tally.num_worked += num_new
            tally.worked_seconds += seconds
        if self._has_bar:
            self._bar.set_postfix_str(", ".join(self._rates(self._elapsed())), refresh=False)
            self._bar.update(num_new)

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def _repeat(self) -> None:
        """Report the progress from time to time, in a thread: one long video must not silence the run."""
        while not self._is_over.wait(self._display.interval_seconds):
            self._line()
            self._event("progress", **self._numbers())

    def _line(self, ending: str = "") -> None:
        if self._has_lines:
            elapsed = self._elapsed()
            parts = [*amounts(self.tally), *self._rates(elapsed, is_over=bool(ending)), *filter(None, [ending])]
            terminal.write_line(f"chordcache {self._command}: {', '.join(parts)}")

    def _rates(self, elapsed: float, *, is_over: bool = False) -> list[str]:
        tally = self.tally
        parts = [f"{tally.num_frames / max(elapsed, 1e-3):,.0f} frames/s"] if tally.num_frames else []
        parts += [human_bytes(tally.num_bytes)] if tally.num_bytes else []
        parts += [f"{tally.num_failed:,} {self._failed}"] if tally.num_failed else []
        left = None if is_over else tally.seconds_left(elapsed)
        return parts if left is None else [*parts, f"{duration(left)} left"]

    def _numbers(self) -> dict[str, Any]:
        tally, elapsed = self.tally, self._elapsed()
        left = tally.seconds_left(elapsed)
        return {
            "num_videos": tally.num_videos,
            "total": tally.total,
            "video_seconds": round(tally.video_seconds, 3),
            "total_video_seconds": tally.total_seconds,
            "num_frames": tally.num_frames,
            "num_bytes": tally.num_bytes,
            "num_failed": tally.num_failed,
            "elapsed_seconds": round(elapsed, 3),
            "seconds_left": None if left is None else round(left, 1),
        }

    def _event(self, event: str, **values: Any) -> None:
        """Append an event to the log file. A full disk ends the log, and not the run."""
        if self._log is None:
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"event": event, "time": now, "command": self._command, **values})
        with suppress(OSError):
            self._log.write(line.encode() + b"\n")


def _open_log(path: Any) -> BinaryIO:
    try:
        return open(path, "ab", buffering=0)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"log_file: got '{printable(path)}', which cannot be written ({error}). Name a file."
        ) from None


def amounts(tally: Tally) -> list[str]:
    """Return the parts of a line about how much is done: videos, and seconds of video if they are known."""
    if tally.total is None:
        parts = [counted(tally.num_videos, "video")]
    else:
        parts = [f"{tally.num_videos:,} of {counted(tally.total, 'video')}"]
    total = tally.total_seconds
    if total is not None or tally.video_seconds:
        unit, name = unit_of(tally.video_seconds if total is None else total)
        of = f" of {total / unit:,.1f}" if total is not None else ""
        parts.append(f"{tally.video_seconds / unit:,.1f}{of} {name}")
    return parts
