"""The length of a video as its index states it, which the estimate of the time left counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import write_video

import chordcache as cc
from chordcache.index.grouping import IndexRows
from chordcache.records import HeaderFacts, PacketFacts, Segment, VideoRecord


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> VideoRecord:
    """Ten seconds, 25 frames per second, in the packets; nine in the header."""
    folder = tmp_path_factory.mktemp("lengths")
    write_video(folder / "a.mp4", num_frames=25, fps=25)
    (scanned,) = cc.scan([folder], jobs=1)
    assert isinstance(scanned.header, HeaderFacts)
    assert isinstance(scanned.packets, PacketFacts)
    return scanned.replace(
        header=scanned.header.replace(header_duration_seconds=9.0, average_fps=25.0),
        packets=scanned.packets.replace(duration_seconds=10.0),
    )


@pytest.mark.parametrize(
    ("segment", "seconds"),
    [
        (None, 10.0),
        (Segment(start_seconds=2.0, end_seconds=5.0), 3.0),
        (Segment(start_seconds=2.0), 8.0),
        (Segment(end_seconds=99.0), 10.0),
        (Segment(start_seconds=11.0), 0.0),
        (Segment(start_frame=50, end_frame=100), 2.0),
        (Segment(start_frame=50), 8.0),
    ],
)
def test_the_length_of_a_segment(record: VideoRecord, segment: Segment | None, seconds: float) -> None:
    assert record.replace(segment=segment).known_seconds == pytest.approx(seconds)


def test_headers_count_where_packets_were_not_read(record: VideoRecord) -> None:
    assert record.replace(packets=None).known_seconds == 9.0
    assert record.replace(packets=None, header=None).known_seconds is None


@pytest.mark.parametrize("claimed", [-1.0, 1e300])
def test_an_impossible_header_counts_as_unknown(record: VideoRecord, claimed: float) -> None:
    assert record.header is not None
    forged = record.header.replace(header_duration_seconds=claimed)
    assert record.replace(packets=None, header=forged).known_seconds is None


def test_one_unknown_length_makes_the_total_unknown(tmp_path: Path) -> None:
    write_video(tmp_path / "videos/a.mp4", num_frames=25, fps=25)
    (tmp_path / "videos/broken.mp4").write_text("not a video")
    with IndexRows(cc.scan([tmp_path / "videos"], output=tmp_path / "index.json", jobs=1)) as rows:
        assert rows.total_seconds == pytest.approx(1.0)  # a broken file needs no time
    (tmp_path / "list.csv").write_text("path\nvideos/a.mp4\n")
    with IndexRows(cc.read_index(tmp_path / "list.csv")) as rows:
        assert rows.total_seconds is None
