"""MP4 files whose edit lists have several parts: read as FFmpeg shows them, or refused with what to do."""

from __future__ import annotations

import random
import struct
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest
from helpers.ffmpeg import ffmpeg, ffprobe

import chordcache as cc
from chordcache.building.fix_commands import remedy
from chordcache.errors import MediaError
from chordcache.look.problems import iter_problems
from chordcache.media.decoding import decode_frames
from chordcache.media.demux import open_media
from chordcache.media.exact_frames import ExactFrames
from chordcache.media.probe import probe

SECOND, DELAY, NUM_FRAMES = 12800, 1024, 150
"""[ticks] A second of the track, and the time of its first picture, which waits for the B pictures"""

PAUSE = -1

LISTS = {
    "the start twice": [(800, 0), (800, 0)],
    "a part left out": [(800, 0), (800, 3 * SECOND)],
    "a part left out, from P to B pictures": [(840, 5 * 512), (720, 3 * SECOND + 7 * 512)],
    "parts that overlap": [(800, 0), (800, 10 * 512)],
    "parts in another order": [(400, 2 * SECOND), (400, 0), (400, SECOND)],
    "a pause at first": [(400, PAUSE), (800, 0), (800, 3 * SECOND)],
    "parts that follow each other": [(2000, 0), (4000, 2 * SECOND)],
    "all of it twice": [(6000, 0), (6000, 0)],
}
"""Duration [ms] and begin [ticks] of each part"""


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("film") / "a.mp4"
    ffmpeg("-f", "lavfi", "-i", "testsrc2=s=64x48:r=25:d=6", "-c:v", "libx264", "-g", "16", "-bf", "2", path)
    return path.read_bytes()


def edited(film: bytes, parts: list[tuple[int, int]]) -> bytes:
    """Replace the edit list (ISO/IEC 14496-12, 8.6.6), in a file whose headers are behind the pictures."""
    edits = [struct.pack(">iiI", ms, begin if begin == PAUSE else begin + DELAY, 1 << 16) for ms, begin in parts]
    elst = struct.pack(">I4sII", 16 + 12 * len(edits), b"elst", 0, len(edits)) + b"".join(edits)
    boxes = {name: film.index(name) - 4 for name in (b"moov", b"trak", b"edts")}
    sizes = {name: struct.unpack_from(">I", film, at)[0] for name, at in boxes.items()}
    data = bytearray(film)
    for name in (b"moov", b"trak"):
        struct.pack_into(">I", data, boxes[name], sizes[name] + 8 + len(elst) - sizes[b"edts"])
    at = boxes[b"edts"]
    data[at : at + sizes[b"edts"]] = struct.pack(">I4s", 8 + len(elst), b"edts") + elst
    return bytes(data)


def shown(path: Path) -> list[tuple[float, bytes]]:
    """Return time and luma of each frame that FFmpeg shows."""
    with av.open(str(path)) as container:
        return [(frame.time, bytes(frame.to_ndarray()[:48])) for frame in container.decode(video=0)]


def read(path: Path) -> list[tuple[float, bytes]]:
    with open_media(str(path)) as media:
        return [(frame.pts_seconds, bytes(frame.picture.to_ndarray()[:48])) for frame in decode_frames(media)]


@pytest.mark.parametrize("name", LISTS)
def test_parts_are_read_as_ffmpeg_shows_them(name, film, tmp_path):
    path = tmp_path / "a.mp4"
    path.write_bytes(edited(film, LISTS[name]))
    frames = read(path)
    assert frames == shown(path)
    (stream,) = ffprobe(path, "stream=nb_read_frames", "-count_frames")["streams"]
    record = probe(str(path), root="r", relative_path="a.mp4")
    assert record.error is None
    assert {len(frames), record.packets.num_frames} == {int(stream["nb_read_frames"])}
    with ExactFrames(str(path)) as exact:
        assert np.allclose(exact.frame_index.pts_seconds, [seconds for seconds, _ in frames])
        for number in (len(frames) - 1, len(frames) // 2, 0, len(frames) // 2 + 3):
            assert bytes(exact.frame(number).picture.to_ndarray()[:48]) == frames[number][1]
    with cc.MP4Source().open(str(path)) as source:
        assert source.num_frames == len(frames)


def test_random_lists_are_read_or_refused_as_edit_lists(film, tmp_path):
    draw, path, num_read = random.Random(7), tmp_path / "a.mp4", 0
    for _ in range(40):
        parts = [(draw.randint(100, 1500), draw.randrange(5 * SECOND)) for _ in range(draw.randint(2, 4))]
        path.write_bytes(edited(film, parts))
        expected = shown(path)
        if all(later >= earlier for (earlier, _), (later, _) in pairwise(expected)):
            assert read(path) == expected, parts
            num_read += 1
        else:
            with pytest.raises(MediaError) as raised:
                read(path)
            assert raised.value.cause == "edit-list"
    assert 10 < num_read < 30


def test_a_list_that_sets_frames_back_in_time_is_refused(film, tmp_path, run_cli):
    """The command of the advice makes a file that can be cached."""
    path = tmp_path / "in/a.mp4"
    path.parent.mkdir()
    path.write_bytes(edited(film, [(628, 63273), (1476, 28584)]))
    assert any(later < earlier for (earlier, _), (later, _) in pairwise(shown(path)))
    assert run_cli("build", "in", "-o", "cache", cwd=tmp_path).returncode == 3
    (problem,) = iter_problems(tmp_path / "cache")
    assert (problem.cause, problem.remedy) == ("edit-list", remedy("edit-list"))
    assert problem.message.endswith("its edit list repeats or moves parts of it")
    assert "ffmpeg -i FILE COPY" in problem.remedy
    ffmpeg("-i", path, copy := tmp_path / "copy.mp4")
    copy.replace(path)
    assert run_cli("build", "in", "-o", "cache", cwd=tmp_path).returncode == 0
