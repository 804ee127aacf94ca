"""Dolby Vision whose base layer cannot be shown is refused. Files get its configuration, which ffprobe reads."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from helpers.ffmpeg import ffmpeg, ffprobe

from chordcache.errors import MediaError
from chordcache.media.decoding import decode_frames
from chordcache.media.demux import open_media
from chordcache.media.probe import probe

PARENTS = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stsd", b"hev1")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dolby") / "plain.mp4"
    encoder = ("-c:v", "libx265", "-x265-params", "log-level=none", "-pix_fmt", "yuv420p10le")
    ffmpeg("-f", "lavfi", "-i", "testsrc2=s=64x48:r=25:d=0.2", *encoder, path)
    return path


def configured(plain: Path, path: Path, profile: int, compatibility: int) -> Path:
    """Write a file with a configuration box at the end of its sample description. Sample data lie before it."""
    data = plain.read_bytes()
    assert data.index(b"mdat") < data.index(b"moov")
    record = struct.pack(">BBHB", 1, 0, profile << 9 | 6 << 3 | 0b101, compatibility << 4) + bytes(19)
    box = struct.pack(">I4s", 8 + len(record), b"dvcC" if profile <= 7 else b"dvvC") + record
    start = data.index(b"hev1") - 4
    end = start + int.from_bytes(data[start : start + 4], "big")
    changed = bytearray(data[:end] + box + data[end:])
    for kind in PARENTS:
        at = changed.index(kind, changed.index(b"moov")) - 4
        struct.pack_into(">I", changed, at, int.from_bytes(changed[at : at + 4], "big") + len(box))
    path.write_bytes(changed)
    return path


def stated(path: Path) -> dict[str, Any]:
    (side,) = ffprobe(path, "stream_side_data")["streams"][0]["side_data_list"]
    return side


@pytest.mark.parametrize("container", ["mp4", "mkv"])
@pytest.mark.parametrize(
    ("profile", "compatibility", "is_refused"), [(5, 0, True), (8, 1, False), (8, 4, False), (7, 6, False)]
)
def test_only_a_base_layer_that_cannot_be_shown_is_refused(
    plain: Path, tmp_path: Path, container: str, profile: int, compatibility: int, is_refused: bool
) -> None:
    path = configured(plain, tmp_path / "a.mp4", profile, compatibility)
    if container == "mkv":
        ffmpeg("-i", path, "-c", "copy", "-strict", "unofficial", path := tmp_path / "a.mkv")
    side = stated(path)
    assert (side["dv_profile"], side["dv_bl_signal_compatibility_id"]) == (profile, compatibility)
    record = probe(str(path), root="r", relative_path=path.name)
    assert record.error_cause == ("unsupported-color" if is_refused else None)
    with open_media(str(path)) as media:
        if not is_refused:
            assert sum(1 for _ in decode_frames(media)) == 5
            return
        with pytest.raises(MediaError, match="^Dolby Vision profile 5 without a compatible base layer: ") as caught:
            next(decode_frames(media))
    assert caught.value.cause == "unsupported-color"
