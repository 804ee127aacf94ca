"""Output of ``report``: it replaces nothing that is needed, and leaves nothing behind if stopped."""

from __future__ import annotations

import os
import shlex
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import chordcache as cc
from chordcache.errors import StoppedError
from chordcache.look.report import make
from chordcache.look.report.contents import Problems
from chordcache.look.report.inputs import Entry
from chordcache.look.report.rows import MeasureTable, Shared, details_of
from chordcache.records import VideoRecord

pytestmark = pytest.mark.usefixtures("inline")


@pytest.fixture(scope="module")
def built(tmp_path_factory, make_video) -> Path:
    """A cache of two videos."""
    folder = tmp_path_factory.mktemp("output")
    for number in range(2):
        make_video(folder / "videos" / f"{number}.mp4", num_frames=8)
    index = cc.scan([folder / "videos"], output=folder / "index.json", level="packets", jobs=1)
    cc.build(index, folder / "cache", jobs=1)
    return folder / "cache"


def test_the_input_is_never_the_output(built, tmp_path):
    index = tmp_path / "index.json"
    index.write_bytes((built.parent / "index.json").read_bytes())
    (tmp_path / "link.json").symlink_to(index)
    for output in (index, tmp_path / "link.json"):
        with pytest.raises(cc.UsageError, match="which is also 'path', expected another file"):
            cc.report(index, output)
    assert index.read_bytes() == (built.parent / "index.json").read_bytes()


def test_the_output_is_never_in_a_cache(built):
    before = (built / "catalog.bin").read_bytes()
    for output in (built / "catalog.bin", built / "lmdb" / "r.html"):
        with pytest.raises(cc.UsageError, match="inside the cache .*, expected one outside of it"):
            cc.report(built / "index.jsonl", output)
    assert (built / "catalog.bin").read_bytes() == before


def test_what_is_not_a_regular_file_is_not_replaced(built, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    with cc.open_cache(built) as cache:
        drawn = cc.show(cache[0], num_frames=1)
    for name in ("pipe", "null"):
        with pytest.raises(cc.UsageError, match="not a regular file"):
            cc.report(built, tmp_path / name)
        with pytest.raises(cc.UsageError, match="not a regular file"):
            drawn.save(tmp_path / name)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert (tmp_path / "null").is_symlink()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_behind(built, tmp_path, monkeypatch, number):
    def stopped(*_arguments, **_options):
        yield "<!doctype html>"
        signal.raise_signal(number)

    monkeypatch.setattr(make, "pieces_of_page", stopped)
    handler = signal.signal(number, lambda *_: None)  # without one the signal would end pytest
    try:
        with pytest.raises(StoppedError):
            cc.report(built, tmp_path / "r.html")
    finally:
        signal.signal(number, handler)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_of_a_picture_is_named(built, tmp_path):
    """The limit of a file's size is a real error of the kernel."""
    code = (
        "import chordcache as cc, resource, signal, sys\n"
        "drawn = cc.show(cc.open_cache(sys.argv[1])[0])\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: drawn.save(sys.argv[2])\n"
        "except cc.StorageError as error: sys.exit(error.exit_code)"
    )
    arguments = [sys.executable, "-c", code, str(built), str(tmp_path / "a.png")]
    assert subprocess.run(arguments, timeout=60).returncode == 12
    assert not list(tmp_path.iterdir())


def test_a_time_that_is_not_a_number_has_no_mark():
    boxes = [{"time_seconds": value, "label": "car"} for value in (10**400, float("nan"), 1)]
    record = VideoRecord(root="r", path="a.mp4", level="headers", extra={"boxes": boxes})
    assert details_of(Entry("a", None, record), Shared())["marks"] == [[1.0, "car"]]


def test_the_command_of_a_finding_can_be_pasted():
    problems = Problems()
    problems.add_unreadable("key", "message", Path("/a b/it's"))
    assert shlex.split(problems.findings.shown[0].remedy)[-1] == "/a b/it's"


def test_values_that_are_nearly_equal_have_no_histogram():
    table = MeasureTable()
    for fps, seconds in ((25.0, 1.0), (24.9999999, 2.0)):
        table.add({"fps": fps, "seconds": seconds})
    assert [histogram["field"] for histogram in table.histograms()] == ["seconds"]
