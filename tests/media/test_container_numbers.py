"""Losses that the numbers of a container reveal: counts, sequence numbers, positions, durations, checksums."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from helpers.ffmpeg import ffmpeg

import chordcache as cc
from chordcache.errors import MediaError
from chordcache.media.checks.container_watch import first_loss
from chordcache.media.decoding import decode_frames
from chordcache.media.demux import open_media
from chordcache.media.exact_frames import ExactFrames
from chordcache.media.probe import probe

NUM_FRAMES = 75
_PICTURES = ("-f", "lavfi", "-i", "testsrc2=s=160x120:r=25:d=3")
_SOUND = ("-f", "lavfi", "-i", "sine=d=3")
_X264 = ("-c:v", "libx264", "-preset", "ultrafast", "-g", "15", "-threads", "1")


@pytest.fixture(scope="module")
def film(tmp_path_factory) -> Path:
    """A film with sound, and a keyframe in 15 frames."""
    path: Path = tmp_path_factory.mktemp("film") / "film.mp4"
    ffmpeg(*_PICTURES, *_SOUND, *_X264, "-c:a", "aac", path)
    return path


def answer(path: Path) -> MediaError | int:
    """Return the error that the build reports for a file, or the number of its frames."""
    try:
        with open_media(str(path)) as media:
            return sum(1 for _ in decode_frames(media))
    except MediaError as error:
        return error


def pictures(path: Path) -> list[bytes]:
    """Decode the luma of all frames."""
    with open_media(str(path)) as media:
        return [bytes(frame.picture.to_ndarray(format="gray")) for frame in decode_frames(media)]


def check_refused(path: Path, words: str) -> None:
    """Check that a file is damaged for this reason."""
    error = answer(path)
    assert isinstance(error, MediaError), error
    assert error.stage == "decode"
    assert re.search(words, error.message)


def written(path: Path, *parts: bytes | bytearray) -> Path:
    """Write a file."""
    path.write_bytes(b"".join(parts))
    return path


# MP4


def boxes_of(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield kind, begin and end of each box on the top level."""
    at = 0
    while at + 8 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        yield kind, at, at + size
        at += size


def fragments_of(data: bytes) -> list[tuple[int, int]]:
    """Begin and end of each fragment with its data."""
    boxes = list(boxes_of(data))
    return [(at, boxes[n + 1][2]) for n, (kind, at, _) in enumerate(boxes) if kind == b"moof"]


_FRAGMENTED = {
    "mfra.mp4": ("-movflags", "frag_keyframe+empty_moov"),
    "base.mp4": ("-movflags", "frag_keyframe+empty_moov+default_base_moof"),
    "dash.mp4": ("-movflags", "frag_keyframe+dash"),
    "global.mp4": ("-movflags", "frag_keyframe+dash+global_sidx"),
    "cmaf.mp4": ("-movflags", "cmaf"),
    "frames.mp4": ("-movflags", "frag_every_frame+empty_moov"),
    "smooth.ismv": ("-f", "ismv"),
}


@pytest.mark.parametrize("name", ["base.mp4", "dash.mp4", "global.mp4", "cmaf.mp4", "smooth.ismv"])
def test_fragment_lost(film, tmp_path, name):
    """Zeros over its header, a letter of its name changed, or removed: the second, one in the middle, the last one."""
    sound = tmp_path / name
    ffmpeg("-i", film, "-c", "copy", *_FRAGMENTED[name], sound)
    data = sound.read_bytes()
    fragments = fragments_of(data)
    for number in (1, len(fragments) // 2, len(fragments) - 1):
        start, end = fragments[number]
        check_refused(written(tmp_path / "removed.mp4", data[:start], data[end:]), "fragment|index")
        check_refused(written(tmp_path / "zeros.mp4", data[:start], bytes(512), data[start + 512 :]), "expected a box")
        check_refused(written(tmp_path / "name.mp4", data[: start + 5], b"x", data[start + 6 :]), "fragment|index")


def test_last_fragment_of_a_stated_duration(film, tmp_path):
    """A file without an index, whose header states the duration of all fragments (mehd)."""
    sound = tmp_path / "sound.mp4"
    ffmpeg(
        "-i", film, "-an", "-c", "copy", "-movflags", "frag_keyframe+empty_moov+default_base_moof+skip_trailer", sound
    )
    data = sound.read_bytes()
    mvex = data.index(b"mvex") - 4
    mehd = struct.pack(">I4sII", 16, b"mehd", 0, 3000)  # the movie's clock has milliseconds
    moov = data.index(b"moov") - 4
    whole = bytearray(data[: mvex + 8] + mehd + data[mvex + 8 :])
    for at in (moov, mvex):
        struct.pack_into(">I", whole, at, struct.unpack_from(">I", whole, at)[0] + len(mehd))
    assert answer(written(tmp_path / "whole.mp4", whole)) == NUM_FRAMES
    start, end = fragments_of(whole)[-1]
    check_refused(written(tmp_path / "x.mp4", whole[:start], whole[end:]), "header promises 3.000 s")


def test_fragments_without_another_track(film, tmp_path):
    """The sequence numbers have holes where the fragments of sound were, and nothing is missing."""
    sound = tmp_path / "sound.mp4"
    ffmpeg("-i", film, "-c", "copy", "-movflags", "frag_keyframe+dash+separate_moof", sound)
    data = sound.read_bytes()
    boxes = list(boxes_of(data))
    kept = [data[at:end] for kind, at, end in boxes if kind in (b"ftyp", b"moov")]
    of_video = [
        (at, end)
        for at, end in fragments_of(data)
        if struct.unpack_from(">I", data, data.index(b"tfhd", at) + 8)[0] == 1
    ]
    assert len(of_video) * 2 <= len(fragments_of(data))
    assert answer(written(tmp_path / "x.mp4", *kept, *(data[at:end] for at, end in of_video))) == NUM_FRAMES


def test_data_behind_the_last_fragment(film, tmp_path):
    """A tag of a player, and zeros that a recorder allocated, are not a loss."""
    sound = tmp_path / "sound.mp4"
    ffmpeg("-i", film, "-an", "-c", "copy", "-movflags", "frag_keyframe+empty_moov+default_base_moof", sound)
    data = sound.read_bytes()
    assert answer(written(tmp_path / "tag.mp4", data, b"TAG", bytes(125))) == NUM_FRAMES
    assert answer(written(tmp_path / "zeros.mp4", data, bytes(10_000))) == NUM_FRAMES


def test_events_added_behind_an_index(film, tmp_path):
    """A tool that adds boxes of events leaves the index of the segment as it is."""
    sound = tmp_path / "sound.mp4"
    ffmpeg("-i", film, "-an", "-c", "copy", "-movflags", "frag_keyframe+dash+skip_trailer", sound)
    data = sound.read_bytes()
    event = struct.pack(">I4s", 40, b"emsg") + bytes(32)
    parts = [data[at:end] + event * (kind == b"sidx") for kind, at, end in boxes_of(data)]
    assert answer(written(tmp_path / "x.mp4", *parts)) == NUM_FRAMES


@pytest.mark.parametrize("codec", ["libx264", "libvpx-vp9"])
def test_sample_tables_that_disagree(film, tmp_path, codec):
    sound = tmp_path / "sound.mp4"
    fast = ("-preset", "ultrafast") if codec == "libx264" else ("-deadline", "realtime", "-cpu-used", "8")
    ffmpeg("-i", film, "-frames:v", "20", "-c:v", codec, *fast, "-c:a", "copy", "-movflags", "faststart", sound)
    data = bytearray(sound.read_bytes())
    assert answer(sound) == 20
    stsz, stsc = data.index(b"stsz"), data.index(b"stsc")
    empty = bytearray(data)
    struct.pack_into(">I", empty, stsz + 16 + 4 * 12, 0)
    check_refused(written(tmp_path / "empty.mp4", empty), r"lost 1 of 20 frames; its table of sizes \(stsz\)")
    (num_runs,) = struct.unpack_from(">I", data, stsc + 8)
    last = stsc + 12 + 12 * (num_runs - 1) + 4
    fewer = bytearray(data)
    struct.pack_into(">I", fewer, last, struct.unpack_from(">I", data, last)[0] - 1)
    check_refused(written(tmp_path / "fewer.mp4", fewer), r"its table of sizes \(stsz\) has 20 samples")


def test_empty_samples_that_repeat_a_picture(tmp_path):
    """A recorder writes an empty sample for a picture that did not change. The data of the others has no gap."""
    sound = tmp_path / "sound.mp4"
    ffmpeg(*_PICTURES, "-frames:v", "20", *_X264, sound)
    data = sound.read_bytes()
    stsz, stts = data.index(b"stsz"), data.index(b"stts")
    changed = bytearray(data)
    sizes = np.frombuffer(data, ">u4", 20, stsz + 16)
    # the last sample becomes empty, and its bytes go out of the mdat
    struct.pack_into(">I", changed, stsz + 16 + 4 * 19, 0)
    mdat = data.index(b"mdat") - 4
    (num_bytes,) = struct.unpack_from(">I", data, mdat)
    struct.pack_into(">I", changed, mdat, num_bytes - int(sizes[-1]))
    del changed[mdat + num_bytes - int(sizes[-1]) : mdat + num_bytes]
    assert mdat < stts
    assert answer(written(tmp_path / "x.mp4", changed)) == 19


# Transport streams


def segments_of(film: Path, folder: Path, *options: str) -> list[bytes]:
    """Return the segments of 0.6 s that a playlist of a film has."""
    ffmpeg("-i", film, *options, "-f", "hls", "-hls_time", "0.6", "-hls_list_size", "0", folder / "a.m3u8")
    return [(folder / f"a{number}.ts").read_bytes() for number in range(5)]


@pytest.mark.parametrize("codec", ["libx264", "libx265"])
def test_segment_left_out(film, tmp_path, codec):
    """The counter of the pictures continues by chance in 1 case of 16, and those of the tables and the sound do not."""
    hevc = ("-c:v", "libx265", "-preset", "ultrafast", "-x265-params", "log-level=none:keyint=15:scenecut=0")
    segments = segments_of(film, tmp_path, *(("-c", "copy") if codec == "libx264" else hevc))
    assert answer(written(tmp_path / "whole.ts", *segments)) == NUM_FRAMES
    for left_out in ([1], [2], [3], [1, 2], [2, 3], [1, 2, 3]):
        path = written(tmp_path / "x.ts", *(part for number, part in enumerate(segments) if number not in left_out))
        check_refused(path, "missing in the file|marks packet")


def test_recordings_that_are_joined(film, tmp_path):
    """Their counters begin at 0, or their clock is set back: nothing is missing."""
    for number in range(3):
        part = ("-ss", str(number), "-t", "1", "-i", film, *_X264, "-output_ts_offset", str(number))
        ffmpeg(*part, tmp_path / f"{number}.ts")
    parts = [(tmp_path / f"{number}.ts").read_bytes() for number in range(3)]
    assert answer(written(tmp_path / "later.ts", *parts)) == NUM_FRAMES
    segments = segments_of(film, tmp_path, "-c", "copy")
    assert answer(written(tmp_path / "earlier.ts", *segments[3:], *segments[1:3])) == 60


@pytest.mark.parametrize("num_frames", [15, 16, 17])
def test_recordings_whose_counters_begin_again(film, tmp_path, num_frames):
    """Each piece has its own muxer and a table for each frame. Behind 16 tables, the next one goes on by chance."""
    pieces = ("-f", "segment", "-segment_time", str(num_frames / 25 - 0.01), "-segment_format", "mpegts")
    encoded = ("-an", *_X264, "-g", str(num_frames), "-segment_format_options", "mpegts_flags=+pat_pmt_at_frames")
    ffmpeg("-i", film, *encoded, *pieces, tmp_path / "%d.ts")
    parts = [(tmp_path / f"{number}.ts").read_bytes() for number in range(5)]
    num_tables = sum(parts[0][at + 1 : at + 3] == b"\x40\0" for at in range(0, len(parts[0]), 188))
    assert num_tables == num_frames
    assert answer(written(tmp_path / "x.ts", *parts)) == min(NUM_FRAMES, 5 * num_frames)


def test_tables_of_another_part_before_the_pictures(film, tmp_path):
    """A cutter keeps the first tables. Their counters jump to the next tables, and the clock does not skip."""
    sound = tmp_path / "sound.ts"
    ffmpeg("-i", film, "-an", "-c", "copy", "-pat_period", "0.5", sound)
    data = sound.read_bytes()
    tables = [at for at in range(0, len(data), 188) if int.from_bytes(data[at + 1 : at + 3], "big") & 0x1FFF == 0]
    pictures_at = [at for at in range(tables[3], len(data), 188) if data[at + 1] & 0x5F == 0x41]
    num_frames = answer(written(tmp_path / "x.ts", data[: tables[0] + 2 * 188], data[pictures_at[1] :]))
    assert isinstance(num_frames, int)
    assert num_frames > 20


_MUXERS = {
    "lengths.ts": ("-an", "-omit_video_pes_length", "0"),
    "sound.ts": ("-omit_video_pes_length", "0", "-pat_period", "20", "-sdt_period", "20"),
    "film.m2ts": ("-omit_video_pes_length", "0"),
    "constant.ts": ("-an", "-omit_video_pes_length", "0", "-muxrate", "1500k"),
    "tables.ts": ("-an", "-omit_video_pes_length", "0", "-mpegts_flags", "+pat_pmt_at_frames"),
}


def with_jump(packets: list[bytes], sync_at: int) -> bool:
    """Return whether the counter of a track or a table jumps, as ISO/IEC 13818-1, 2.4.3.3 has it."""
    last: dict[int, int] = {}
    for packet in packets:
        pid, counter = int.from_bytes(packet[sync_at + 1 : sync_at + 3], "big") & 0x1FFF, packet[sync_at + 3]
        if counter & 0x10 and pid not in (17, 0x1FFF):
            if last.get(pid, counter - 1 & 15) != counter - 1 & 15:
                return True
            last[pid] = counter & 15
    return False


@pytest.mark.parametrize("name", _MUXERS)
def test_gap_from_one_picture_to_another(film, tmp_path, name):
    """Nothing of a picture is left over, and libavformat marks none. The first gap is inside the first picture."""
    ffmpeg("-i", film, "-c", "copy", *_MUXERS[name], tmp_path / name)
    data = (tmp_path / name).read_bytes()
    length, sync_at = (192, 4) if name.endswith(".m2ts") else (188, 0)
    packets = [data[at : at + length] for at in range(0, len(data), length)]
    start_of_picture = b"\x50\x11" if length == 192 else b"\x41\x00"  # flag and PID
    starts = [n for n, packet in enumerate(packets) if packet[sync_at + 1 : sync_at + 3] == start_of_picture]
    assert len(starts) == NUM_FRAMES
    chance = random.Random(0)
    gaps = [(starts[0] + 1, starts[1])]
    gaps += [(starts[n], starts[min(n + chance.choice((1, 2, 5, 20)), 74)]) for n in chance.sample(range(1, 73), 12)]
    silent = []
    for start, stop in gaps:
        left = packets[:start] + packets[stop:]
        result = answer(written(tmp_path / f"x.{name}", *left))
        if isinstance(result, int) and with_jump(left, sync_at):
            silent.append((start, stop))
    assert silent == []


def test_second_segment_left_out(film, tmp_path):
    """Tables come once a segment, and the pictures' counter goes on. Those of the tables jump before the first picture
    is whole, and the clock skips.
    """
    segments = segments_of(film, tmp_path, "-an", "-c", "copy", "-hls_segment_options", "pat_period=9:sdt_period=9")
    parts = [counted_from_0(segment, number) for number, segment in enumerate(segments, 3)]
    assert answer(written(tmp_path / "whole.ts", *parts)) == NUM_FRAMES
    check_refused(written(tmp_path / "x.ts", parts[0], *parts[2:]), "the counters of other tracks jump")


def counted_from_0(segment: bytes, number: int) -> bytes:
    """Number a segment's tables as the segment, and its pictures from 0 to 15 again and again, as packagers do."""
    packets, num_pictures = [], 0
    for at in range(0, len(segment), 188):
        packet = bytearray(segment[at : at + 188])
        pid = int.from_bytes(packet[1:3], "big") & 0x1FFF
        if packet[3] & 0x10:
            packet[3] = packet[3] & 0xF0 | ((num_pictures if pid == 0x100 else number) & 15)
            num_pictures += pid == 0x100
        packets.append(packet)
    for _ in range(-num_pictures % 16):  # stuffing, with one byte behind the last picture
        packets.append(bytearray(b"\x47\x01\x00" + bytes([0x30 | num_pictures & 15, 182, 0]) + b"\xff" * 181 + b"\0"))
        num_pictures += 1
    return b"".join(packets)


# Ogg


@pytest.mark.parametrize("codec", ["libvpx", "libtheora"])
def test_page_lost(film, tmp_path, codec):
    sound = tmp_path / "sound.ogv"
    ffmpeg("-i", film, "-c:v", codec, "-b:v", "300k", "-c:a", "libvorbis", "-page_duration", "200000", sound)
    data = sound.read_bytes()
    pages = [*(match.start() for match in re.finditer(b"OggS\0", data)), len(data)]
    assert len(pages) > 20
    for number in (6, len(pages) // 2, len(pages) - 4):
        path = written(tmp_path / "x.ogv", data[: pages[number]], data[pages[number + 1] :])
        check_refused(path, "page is missing in the file|frames? before packet")


def test_recording_of_a_live_ogg(film, tmp_path):
    """A server sends the headers, and then the pages of that moment."""
    sound = tmp_path / "sound.ogv"
    ffmpeg("-i", film, "-an", "-c:v", "libvpx", "-g", "15", "-b:v", "300k", sound)
    data = sound.read_bytes()
    pages = [*(match.start() for match in re.finditer(b"OggS\0", data)), len(data)]
    changed = bytearray()
    for number, (start, end) in enumerate(pairwise(pages)):
        page = bytearray(data[start:end])
        if number > 1:
            struct.pack_into("<I", page, 18, number + 5000)
            struct.pack_into("<I", page, 22, 0)
            struct.pack_into("<I", page, 22, checksum(page))
        changed += page
    assert answer(written(tmp_path / "x.ogv", changed)) == NUM_FRAMES


def checksum(page: bytearray) -> int:
    """Compute the checksum of an Ogg page (RFC 3533, 6, field 8)."""
    value = 0
    for byte in page:
        value ^= byte << 24
        for _ in range(8):
            value = (value << 1 ^ 0x04C11DB7 if value >> 31 else value << 1) & 0xFFFFFFFF
    return value


def pages_of(data: bytes) -> list[tuple[int, int]]:
    """Begin and end of each page."""
    return list(pairwise([*(match.start() for match in re.finditer(b"OggS\0", data)), len(data)]))


def test_last_page_of_the_pictures_lost(film, tmp_path):
    """The sound, which ends later, is marked as complete. If only the sound has no mark, nothing is missing."""
    sound = tmp_path / "sound.ogv"
    ffmpeg("-i", film, "-c:v", "libtheora", "-c:a", "libvorbis", sound)
    data = sound.read_bytes()
    pages = pages_of(data)
    streams = [
        [(at, end) for at, end in pages if data[at + 14 : at + 18] == data[n : n + 4]] for n in (14, pages[1][0] + 14)
    ]
    (start, end), last_of_sound = (of_stream[-1] for of_stream in streams)
    assert data[start + 5] & data[last_of_sound[0] + 5] & 4
    check_refused(written(tmp_path / "x.ogv", data[:start], data[end:]), "ends before its pictures do")
    page = bytearray(data[slice(*last_of_sound)])
    page[5] &= ~4
    struct.pack_into("<I", page, 22, 0)
    struct.pack_into("<I", page, 22, checksum(page))
    path = written(tmp_path / "y.ogv", data[: last_of_sound[0]], page, data[last_of_sound[1] :])
    assert answer(path) == NUM_FRAMES


@pytest.mark.parametrize("codec", ["libvpx", "libtheora"])
def test_page_that_comes_twice(film, tmp_path, codec):
    """libavformat shows its pictures twice."""
    sound = tmp_path / "sound.ogv"
    ffmpeg("-i", film, "-an", "-c:v", codec, "-b:v", "300k", "-page_duration", "200000", sound)
    data = sound.read_bytes()
    pages = pages_of(data)
    for number in (len(pages) // 2, len(pages) - 1):
        start, end = pages[number]
        path = written(tmp_path / "x.ogv", data[:end], data[start:end], data[end:])
        check_refused(path, r"page \d+ of a stream follows its page \d+|earlier time")


# AVI


@pytest.mark.parametrize("codec", ["msmpeg4", "mjpeg", "mpeg4"])
@pytest.mark.parametrize("num_bytes", [2, 512])
def test_bytes_of_an_avi_gone(film, tmp_path, codec, num_bytes):
    sound = tmp_path / "sound.avi"
    ffmpeg("-i", film, "-c:v", codec, "-q:v", "4", "-g", "15", "-c:a", "mp2", sound)
    data = sound.read_bytes()
    for part in (0.3, 0.5, 0.8):
        at = data.index(b"movi") + int(part * (len(data) - data.index(b"movi")))
        path = written(tmp_path / "x.avi", data[:at], data[at + num_bytes :])
        check_refused(path, "expected a chunk of its list of pictures|index \\(idx1\\)|inside of a chunk")
        check_refused(written(tmp_path / "y.avi", data[:at], bytes(num_bytes), data[at:]), "list of pictures")


def test_chunk_of_an_avi_gone(film, tmp_path):
    """A whole chunk, and the list's size is corrected: the index is longer."""
    sound = tmp_path / "sound.avi"
    ffmpeg("-i", film, "-an", "-c:v", "mjpeg", sound)
    data = bytearray(sound.read_bytes())
    movi = data.index(b"movi")
    start = data.index(b"00dc", len(data) // 2)
    end = data.index(b"00dc", start + 4)
    for at in (4, movi - 4):
        struct.pack_into("<I", data, at, struct.unpack_from("<I", data, at)[0] - (end - start))
    check_refused(written(tmp_path / "x.avi", data[:start], data[end:]), r"index \(idx1\)")


@pytest.mark.parametrize("options", [(), ("-write_index", "0")])
def test_place_of_a_lost_chunk_is_unknown(film, tmp_path, options):
    """The list of pictures is shorter than it states, and other chunks are behind it: the file was not cut off."""
    sound = tmp_path / "sound.avi"
    ffmpeg("-i", film, "-an", "-c:v", "mjpeg", *options, sound)
    data = sound.read_bytes()
    start = data.index(b"00dc", len(data) // 2)
    end = data.index(b"00dc", start + 4)
    path = written(tmp_path / "x.avi", data[:start], data[end:])
    check_refused(path, r"list of pictures \(movi\) states")


# FLV


@pytest.mark.parametrize("codec", ["flv", "copy"])
def test_bytes_of_an_flv_inserted_or_gone(film, tmp_path, codec):
    sound = tmp_path / "sound.flv"
    ffmpeg("-i", film, "-c:v", codec, "-g", "15", "-c:a", "aac", sound)
    data = sound.read_bytes()
    for part in (0.2, 0.5, 0.9):
        at = int(part * len(data))
        check_refused(
            written(tmp_path / "x.flv", data[:at], b"0123456789abcdef", data[at:]),
            "tag|mismatch|of a track that the headers",
        )
        check_refused(
            written(tmp_path / "y.flv", data[:at], data[at + 16 :]), "tag|mismatch|of a track that the headers"
        )


def test_tag_of_an_flv_lost(film, tmp_path):
    """The file is shorter than its metadata states, although its end is there."""
    sound = tmp_path / "sound.flv"
    ffmpeg("-i", film, "-c:v", "flv", "-c:a", "aac", sound)
    data = sound.read_bytes()
    starts = [13]
    while starts[-1] < len(data):
        starts.append(starts[-1] + 15 + int.from_bytes(data[starts[-1] + 1 : starts[-1] + 4], "big"))
    for number in (20, 60, 110):
        path = written(tmp_path / "x.flv", data[: starts[number]], data[starts[number + 1] :])
        check_refused(path, "its metadata states")


# FFmpeg's word

_BELIEVED = {
    "film.y4m": ("-an",),
    "film.wmv": ("-c:v", "wmv2", "-q:v", "4", "-g", "15", "-c:a", "wmav2"),
    "film.gif": ("-vf", "fps=5"),
    "film.ivf": ("-an", "-c:v", "libvpx", "-b:v", "300k"),
    "film.nut": ("-c", "copy"),
}


@pytest.mark.parametrize("name", _BELIEVED)
def test_other_containers_are_called_reported(film, tmp_path, name):
    """Their numbers are not compared, as those of others are."""
    path = tmp_path / name
    ffmpeg("-i", film, *_BELIEVED[name], path)
    facts = probe(str(path), root="r", relative_path=name)
    assert facts.packets.completeness == "reported"
    assert answer(path) == facts.packets.num_frames > 10


def test_kind_of_a_container_is_in_index_and_info(film, tmp_path, run_cli):
    videos = tmp_path / "videos"
    videos.mkdir()
    for name in ("a.mkv", "b.nut", "c.ts"):
        ffmpeg("-i", film, "-c", "copy", videos / name)
    run_cli("scan", "videos", cwd=tmp_path)
    run_cli("build", cwd=tmp_path)
    kinds = [record.packets.completeness for record in cc.read_index(tmp_path / "index.json")]
    assert kinds == ["proved", "reported", "proved"]
    assert re.search(r"completeness +proved 2, reported 1", run_cli("info", "index.json", cwd=tmp_path).stdout)
    said = [run_cli("info", "cache", name, cwd=tmp_path).stdout for name in ("a.mkv", "b.nut")]
    assert ["completeness reported by FFmpeg" in text for text in said] == [False, True]


# Files in which nothing is missing

_SOUND_FILES = {name: ("-c", "copy", *options) for name, options in _FRAGMENTED.items()} | {
    "front.mov": ("-c", "copy", "-movflags", "faststart"),
    "hints.mp4": ("-c", "copy", "-movflags", "rtphint"),
    "h264.ts": ("-c", "copy"),
    "stuffed.ts": ("-c", "copy", "-muxrate", "3M"),
    "h264.m2ts": ("-c", "copy", "-mpegts_m2ts_mode", "1"),
    "vp8.ogv": ("-c:v", "libvpx", "-b:v", "300k", "-c:a", "libopus"),
    "mpeg4.avi": ("-c:v", "mpeg4", "-c:a", "mp2"),
    "noindex.avi": ("-c:v", "mpeg4", "-an", "-write_index", "0"),
    "h264.avi": ("-c", "copy"),
    "raw.avi": ("-c:v", "rawvideo", "-c:a", "pcm_s16le"),
    "flv1.flv": ("-c:v", "flv", "-c:a", "aac"),
    "h264.flv": ("-c", "copy"),
    "keyframes.flv": ("-c", "copy", "-flvflags", "add_keyframe_index"),
    "wmv1.asf": ("-c:v", "wmv1", "-c:a", "wmav2", "-packet_size", "1000"),
    "msmpeg4.asf": ("-c:v", "msmpeg4", "-an"),
    "vp8.webm": ("-c:v", "libvpx", "-b:v", "300k", "-c:a", "libopus"),
}


@pytest.mark.parametrize("name", _SOUND_FILES)
def test_sound_files_of_each_muxer(film, tmp_path, name):
    path = tmp_path / name
    ffmpeg("-i", film, *_SOUND_FILES[name], path)
    assert answer(path) == NUM_FRAMES


# All containers


@pytest.mark.parametrize("name", [*_FRAGMENTED, "front.mov", "h264.ts", "vp8.ogv", "mpeg4.avi", "flv1.flv"])
def test_mutants_end_in_one_family_of_exceptions(film, tmp_path, name):
    """Other bytes in the headers: a reader finds a loss, or it finds nothing."""
    ffmpeg("-i", film, *_SOUND_FILES[name], tmp_path / name)
    data = (tmp_path / name).read_bytes()
    with open_media(str(tmp_path / name)) as media:
        container, track = media.container.format.name, media.require_video().id
    chance = random.Random(0)
    for _ in range(60):
        mutant = bytearray(data[: chance.choice((len(data), chance.randrange(len(data))))])
        for _ in range(chance.randrange(1, 40)):
            mutant[chance.randrange(min(len(mutant), chance.choice((300, 3000, len(mutant)))))] = chance.choice(
                (0, 1, 255)
            )
        path = written(tmp_path / f"x.{name}", mutant)
        loss = first_loss(str(path), container, track=track)
        assert loss is None or (loss.what and (loss.at is None or loss.at >= 0))


def test_segments_of_a_damaged_file(film, tmp_path):
    """All packets of the file are read to find a segment. A loss in another part of it is not accepted."""
    ffmpeg("-i", film, "-an", "-c", "copy", *_FRAGMENTED["base.mp4"], tmp_path / "sound.mp4")
    data = (tmp_path / "sound.mp4").read_bytes()
    start, end = fragments_of(data)[3]
    path = written(tmp_path / "x.mp4", data[:start], data[end:])
    with pytest.raises(MediaError, match="fragments are missing in the file"):
        ExactFrames(str(path))
