"""LeRobot datasets whose frames are pictures in Parquet files: the same videos as from folders of these pictures."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import processes
from helpers.inline import HERE
from helpers.lerobot import FPS, LENGTHS, SIZES, VERSIONS, data_file, encoded, lerobot_extra, pixels, write_meta
from helpers.lists import indexed

import chordcache as cc
from chordcache.engine.worker import child_environment
from chordcache.errors import MediaError, UsageError
from chordcache.media import inner_source
from chordcache.media.decoding import decode_frames
from chordcache.media.demux import open_media
from chordcache.media.source_file import open_source
from chordcache.records import VideoRecord

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

TOP, WRIST = SIZES
Rows = list[dict[str, Any]]


def rows_of(episode: int, kind: str) -> Rows:
    """Return the rows of an episode, as LeRobot has them."""
    pictures = {camera: [encoded(picture, kind) for picture in pixels(episode, camera)] for camera in SIZES}
    return [
        {camera: {"bytes": pictures[camera][number], "path": f"frame_{number:06d}.{kind}"} for camera in SIZES}
        | {"timestamp": number / FPS, "frame_index": number, "episode_index": episode, "task_index": 0}
        for number in range(LENGTHS[episode])
    ]


def write_rows(path: Path, rows: Rows) -> None:
    """Write rows in the types that LeRobot has, in row groups that end inside of episodes."""
    picture = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    types = {**dict.fromkeys(SIZES, picture), "timestamp": pa.float32()}
    schema = pa.schema({name: types.get(name, pa.int64()) for name in rows[0]})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema), path, row_group_size=4)


def write_dataset(folder: Path, version: str, kind: str = "png") -> Path:
    episodes = write_meta(folder, version)
    if version == "v2.1":
        for episode in range(len(LENGTHS)):
            write_rows(data_file(folder, version, episode), rows_of(episode, kind))
    else:
        write_rows(data_file(folder, version, 0), [*rows_of(0, kind), *rows_of(1, kind)])
        path = folder / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(episodes), path)
    return folder


def inner_path(folder: Path, version: str, episode: int, camera: str) -> str:
    return f"{data_file(folder, version, episode)}/{camera}/episode_{episode:06d}"


def decoded(path: str) -> tuple[np.ndarray, list[float]]:
    with open_source(path) as source, open_media(source.place) as media:
        frames = [(frame.picture.to_ndarray(format="rgb24"), frame.pts_seconds) for frame in decode_frames(media)]
    return np.stack([picture for picture, _ in frames]), [seconds for _, seconds in frames]


@pytest.mark.parametrize("version", VERSIONS)
def test_frames_are_the_pictures(tmp_path: Path, version: str) -> None:
    folder = write_dataset(tmp_path / "push", version)
    records, columns, summary = indexed(folder, "lerobot")
    assert records == [
        VideoRecord(
            "push",
            os.path.relpath(inner_path(folder, version, episode, camera), folder),
            caption=f"Push {episode}",
            extra=lerobot_extra(episode, camera, FPS, os.path.relpath(data_file(folder, version, episode), folder)),
        )
        for episode in range(len(LENGTHS))
        for camera in SIZES
    ]
    assert columns == {"episode_index": "int", "fps": "float", "group": "int"}
    assert (summary.num_files, summary.num_missing_files) == (4, 0)
    for record in records:
        frames, seconds = decoded(f"{folder}/{record.path}")
        np.testing.assert_array_equal(frames, pixels(record.extra["episode_index"], record.extra["camera"]))
        assert seconds == [number / FPS for number in range(len(frames))]


def test_frames_have_the_times_of_the_data(tmp_path: Path) -> None:
    times = [2.0, 2.1, 2.3, 2.35, 2.4, 2.5, 3.0]
    rows = [row | {"timestamp": time} for row, time in zip(rows_of(0, "png"), times, strict=True)]
    write_rows(data_file(tmp_path, "v2.1", 0), rows)
    assert decoded(inner_path(tmp_path, "v2.1", 0, TOP))[1] == pytest.approx([time - 2 for time in times], abs=1e-5)


@pytest.mark.parametrize("kind", ["png", "jpeg"])
@pytest.mark.parametrize("version", VERSIONS)
def test_cache_is_that_of_folders_of_the_pictures(tmp_path: Path, version: str, kind: str) -> None:
    folder = write_dataset(tmp_path / "push", version, kind)
    config = tmp_path / "c.yaml"
    config.write_text("frames: {codec: jpeg, short_side: 32}")
    for episode in range(len(LENGTHS)):
        for camera in SIZES:
            pictures = tmp_path / "frames" / f"{camera}-{episode}"
            pictures.mkdir(parents=True)
            for number, picture in enumerate(pixels(episode, camera)):
                (pictures / f"{number}.{kind}").write_bytes(encoded(picture, kind))
    caches = []
    for source, format, name in ((folder, "lerobot", "c"), (tmp_path / "frames", "frames", "d")):
        indexed(source, format)
        assert cc.build(tmp_path / "index.json", tmp_path / name, config=config, jobs=HERE).num_done == 4
        caches.append(sorted(video[:2] for video in processes.contents(tmp_path / name).values()))
    assert caches[0] == caches[1]
    with cc.open_cache(tmp_path / "c") as cache:
        for video in cache:
            assert video.pts_seconds.tolist() == pytest.approx([number / FPS for number in range(video.num_frames)])
            files = [encoded(picture, kind) for picture in pixels(video.extra["episode_index"], video.extra["camera"])]
            records = [bytes(record) for record in cache.read_encoded(video, range(video.num_frames))]
            # JPEGs of the size of the cached frames are stored as they are
            assert (records == files) == (kind == "jpeg" and video.extra["camera"] == WRIST)
    assert not cc.verify(tmp_path / "c", level="deep", source=True, jobs=HERE).damage


# Damage


def change(number: int, **values: Any) -> Callable[[Rows], object]:
    """Return a function that changes a row of the second episode."""
    return lambda rows: rows[LENGTHS[0] + number].update(values)


def cut(data: bytes, num_bytes: int = 3000) -> dict[str, Any]:
    return {TOP: {"bytes": data[:num_bytes], "path": None}}


PNG = encoded(pixels(1, TOP)[2], "png")
BAD_ROWS: dict[str, tuple[Callable[[Rows], object], str, str]] = {
    "null bytes": (change(2, **{TOP: {"bytes": None, "path": "a.png"}}), "truncated", "picture 3 has no bytes"),
    "null": (change(0, **{TOP: None}), "truncated", "picture 1 has no bytes"),
    "cut picture": (change(2, **cut(PNG)), "decode", "after frame 2"),
    "first is text": (change(0, **cut(b"text")), "decode", "its pictures cannot be read"),
    "other kind": (change(2, **cut(encoded(pixels(1, TOP)[2], "jpeg"), 1 << 20)), "decode", "after frame 2"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_damaged_picture_costs_one_camera_of_one_episode(tmp_path: Path, name: str) -> None:
    folder = write_dataset(tmp_path / "push", "v3.0")
    damage, cause, message = BAD_ROWS[name]
    rows = [*rows_of(0, "png"), *rows_of(1, "png")]
    damage(rows)
    write_rows(data_file(folder, "v3.0", 0), rows)
    indexed(folder, "lerobot")
    summary = cc.build(tmp_path / "index.json", tmp_path / "c", jobs=HERE)
    assert (summary.num_done, summary.num_failed) == (3, 1)
    ((path, line),) = processes.quarantine(tmp_path / "c").items()
    assert path.endswith(f".parquet/{TOP}/episode_000001")
    assert line["cause"] == cause
    assert message in line["message"]


def drop(name: str) -> Callable[[Rows], object]:
    return lambda rows: [row.pop(name) for row in rows]


BAD_EPISODES: dict[str, tuple[Callable[[Rows], object], str, str]] = {
    "no camera": (drop(TOP), "io", f"the Parquet file has no column '{TOP}.bytes'"),
    "no times": (drop("timestamp"), "io", "the Parquet file has no column 'timestamp'"),
    "no episode": (lambda rows: rows.__delitem__(slice(LENGTHS[0], None)), "io", "has no episode 1"),
    "lost row": (lambda rows: rows.pop(-2), "short", "got 4 rows of episode 1, expected its frames from 0"),
    "mixed rows": (lambda rows: rows.insert(0, rows.pop(LENGTHS[0])), "short", "got 5 rows of episode 1"),
    "no time": (change(3, timestamp=None), "decode", "got times of episode 1 that do not increase, or jump"),
    "same time": (change(3, timestamp=2 / FPS), "decode", "got times of episode 1 that do not increase, or jump"),
    "no end": (change(4, timestamp=float("inf")), "decode", "got times of episode 1 that do not increase, or jump"),
}


def cause_of(path: str) -> tuple[str, str]:
    with pytest.raises(MediaError) as error:
        decoded(path)
    return error.value.cause, error.value.message


@pytest.mark.parametrize("name", BAD_EPISODES)
def test_episode_that_is_not_whole_is_an_error(tmp_path: Path, name: str) -> None:
    damage, cause, message = BAD_EPISODES[name]
    rows = [*rows_of(0, "png"), *rows_of(1, "png")]
    damage(rows)
    write_rows(data_file(tmp_path, "v3.0", 0), rows)
    got = cause_of(inner_path(tmp_path, "v3.0", 1, TOP))
    assert got[0] == cause
    assert message in got[1]
    if name != "no times":
        assert len(decoded(inner_path(tmp_path, "v3.0", 0, WRIST))[0]) == LENGTHS[0]


def test_other_names_and_many_bytes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(data_file(tmp_path, "v3.0", 0), rows_of(0, "png"))
    for name in ("observation.image", "observation.image/7", "episode_000000"):
        assert cause_of(f"{data_file(tmp_path, 'v3.0', 0)}/{name}")[0] == "io"
    monkeypatch.setattr(inner_source, "MAX_BYTES", 9999)
    assert cause_of(inner_path(tmp_path, "v3.0", 0, TOP))[0] == "refused-size"


BAD_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (lambda path: os.truncate(path, path.stat().st_size - 100), "the Parquet file is damaged"),
    "hole": (lambda path: overwrite(path, 5000, bytes(20000)), "picture 2 has no bytes"),
    "flipped": (lambda path: flip_checked(path), "the Parquet file is damaged: could not verify page integrity"),
    "text": (lambda path: path.write_bytes(b"a list\n" * 100), "the Parquet file is damaged"),
    "another table": (lambda path: pq.write_table(pa.table({"a": [1]}), path), f"has no column '{TOP}.bytes'"),
    "empty": (lambda path: path.write_bytes(b""), "the Parquet file is damaged"),
    "gone": (lambda path: path.unlink(), "No such file or directory"),
}


def flip_checked(path: Path) -> None:
    """Flip a bit of a picture in a file that has checksums."""
    pq.write_table(pq.read_table(path), path, write_page_checksum=True)
    processes.flip(path, 5000)


def overwrite(path: Path, start: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(data)


@pytest.mark.parametrize("name", BAD_FILES)
def test_file_that_is_damaged_later_is_quarantined(tmp_path: Path, name: str) -> None:
    folder = write_dataset(tmp_path / "push", "v2.1")
    indexed(folder, "lerobot")
    damage, message = BAD_FILES[name]
    path = data_file(folder, "v2.1", 1)
    whole = path.read_bytes()
    damage(path)
    summary = cc.build(tmp_path / "index.json", tmp_path / "c", jobs=HERE)
    failures = processes.quarantine(tmp_path / "c")
    top = failures[f"{path.relative_to(folder)}/{TOP}/episode_000001"]
    assert message in top["message"]
    assert summary.num_failed == len(failures) == 4 - summary.num_done
    assert all("episode_000001.parquet/" in name for name in failures)
    path.unlink(missing_ok=True)
    path.write_bytes(whole)
    cc.build(tmp_path / "index.json", tmp_path / "c", jobs=HERE)
    with cc.open_cache(tmp_path / "c") as cache:
        assert len(cache) == 4


def test_file_that_is_written_again_is_built_again(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "push", "v2.1")
    indexed(folder, "lerobot")
    cc.build(tmp_path / "index.json", tmp_path / "c", jobs=HERE)
    write_rows(data_file(folder, "v2.1", 1), [row | {"episode_index": 1} for row in rows_of(0, "png")])
    assert cc.verify(tmp_path / "c", source=True, jobs=HERE).counts() == {"num_stale": 2}
    summary = cc.build(tmp_path / "index.json", tmp_path / "c", jobs=HERE)
    assert (summary.num_done, summary.num_up_to_date) == (2, 2)
    with cc.open_cache(tmp_path / "c") as cache:
        assert sorted(video.num_frames for video in cache) == [7, 7, 7, 7]


READ = """
import sys
from pathlib import Path
from chordcache.media.source_file import open_source
with open_source(sys.argv[1]):
    print(Path("/proc/self/status").read_text().partition("VmData:")[2].split()[0])
"""


def test_worker_does_not_keep_the_memory_of_a_file(tmp_path: Path) -> None:
    write_rows(data_file(tmp_path, "v2.1", 0), rows_of(0, "png"))
    command = [sys.executable, "-c", READ, inner_path(tmp_path, "v2.1", 0, TOP)]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1 << 19  # KiB; the default pool of pyarrow keeps 1 GiB


def test_missing_pyarrow_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_dataset(tmp_path / "push", "v2.1")
    indexed(folder, "lerobot")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"need pyarrow: pip install 'chordcache\[build\]'"):
        cc.build(tmp_path / "index.json", tmp_path / "c", jobs=HERE)


def test_dataset_without_cameras_or_their_files_is_named(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "push", "v2.1")
    path = folder / "meta" / "info.json"
    info = path.read_text()
    path.write_text(info.replace('"data_path"', '"path"'))
    with pytest.raises(
        UsageError, match=f"got no 'data_path', expected one in 'meta/info.json' for the camera '{TOP}'"
    ):
        indexed(folder, "lerobot")
    path.write_text(info.replace('"image"', '"float32"'))
    with pytest.raises(UsageError, match="got a dataset without cameras, expected features of the dtype 'video' or"):
        indexed(folder, "lerobot")
