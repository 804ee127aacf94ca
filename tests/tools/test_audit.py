"""``audit``: made lists and datasets without a fault, and with one each."""

from __future__ import annotations

import csv
import functools
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.ffmpeg import ffmpeg
from helpers.lists import write, write_json

import chordcache as cc
from chordcache.errors import NotFoundError, UsageError
from chordcache.index.index_files import read_index
from chordcache.tools.audit import AuditResult, Finding, audit

pytestmark = pytest.mark.usefixtures("inline")

MakeVideo = Callable[..., Path]
Row = dict[str, Any]
Planes = tuple[np.ndarray, np.ndarray, np.ndarray]

NUM_FRAMES = {"a.mp4": 75, "b.mp4": 80, "c.mkv": 100}
"""Videos of 25 frames per second with sound, and with other pictures each"""


def black(_number: int, width: int, height: int) -> Planes:
    chroma = np.full((height // 2, width // 2), 128, np.uint8)
    return np.full((height, width), 16, np.uint8), chroma, chroma


def shifted(planes: Callable[..., Planes], start: int, number: int, *size: int) -> Planes:
    return planes(start + number, *size)


@pytest.fixture(scope="module")
def made_videos(
    tmp_path_factory: pytest.TempPathFactory, make_video: MakeVideo, frame_planes: Callable[..., Planes]
) -> Path:
    """The videos, and in ``odd`` one of 100 frames for each kind of note that replaces ``c.mkv``."""
    folder = tmp_path_factory.mktemp("audit")
    for start, (name, num_frames) in enumerate(NUM_FRAMES.items()):
        planes = functools.partial(shifted, frame_planes, start)
        make_video(folder / name, num_frames=num_frames, audio=True, planes=planes)
    odd: dict[str, Callable[..., Planes]] = {
        "black": lambda number, *size: black(number, *size) if number < 60 else frame_planes(number, *size),
        "frozen": lambda number, *size: frame_planes(min(number, 40), *size),
        "repeated": lambda number, *size: frame_planes(number // 2, *size),
    }
    for kind, planes in odd.items():
        make_video(folder / "odd" / f"{kind}.mkv", num_frames=100, codec="ffv1", audio=True, planes=planes)
    short = make_video(folder / "odd" / "short.mkv", num_frames=80, audio=True)
    ffmpeg(
        "-i", folder / "c.mkv", "-i", short, "-map", "0:v", "-map", "1:a", "-c", "copy", folder / "odd" / "drift.mkv"
    )
    ffmpeg("-i", folder / "b.mp4", "-c", "copy", folder / "odd" / "duplicate.mkv")
    return folder


@pytest.fixture
def videos(made_videos: Path, tmp_path: Path) -> Path:
    (tmp_path / "videos").mkdir()
    for name in NUM_FRAMES:
        shutil.copy(made_videos / name, tmp_path / "videos" / name)
    return tmp_path / "videos"


def true_rows() -> list[Row]:
    return [
        {"path": f"videos/{name}", "caption": f"the video {name}", "num_frames": num_frames, "fps": 25,
         "duration": num_frames / 25, "has_audio": "true"}
        for name, num_frames in NUM_FRAMES.items()
    ]  # fmt: skip


def write_csv(path: Path, rows: list[Row]) -> Path:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def kinds(result: AuditResult) -> list[tuple[str, str]]:
    assert result.num_faults + result.num_notes == len(result.findings)
    return [(finding.kind, finding.file.rpartition("/")[2]) for finding in result.findings]


def test_a_list_without_a_fault_has_no_findings(videos: Path) -> None:
    result = audit(write_csv(videos.parent / "list.csv", true_rows()))
    assert result.findings == ()
    assert (result.num_items, result.num_files, result.num_faults, result.num_notes) == (3, 3, 0, 0)


def test_real_clips_have_no_findings(clips: Path) -> None:
    assert audit(clips).findings == ()


@pytest.mark.parametrize(
    ("column", "value", "kind", "got", "expected"),
    [
        ("num_frames", 101, "frames", "100 frames", "101 (line 4)"),
        ("fps", 30, "fps", "25 frames per second", "30 (line 4)"),
        ("duration", 6.5, "duration", "4.00 s", "6.50 s (line 4)"),
        ("has_audio", "False", "sound", "sound", "no sound (line 4)"),
        ("caption", "", "caption", "none", "a caption, as other items have (line 4)"),
    ],
)
def test_a_statement_that_is_not_true(
    videos: Path, column: str, value: Any, kind: str, got: str, expected: str
) -> None:
    rows = true_rows()
    rows[2][column] = value
    (finding,) = audit(write_csv(videos.parent / "list.csv", rows)).findings
    assert finding.file.endswith("/videos/c.mkv")
    assert (finding.kind, finding.got, finding.expected) == (kind, got, expected)
    assert finding.is_note == (kind == "caption")
    assert str(finding) == f"{kind}: {finding.file}: got {got}, expected {expected}. {finding.action}"


@pytest.mark.parametrize(
    ("column", "value"),
    [("num_frames", "100.0"), ("fps", "24.97"), ("duration", 3.1), ("duration", 4.9), ("duration", "PT4S"),
     ("fps", ""), ("num_frames", -1), ("has_audio", "1"), ("has_audio", "audio/c.wav")],
)  # fmt: skip
def test_rounded_and_unknown_statements_are_right(videos: Path, column: str, value: Any) -> None:
    rows = true_rows()
    rows[2][column] = value
    assert audit(write_csv(videos.parent / "list.csv", rows)).findings == ()


def test_a_list_without_captions_lacks_none(videos: Path) -> None:
    assert audit(write_csv(videos.parent / "list.csv", [row | {"caption": ""} for row in true_rows()])).findings == ()


@pytest.mark.parametrize("kind", ["black", "frozen", "repeated", "drift", "duplicate"])
def test_odd_videos_are_noted(made_videos: Path, videos: Path, kind: str) -> None:
    shutil.copy(made_videos / "odd" / f"{kind}.mkv", videos / "c.mkv")
    rows = true_rows() if kind != "duplicate" else [row for row in true_rows() if row.pop("num_frames")]
    result = audit(write_csv(videos.parent / "list.csv", [row | {"duration": ""} for row in rows]))
    assert kinds(result) == [(kind, "c.mkv")]
    assert result.num_faults == 0


def test_broken_missing_and_linked_files(videos: Path, tmp_path: Path) -> None:
    data = (videos / "a.mp4").read_bytes()
    (videos / "a.mp4").write_bytes(data[: len(data) // 2])
    (videos / "b.mp4").unlink()
    shutil.move(videos / "c.mkv", tmp_path / "c.mkv")
    (videos / "c.mkv").symlink_to(tmp_path / "c.mkv")
    rows = [row | {"path": os.path.basename(row["path"])} for row in true_rows()]
    path = write_csv(tmp_path / "list.csv", rows)
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFoundError, match="got folders with none of the 3 files"):
        audit(path, videos=tmp_path / "empty")
    assert kinds(audit(path, videos=videos)) == [("missing", "b.mp4"), ("broken", "a.mp4"), ("link", "c.mkv")]
    assert kinds(audit(path, videos=videos, follow_symlinks=True)) == [("missing", "b.mp4"), ("broken", "a.mp4")]


def test_segments_lie_in_their_file(videos: Path) -> None:
    rows = [
        {"path": "videos/a.mp4", "start_seconds": 0, "end_seconds": 2, "start_frame": "", "end_frame": "", "fps": 30},
        {"path": "videos/a.mp4", "start_seconds": 2, "end_seconds": 9, "start_frame": "", "end_frame": "", "fps": 30},
        {"path": "videos/b.mp4", "start_seconds": "", "end_seconds": "", "start_frame": 10, "end_frame": 90, "fps": ""},
    ]
    findings = audit(write_csv(videos.parent / "list.csv", rows)).findings
    assert [(finding.kind, finding.expected) for finding in findings] == [
        ("fps", "30 (line 2)"),
        ("duration", "9.00 s, where its segment ends (line 3)"),
        ("frames", "90, where its segment ends (line 4)"),
    ]


# Formats


def test_pairs(videos: Path) -> None:
    for name in NUM_FRAMES:
        write(videos / f"{name[:-4]}.txt", f"the video {name}")
    write_json(videos / "a.json", {"fps": 25, "num_frames": 75})
    assert audit(videos).findings == ()
    write_json(videos / "a.json", {"fps": 25, "num_frames": 74})
    write(videos / "b.txt", "")
    assert kinds(audit(videos)) == [("frames", "a.mp4"), ("caption", "b.mp4")]


def write_lerobot(folder: Path, version: str, video_path: str, *, has_audio: bool = True) -> None:
    camera = {"dtype": "video", "shape": [48, 64, 3], "info": {"has_audio": has_audio}}
    info = {"codebase_version": version, "fps": 25, "video_path": video_path, "features": {"top": camera}}
    write_json(folder / "meta" / "info.json", info)


@pytest.mark.parametrize(
    ("lengths", "has_audio", "faults"),
    [
        ((75, 80, 100), True, []),
        ((75, 81, 100), True, [("frames", "episode_1.mp4")]),
        ((75, 80, 100), False, [("sound", f"episode_{number}.mp4") for number in range(3)]),
    ],
)
def test_lerobot_2(
    videos: Path, tmp_path: Path, lengths: tuple[int, ...], has_audio: bool, faults: list[tuple[str, str]]
) -> None:
    for number, name in enumerate(NUM_FRAMES):
        ffmpeg("-i", videos / name, "-c:v", "copy", "-c:a", "aac", videos / f"episode_{number}.mp4")
    write_lerobot(tmp_path, "v2.1", "videos/episode_{episode_index}.mp4", has_audio=has_audio)
    rows = [{"episode_index": number, "tasks": ["Pick"], "length": length} for number, length in enumerate(lengths)]
    write(tmp_path / "meta" / "episodes.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert kinds(audit(tmp_path)) == faults


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ((40, 60), None),
        ((40, 70), "110, where its segment ends (episode 1)"),
        ((40, 50), "90, where the last episode ends"),
    ],
)
def test_lerobot_3(videos: Path, tmp_path: Path, lengths: tuple[int, int], expected: str | None) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    ffmpeg("-i", videos / "c.mkv", "-c:v", "copy", "-c:a", "aac", videos / "file-000.mp4")
    write_lerobot(tmp_path, "v3.0", "videos/file-{file_index:03d}.mp4")
    first, second = lengths
    rows = [
        {"episode_index": number, "tasks": ["Pick"], "length": length, "videos/top/chunk_index": 0,
         "videos/top/file_index": 0, "videos/top/from_timestamp": start / 25,
         "videos/top/to_timestamp": (start + length) / 25}
        for number, (start, length) in enumerate(((0, first), (first, second)))
    ]  # fmt: skip
    path = tmp_path / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    findings = audit(tmp_path).findings
    assert [(finding.kind, finding.expected) for finding in findings] == ([("frames", expected)] if expected else [])
    if expected and "last" in expected:  # episodes that are left out are not missing
        assert audit(tmp_path, where={"episode_index": "0"}).findings == ()


# The command


def test_the_command_prints_a_line_for_each_finding(
    videos: Path, run_cli: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    folder = videos.parent
    write_csv(folder / "list.csv", true_rows())
    done = run_cli("audit", "list.csv", "-o", "index.jsonl", cwd=folder)
    assert (done.returncode, done.stdout.partition(" in ")[0]) == (0, "audited 3 items of 3 files")
    assert done.stdout.endswith("s: 0 faults, 0 notes\n")
    assert read_index(folder / "index.jsonl").level == "frames"
    rows = true_rows()
    rows[0]["fps"] = 50
    rows[1]["caption"] = ""
    write_csv(folder / "list.csv", rows)
    done = run_cli("audit", "list.csv", "-o", "index.jsonl", "-o", "page.html", "--quiet", cwd=folder)
    assert done.returncode == cc.DamageError.exit_code
    root = folder.name
    assert done.stdout.splitlines() == [
        f"fps: {root}/videos/a.mp4: got 25 frames per second, expected 50 (line 2). "
        "Correct the list, or fetch the file again.",
        f"caption: {root}/videos/b.mp4: got none, expected a caption, as other items have (line 3). "
        "Add a caption, or remove the item from the list.",
    ]
    page = (folder / "page.html").read_text()
    assert "of chordcache audit" in page
    assert "got 25 frames per second, expected 50 (line 2)" in page
    data = json.loads(run_cli("audit", "list.csv", "-o", "index.jsonl", "--json", cwd=folder).stdout)
    assert (data["num_items"], data["num_files"], data["num_faults"], data["num_notes"]) == (3, 3, 1, 1)
    assert [Finding(**finding).kind for finding in data["findings"]] == ["fps", "caption"]
    done = run_cli("audit", "list.csv", "-o", "index.jsonl", "-o", "index.csv", cwd=folder)
    assert (done.returncode, "-o: got two files of one kind" in done.stderr) == (2, True)


def test_a_second_audit_decodes_nothing_again(videos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = videos.parent / "index.jsonl"
    cc.scan(videos, output=index, level="content", jobs=1)
    assert audit(videos, output=index).findings == ()  # the facts of the level below do not do
    monkeypatch.setattr("chordcache.media.probe.decode_frames", None)
    assert audit(videos, output=index).findings == ()


def test_a_page_that_cannot_be_written_is_refused_first(videos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chordcache.media.probe.decode_frames", None)
    with pytest.raises(UsageError, match="^page: .*expected a file in a folder that exists"):
        audit(videos, page=videos / "nowhere" / "page.html")
