"""The progress of a run: what its lines say, how it estimates, and what its log file holds."""

from __future__ import annotations

import json
import threading
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from chordcache.amounts import duration
from chordcache.engine import run_progress
from chordcache.engine.display import Display, display_of
from chordcache.engine.run_progress import Progress, Tally, amounts
from chordcache.errors import StoppedError, UsageError

HOUR = 3600.0


@pytest.mark.parametrize(
    ("tally", "seconds_left"),
    [
        (Tally(10, 1000.0, num_videos=9, video_seconds=100.0, num_worked=9, worked_seconds=100.0), 540),  # a long one
        (Tally(10, None, num_videos=4, num_worked=4), 90),
        (Tally(10, 1000.0, num_videos=5, video_seconds=500.0, num_worked=1, worked_seconds=100.0), 300),  # 4 up to date
        (Tally(1, 10.0, num_videos=1, video_seconds=12.0, num_worked=1, worked_seconds=12.0), 0),
        *((tally, None) for tally in (Tally(), Tally(10), Tally(10, 100.0), Tally(num_videos=3, num_worked=3))),
    ],
)
def test_the_time_left_follows_the_work(tally: Tally, seconds_left: float | None) -> None:
    assert tally.seconds_left(60.0) == (seconds_left and pytest.approx(seconds_left))


def test_amounts() -> None:
    done = Tally(5000, 12.7 * HOUR, num_videos=1204, video_seconds=3.1 * HOUR)
    assert amounts(done) == ["1,204 of 5,000 videos", "3.1 of 12.7 h"]
    assert amounts(Tally(3)) == ["0 of 3 videos"]
    assert amounts(Tally(None, None, num_videos=7, video_seconds=90.0)) == ["7 videos", "1.5 min"]


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_a_run_has_a_first_and_a_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("build", Display(), total=4, total_seconds=8.0) as progress:
        progress.skip(2.0)
        progress.done("v/a.mp4", seconds=2.0, num_frames=50, num_bytes=14_200_000)
        progress.fail("v/b.mp4", "truncated", "the file\nends\x1b", seconds=4.0)
    first, last, failure = lines(capsys)
    assert first == "chordcache build: 0 of 4 videos, 0.0 of 8.0 s"
    assert last.startswith("chordcache build: 3 of 4 videos, 8.0 of 8.0 s, ")
    assert " frames/s, 14.2 MB, 1 failed, done in " in last
    assert failure == "  v/b.mp4: truncated: the file ends\\x1b"


def test_lines_come_while_a_video_takes_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main thread does nothing until the third line was printed, as in a build of one long video."""
    are_there = threading.Semaphore(0)
    write = run_progress.terminal.write_line

    def count(line: str) -> None:
        write(line)
        are_there.release()

    monkeypatch.setattr(run_progress.terminal, "write_line", count)
    with Progress("build", Display(interval_seconds=0.001), total=1) as progress:
        for _ in range(3):
            assert are_there.acquire(timeout=60)
        progress.done("v/a.mp4")
    assert lines(capsys).count("chordcache build: 0 of 1 video") >= 2


def test_five_failures_are_named_and_the_others_counted(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("build", Display(progress=False), see="'chordcache info c --problems'") as progress:
        for number in range(17):
            progress.fail(f"v/{number}.mp4", "decode", "broken")
    *named, more = lines(capsys)
    assert named == [f"  v/{number}.mp4: decode: broken" for number in range(5)]
    assert more == "  ... and 12 more; see 'chordcache info c --problems'"


def test_verbose_names_each_failure_once(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("build", Display(progress=False, verbose=True)) as progress:
        for number in range(7):
            progress.fail(f"v/{number}.mp4", "decode", "broken")
        assert len(lines(capsys)) == 7
    assert lines(capsys) == []


def test_false_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("build", display_of(False)) as progress:
        progress.fail("v/a.mp4", "decode", "broken")
    assert lines(capsys) == []


def events(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_log_file_has_an_event_in_each_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.jsonl"
    for verbose in (False, True):
        display = Display(progress=False, messages=False, verbose=verbose, log_file=path)
        with Progress("build", display, total=2, total_seconds=3.5) as progress:
            progress.done("v/a.mp4", num_frames=3, num_bytes=100)
            progress.fail("v/\udcff.mp4", "decode", "broken")
    entries = events(path)
    assert [entry["event"] for entry in entries] == ["start", "failed", "end", "start", "done", "failed", "end"]
    assert all(datetime.fromisoformat(str(entry["time"])).utcoffset() == timedelta(0) for entry in entries)
    assert {entry["command"] for entry in entries} == {"build"}
    assert (entries[0]["total"], entries[0]["total_video_seconds"]) == (2, 3.5)
    assert (entries[1]["path"], entries[1]["cause"], entries[1]["message"]) == ("v/\udcff.mp4", "decode", "broken")
    assert (entries[2]["outcome"], entries[2]["num_videos"], entries[2]["num_failed"]) == ("done", 2, 1)
    assert (entries[4]["path"], entries[4]["num_frames"], entries[4]["num_bytes"]) == ("v/a.mp4", 3, 100)
    assert lines(capsys) == []


def test_an_exception_is_in_the_last_line_and_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(StoppedError), Progress("scan", Display(log_file=tmp_path / "log")) as progress:
        progress.expect(9)
        raise StoppedError("stopped by signal 15", exit_code=143)
    assert lines(capsys)[-1].startswith("chordcache scan: 0 of 9 videos, stopped after ")
    assert (events(tmp_path / "log")[-1]["outcome"], "signal 15" in str(events(tmp_path / "log")[-1]["message"])) == (
        "StoppedError",
        True,
    )


def test_a_log_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="^log_file: got '.*', which cannot be written"):
        Progress("scan", Display(progress=False, log_file=tmp_path)).__enter__()


def test_a_full_log_file_does_not_end_the_run() -> None:
    with Progress("scan", Display(progress=False, messages=False, log_file="/dev/full")) as progress:
        progress.done("v/a.mp4")
    assert progress.tally.num_videos == 1


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59, "59 s"), (60, "1 min"), (2460, "41 min"), (3600, "1.0 h"), (9e6, "2,500.0 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
