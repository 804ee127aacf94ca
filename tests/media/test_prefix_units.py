"""H.264 in MP4 as phones write slow motion: each picture follows a prefix (NAL unit 14), in one unit with it or not."""

from __future__ import annotations

from pathlib import Path

import av
import pytest
from helpers.ffmpeg import ffmpeg, ffprobe_column

from chordcache.errors import MediaError
from chordcache.media.decoding import decode_frames
from chordcache.media.demux import open_media
from chordcache.media.probe import probe

NUM_FRAMES = 50


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of a few bytes, all of which are referred to."""
    path = tmp_path_factory.mktemp("prefix") / "plain.mp4"
    ffmpeg("-f", "lavfi", "-i", "testsrc2=s=320x180:r=25:d=2", "-c:v", "libx264", "-crf", "50", "-bf", "0", path)
    return path


def prefixed(plain: Path, path: Path, *, in_one_unit: bool, without: int | None = None) -> Path:
    """Copy a file with a prefix before each slice (ITU-T H.264, 7.3.1 and G.7.3.1.1), and perhaps without a packet."""
    with av.open(str(plain)) as source, av.open(str(path), "w") as target:
        track = target.add_stream_from_template(source.streams.video[0])
        for number, packet in enumerate(packet for packet in source.demux(video=0) if packet.size):
            data, at = bytes(packet), 0
            changed = b""
            while at < len(data):
                start, at = at + 4, at + 4 + int.from_bytes(data[at : at + 4], "big")
                unit = data[start:at]
                kind = unit[0] & 0x1F
                if kind in (1, 5):
                    prefix = bytes([unit[0] & 0x60 | 14, 0xC0 if kind == 5 else 0x80, 0, 7])
                    if in_one_unit:
                        unit = prefix + b"\0\0\0\1" + unit
                    else:
                        changed += len(prefix).to_bytes(4, "big") + prefix
                changed += len(unit).to_bytes(4, "big") + unit
            copy = av.Packet(changed)
            copy.pts, copy.dts, copy.duration, copy.time_base = (
                packet.pts,
                packet.dts,
                packet.duration,
                packet.time_base,
            )
            copy.is_keyframe, copy.stream = packet.is_keyframe, track
            if number != without:
                target.mux(copy)
    return path


@pytest.mark.parametrize("in_one_unit", [False, True])
def test_each_packet_promises_a_frame(plain: Path, tmp_path: Path, in_one_unit: bool) -> None:
    path = prefixed(plain, tmp_path / "a.mp4", in_one_unit=in_one_unit)
    assert len(ffprobe_column(path, "frame=pts")) == NUM_FRAMES
    with av.open(str(path)) as container:
        assert sum(packet.size < 256 for packet in container.demux(video=0) if packet.size) > NUM_FRAMES / 2
    record = probe(str(path), root="r", relative_path="a.mp4")
    assert record.packets is not None
    assert (record.error, record.packets.num_packets, record.packets.num_frames) == (None, NUM_FRAMES, NUM_FRAMES)
    with open_media(str(path)) as media:
        assert sum(1 for _ in decode_frames(media)) == NUM_FRAMES


@pytest.mark.parametrize("in_one_unit", [False, True])
def test_a_lost_packet_is_noticed(plain: Path, tmp_path: Path, in_one_unit: bool) -> None:
    path = prefixed(plain, tmp_path / "a.mp4", in_one_unit=in_one_unit, without=30)
    with open_media(str(path)) as media, pytest.raises(MediaError, match="1 frame that others refer to"):
        list(decode_frames(media))
