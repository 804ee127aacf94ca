"""``Index.frame_mappings``: torchcodec shows the frames that it shows after a scan of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.inline import HERE

torch = pytest.importorskip("torch")
from torchcodec.decoders import VideoDecoder  # noqa: E402

import chordcache as cc  # noqa: E402
from chordcache.records import VideoRecord  # noqa: E402

B_FRAMES = {"bf": "3", "x264-params": "b-adapt=0"}


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """Films with B-frames: with an edit list, times in milliseconds, and a variable rate."""
    folder = tmp_path_factory.mktemp("mappings") / "films"
    ticks = [1000 * number + 300 * (number % 3) for number in range(40)]
    make_video(folder / "whole.mp4", num_frames=60, options=B_FRAMES)
    make_video(folder / "variable.mp4", num_frames=40, options=B_FRAMES, pts_ticks=ticks)
    make_video(folder / "milliseconds.mkv", num_frames=40, fps=30, options=B_FRAMES)
    cut = ["-ss", "0.7", "-i", folder / "whole.mp4", "-c", "copy", folder / "edit_list.mp4"]
    subprocess.run(["ffmpeg", "-v", "error", *cut], check=True)
    return folder


@pytest.mark.parametrize(("name", "suffix"), [("films", ".json"), ("clips", ".jsonl")])
def test_torchcodec_decodes_the_frames_of_its_own_scan(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, suffix: str
) -> None:
    folder = request.getfixturevalue(name)
    cc.scan([folder], output=tmp_path / f"index{suffix}", jobs=HERE)
    index = cc.read_index(tmp_path / f"index{suffix}")
    assert len(index) == 4
    for record in index:
        exact = VideoDecoder(folder / record.path, seek_mode="exact")
        mapped = VideoDecoder(folder / record.path, custom_frame_mappings=index.frame_mappings(record))
        # The length of ``mapped`` is that of the header, which counts what an edit list leaves out
        assert len(exact) == record.packets.num_frames
        for numbers in ([len(exact) - 1, *range(0, len(exact), 7), 1], range(len(exact))):  # backwards too
            one, other = mapped.get_frames_at(list(numbers)), exact.get_frames_at(list(numbers))
            assert torch.equal(one.data, other.data), record.path
            assert torch.equal(one.pts_seconds, other.pts_seconds)
        with pytest.raises(IndexError, match="must be less than"):
            mapped.get_frame_at(len(exact))
        frames = json.loads(index.frame_mappings(record))["frames"]
        keyframes = [number for number, frame in enumerate(frames) if frame["key_frame"]]
        assert keyframes == exact._get_key_frame_indices().tolist()
        assert [frame["pts"] + frame["duration"] for frame in frames[:-1]] == [frame["pts"] for frame in frames[1:]]


def test_the_edit_list_leaves_frames_out(films: Path) -> None:
    index = cc.scan([films], jobs=HERE)
    numbers = {record.path: len(json.loads(index.frame_mappings(record))["frames"]) for record in index}
    assert numbers == {"edit_list.mp4": 42, "milliseconds.mkv": 40, "variable.mp4": 40, "whole.mp4": 60}


def test_records_without_frame_times(films: Path, make_video: Callable[..., Path], tmp_path: Path) -> None:
    make_video(tmp_path / "files" / "no_times.avi", codec="mpeg4")
    (tmp_path / "files" / "broken.mp4").write_bytes(b"not a video")
    for folder, level in ((tmp_path / "files", "packets"), (films, "headers")):
        index = cc.scan([folder], level=level, jobs=HERE)
        for record in index:
            with pytest.raises(cc.UsageError, match=f"^video: got '{record.path}' without the times of its frames"):
                index.frame_mappings(record)


def test_damaged_frame_times(films: Path) -> None:
    index = cc.scan([films], jobs=HERE)
    record: VideoRecord = next(iter(index))
    for changes in ({"frame_steps": b"x"}, {"frame_steps": record.packets.frame_steps[:-9]}, {"num_frames": 1 << 40}):
        with pytest.raises(cc.DamageError, match="the frame times of 'edit_list.mp4'$"):
            index.frame_mappings(record.replace(packets=record.packets.replace(**changes)))
