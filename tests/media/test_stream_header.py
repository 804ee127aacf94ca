"""Size and colors in the index are those of the pictures, whatever the container states, against ffprobe's frames."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import av
import pytest
from helpers import scaled
from helpers.ffmpeg import ffmpeg, ffprobe

from chordcache.media.decoding import decode_frames
from chordcache.media.demux import open_media
from chordcache.media.probe import probe
from chordcache.records import VideoRecord

SOURCE = ("-f", "lavfi", "-i", "testsrc2=s=320x180:r=25:d=0.2")
BT709 = ("-color_primaries", "bt709", "-color_trc", "bt709", "-colorspace", "bt709", "-color_range", "tv")
PQ = ("-color_primaries", "bt2020", "-color_trc", "smpte2084", "-colorspace", "bt2020nc")
ENCODERS = {
    "h264": ("libx264", "-pix_fmt", "yuv420p"),
    "hevc": ("libx265", "-x265-params", "log-level=none", "-pix_fmt", "yuv420p10le"),
    "av1": ("libaom-av1", "-cpu-used", "8", "-pix_fmt", "yuv420p10le"),
}
ENTRIES = ("width", "height", "color_space", "color_primaries", "color_transfer")


def scanned(path: Path, level: str = "packets") -> VideoRecord:
    record = probe(str(path), root="r", relative_path=path.name, level=level)
    assert record.error is None
    return record


def stated(path: Path, level: str = "packets") -> tuple[Any, ...]:
    header = scanned(path, level).header
    assert header is not None
    return (
        header.coded_width,
        header.coded_height,
        header.color_space,
        header.color_primaries,
        header.color_transfer,
    )


def shown(path: Path) -> tuple[Any, ...]:
    """The same facts of the first picture, by ffprobe's decoder."""
    (frame,) = ffprobe(path, f"frame={','.join(ENTRIES)}", "-select_streams", "v:0", "-read_intervals", "%+#1")[
        "frames"
    ]
    return tuple(frame.get(entry) for entry in ENTRIES)


@pytest.mark.parametrize("container", ["mp4", "mkv"])
@pytest.mark.parametrize("codec", ENCODERS)
def test_stream_wins_over_its_container(tmp_path: Path, codec: str, container: str) -> None:
    edit = f"{codec}_metadata=transfer_characteristics=16:matrix_coefficients=9"
    base, path = tmp_path / "base.mp4", tmp_path / f"a.{container}"
    ffmpeg(*SOURCE, "-c:v", *ENCODERS[codec], *BT709, base)
    ffmpeg("-i", base, "-c", "copy", "-bsf:v", edit, path)
    with open_media(str(path)) as media:
        assert media.require_video().codec_context.color_trc == 1  # by the container
    assert stated(path) == stated(path, "headers") == shown(path) == (320, 180, "bt2020nc", "bt709", "smpte2084")
    assert scaled.notes(path, hdr="tonemap") == ("tone-mapped from PQ to BT.709",)


@pytest.mark.parametrize("container", ["mp4", "mkv"])
@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_container_counts_where_the_stream_states_nothing(tmp_path: Path, codec: str, container: str) -> None:
    """FFmpeg's HEVC decoder calls such pictures unstated, so that they were not tone-mapped."""
    base, path = tmp_path / "base.mp4", tmp_path / f"a.{container}"
    ffmpeg(*SOURCE, "-c:v", *ENCODERS[codec], base)
    ffmpeg("-i", base, "-c", "copy", *PQ, path)
    assert stated(path) == (320, 180, "bt2020nc", "bt2020", "smpte2084")
    assert scaled.notes(path, hdr="tonemap") == ("tone-mapped from PQ to BT.709",)


@pytest.mark.parametrize(
    "options", [("-vf", "crop=318:178"), ("-flags", "+ildct"), ("-profile:v", "high444", "-qp", "0")]
)
def test_h264_parameter_sets_are_read_to_their_end(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Cropped, interlaced, and with the fields that only some profiles have."""
    path = tmp_path / "a.ts"
    ffmpeg(*SOURCE, "-c:v", "libx264", "-pix_fmt", "yuv420p", *PQ, "-aspect", "17:9", *options, path)
    assert stated(path) == shown(path)
    assert stated(path)[2:] == ("bt2020nc", "bt2020", "smpte2084")


def test_mpeg2_states_its_colors_in_packets(tmp_path: Path) -> None:
    base, path = tmp_path / "base.mkv", tmp_path / "a.mkv"
    ffmpeg(*SOURCE, "-c:v", "mpeg2video", *BT709, base)
    edit = "mpeg2_metadata=transfer_characteristics=5:matrix_coefficients=5"
    ffmpeg("-i", base, "-c", "copy", "-bsf:v", edit, path)
    assert stated(path) == shown(path) == (320, 180, "bt470bg", "bt709", "bt470bg")


def test_size_of_vp8_is_that_of_its_pictures(tmp_path: Path) -> None:
    path = tmp_path / "a.webm"
    ffmpeg(*SOURCE, "-c:v", "libvpx", "-deadline", "realtime", path)
    data = bytearray(path.read_bytes())
    at = data.index(b"\xb0\x82" + struct.pack(">H", 320))  # PixelWidth
    struct.pack_into(">H", data, at + 2, 640)
    path.write_bytes(data)
    header = scanned(path).header
    assert header is not None
    assert (header.coded_width, header.coded_height, header.display_width) == (320, 180, 320)
    assert shown(path)[:2] == (320, 180)


def test_keyframes_at_one_time_are_as_many_frames(tmp_path: Path) -> None:
    base, path = tmp_path / "base.mp4", tmp_path / "a.mkv"
    ffmpeg("-f", "lavfi", "-i", "testsrc2=s=64x48:r=25:d=0.8", "-c:v", "libx264", "-g", "1", "-bf", "0", base)
    with av.open(str(base)) as source, av.open(str(path), "w") as target:
        track = target.add_stream_from_template(source.streams.video[0])
        for number, packet in enumerate(packet for packet in source.demux(video=0) if packet.size):
            packet.pts, packet.stream = 512 * (5 * (number // 5) + 5), track
            target.mux(packet)
    packets = scanned(path).packets
    assert packets is not None
    assert packets.keyframe_numbers == tuple(range(20))
    with open_media(str(path)) as media:
        times = [frame.pts_seconds for frame in decode_frames(media)]
    assert len(set(times)) == 4
    assert packets.keyframe_pts_seconds == pytest.approx(times)


def test_a_tag_that_is_not_text(tmp_path: Path) -> None:
    """The track also states its codec by a number, by which FFmpeg decodes it."""
    ffmpeg(*SOURCE, "-c:v", "mpeg4", tmp_path / "a.mp4")
    data = (tmp_path / "a.mp4").read_bytes()
    assert data.count(b"mp4v") == 1
    (tmp_path / "b.mp4").write_bytes(data.replace(b"mp4v", b"m\x804v"))
    assert stated(tmp_path / "b.mp4") == stated(tmp_path / "a.mp4")
    with open_media(str(tmp_path / "b.mp4")) as media:
        assert len(list(decode_frames(media))) == 5
