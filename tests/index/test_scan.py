"""``scan``: records of real and made files, levels, labels, reuse, order, formats."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

import chordcache as cc
from chordcache.choices import SCAN_LEVELS
from chordcache.index.index_files import Index
from chordcache.records import VideoRecord

pytestmark = pytest.mark.usefixtures("inline")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_video) -> Path:
    root = tmp_path_factory.mktemp("scan") / "videos"
    make_video(root / "walk" / "a.mp4", num_frames=50, audio=True, options={"sc_threshold": "0"})
    make_video(root / "walk" / "b.mkv", num_frames=10, size=(96, 64))
    make_video(root / "run" / "c.webm", codec="libvpx-vp9", num_frames=12)
    (root / "run" / "broken.mp4").write_bytes(b"\0" * 1000)
    (root / "notes.txt").write_text("not a video")
    return root


def by_path(index: Index) -> dict[str, VideoRecord]:
    return {record.path: record for record in index}


@pytest.mark.usefixtures("workers")
def test_records_come_in_path_order_whatever_the_jobs(folder):
    first, second = (list(cc.scan([folder], jobs=jobs)) for jobs in (1, 2))
    assert first == second
    assert [record.path for record in first] == ["run/broken.mp4", "run/c.webm", "walk/a.mp4", "walk/b.mkv"]


def test_a_broken_file_is_a_record_with_an_error(folder):
    record = by_path(cc.scan([folder]))["run/broken.mp4"]
    assert record.error_cause == "decode"
    assert record.error_stage == "open"
    assert "Invalid data" in record.error
    assert record.identity.size == 1000


def test_each_level_adds_its_facts(folder):
    for number, level in enumerate(SCAN_LEVELS):
        record = by_path(cc.scan([folder], level=level))["walk/a.mp4"]
        assert record.level == level
        present = [part is not None for part in (record.header, record.packets, record.content)]
        assert present == [True, number >= 1, number >= 2]


def test_variable_frame_rate_is_seen(tmp_path, make_video):
    ticks = [1000 * n + (5000 if n > 10 else 0) for n in range(20)]
    make_video(tmp_path / "vfr.mp4", num_frames=20, pts_ticks=ticks)
    (record,) = cc.scan([tmp_path])
    assert record.packets.variable_frame_rate
    assert record.packets.duration_seconds == pytest.approx(1.0, abs=0.001)


def test_labels_by_folder_and_by_table(folder, tmp_path):
    assert {r.label for r in cc.scan([folder], labels="dir")} == {"walk", "run"}
    table = tmp_path / "labels.csv"
    table.write_text("path,label,caption,person\nwalk/a.mp4,strolling,a square moves,p1\nnone.mp4,x,y,z\n")
    result = cc.scan([folder], labels=str(table))
    records = by_path(result)
    record = records["walk/a.mp4"]
    assert (record.label, record.caption, record.extra) == ("strolling", "a square moves", {"person": "p1"})
    assert records["walk/b.mkv"].label is None
    assert any("1 row " in warning and "none.mp4" in warning for warning in result.warnings)


def test_a_second_scan_looks_only_at_what_changed(folder, tmp_path, make_video):
    copy = tmp_path / "videos"
    make_video(copy / "a.mp4")
    make_video(copy / "b.mp4")
    summaries = [cc.scan([copy], output=tmp_path / "index.json").summary for _ in range(2)]
    assert [(summary.num_done, summary.num_up_to_date) for summary in summaries] == [(2, 0), (0, 2)]
    make_video(copy / "b.mp4", num_frames=31)
    (copy / "a.mp4").chmod(0o400)  # which changes nothing that counts
    result = cc.scan([copy], output=tmp_path / "index.json")
    assert (result.summary.num_done, result.summary.num_up_to_date) == (1, 1)
    assert by_path(result)["b.mp4"].packets.num_frames == 31
    assert cc.scan([copy], output=tmp_path / "index.json", level="content").summary.num_done == 2


def test_the_result_is_the_index(folder, tmp_path):
    result = cc.scan([folder], output=tmp_path / "index.jsonl")
    assert (result.path, result.level) == (tmp_path / "index.jsonl", "packets")
    assert list(result) == list(cc.read_index(result.path))
    summary = result.summary
    assert (summary.num_inputs, summary.num_done, summary.num_failed, summary.num_skipped) == (4, 3, 1, 1)
    assert result.warnings == ()


def test_the_temporary_file_lives_as_long_as_the_result(folder):
    result = cc.scan([folder], level="headers")
    path = result.path
    assert len(list(result)) == 4
    del result
    gc.collect()
    assert not path.parent.exists()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_does_not_remove_the_temporary_file(folder):
    result = cc.scan([folder], level="headers")
    child = os.fork()
    if not child:
        del result
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    assert len(list(result)) == 4


def test_without_a_temporary_folder(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(cc.StorageError, match="cannot make a temporary folder: .*; set TMPDIR to a folder"):
        cc.scan([folder], level="headers")


def test_a_second_scan_to_csv_reads_all_files_again_and_keeps_labels(folder, tmp_path):
    output = tmp_path / "index.csv"
    cc.scan([folder], labels="dir", level="headers", output=output)
    output.write_text(output.read_text().replace(",walk,", ",stroll,"))
    again = cc.scan([folder], level="headers", output=output)
    assert (again.summary.num_done, again.summary.num_up_to_date) == (3, 0)
    assert "every file was read again" in again.warnings[0]
    assert {record.label for record in again} == {record.label for record in cc.read_index(output)} == {"run", "stroll"}


def test_folder_without_videos_is_an_error_and_the_earlier_index_stays(tmp_path, run_cli, folder):
    index = tmp_path / "index.json"
    cc.scan(str(folder), output=index, level="headers")
    before = index.read_bytes()
    frames = tmp_path / "frames"
    frames.mkdir()
    for number in range(20):
        (frames / f"{number}.JPG").touch()
    for name in ("a.md", "b.md", "c"):
        (frames / name).touch()
    (frames / "out.mp4").symlink_to(folder / "walk" / "a.mp4")
    done = run_cli("scan", frames, "-o", index)
    assert done.returncode == 10
    others = "24 other files: 20 .jpg, 2 .md, 1 without a suffix, 1 link out of the root, see --follow-symlinks"
    assert f"ROOT: got '{frames}' with {others}, expected at least one video." in done.stderr
    assert index.read_bytes() == before
    assert "list them with 'chordcache index FOLDER --format frames'" in done.stderr
    (tmp_path / "tars").mkdir()
    (tmp_path / "tars" / "0.tar").touch()
    with pytest.raises(cc.NotFoundError, match=r"'chordcache index FOLDER --format webdataset'"):
        cc.scan([tmp_path / "tars"])
    (tmp_path / "empty").mkdir()
    message = r"^roots: got '.*empty' with no files, expected at least one video\. Name their folder\.$"
    with pytest.raises(cc.NotFoundError, match=message):
        cc.scan([tmp_path / "empty"])


def test_root_without_videos_is_named(tmp_path, folder):
    (tmp_path / "none").mkdir()
    result = cc.scan([folder, tmp_path / "none"], level="headers")
    assert result.warnings == (f"no videos in root 'none', {tmp_path / 'none'}",)


def test_roots_that_share_files_are_refused(tmp_path, folder):
    (tmp_path / "link").symlink_to(folder / "walk")
    for roots in ([folder, folder / "walk"], [f"a={folder}", f"b={folder}"], [tmp_path / "link", folder]):
        with pytest.raises(cc.UsageError, match=r"^roots: got '.*' inside or equal to '.*', expected each file in one"):
            cc.scan(roots)
    both = cc.scan([folder / "run", folder / "walk" / "a.mp4"], level="headers")
    assert [record.path for record in both] == ["broken.mp4", "c.webm", "a.mp4"]
