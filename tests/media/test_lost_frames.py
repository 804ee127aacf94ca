"""Files that lost a part: the build finds it and says how much, and what only looks damaged is cached."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from conftest import write_video
from helpers.ffmpeg import ffmpeg, ffprobe_column

import chordcache as cc
from chordcache.errors import MediaError
from chordcache.media.checks.bitstream import packet_reader
from chordcache.media.decoding import decode_frames
from chordcache.media.demux import open_media
from chordcache.media.probe import probe
from chordcache.sources.mapped_mp4 import MappedMP4Source

NUM_FRAMES = 60
_PIXELS = {"prores.mov": "yuv422p10le", "dnxhr.mov": "yuv422p", "mjpeg.avi": "yuvj420p", "huffyuv.avi": "yuv422p"}
_X265 = "log-level=none:keyint=20:bframes=3"


def textured(number: int, width: int, height: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Noise that moves: a picture that lacks its reference is a wrong one."""
    noise = np.random.default_rng(0).integers(40, 200, (height, 2 * width), np.uint8)
    y = np.roll(noise, -3 * number, axis=1)[:, :width]
    return y, y[: height // 2, : width // 2], y[height // 2 :, width // 2 :]


@pytest.fixture(scope="module")
def films(tmp_path_factory) -> Path:
    """One film in several codecs and containers."""
    folder = tmp_path_factory.mktemp("films")
    film: dict[str, Any] = {"num_frames": NUM_FRAMES, "size": (128, 96), "planes": textured}
    h264 = {"options": {"crf": "24", "bf": "2", "x264-params": "keyint=20:scenecut=0"}}
    hevc = {"codec": "libx265", "options": {"x265-params": _X265, "crf": "28"}}
    write_video(folder / "h264.mp4", **film, **h264)
    write_video(folder / "hevc.mp4", **film, **hevc)
    no_cuts = ("-bf", "2", "-g", "20", "-sc_threshold", "1000000000")
    for name, source, *options in (
        ("h264.ts", "h264.mp4", "-c", "copy"),
        ("hevc.ts", "hevc.mp4", "-c", "copy"),
        ("h264.flv", "h264.mp4", "-c", "copy"),
        ("raw.hevc", "hevc.mp4", "-c", "copy"),
        ("mpeg2.ts", "h264.mp4", "-c:v", "mpeg2video", "-q:v", "4", *no_cuts),
        ("mpeg2.mpg", "h264.mp4", "-c:v", "mpeg2video", "-q:v", "4", *no_cuts),
        ("mpeg4.avi", "h264.mp4", "-c:v", "mpeg4", "-q:v", "4", *no_cuts),
        ("theora.ogv", "h264.mp4", "-c:v", "libtheora", "-q:v", "6", "-g", "20"),
        ("vp8.webm", "h264.mp4", "-c:v", "libvpx", "-b:v", "500k", "-g", "20", "-deadline", "realtime"),
    ):
        ffmpeg("-i", folder / source, *options, folder / name)
    return folder


def answer(path: Path) -> MediaError | list[float]:
    """Return the error that the build reports for a file, or the times of its frames."""
    try:
        with open_media(str(path)) as media:
            return [frame.pts_seconds for frame in decode_frames(media)]
    except MediaError as error:
        return error


def remuxed(source: Path, out: Path, leave_out: Callable[[int, Any], bool]) -> Path:
    """Copy a film without some of its packets."""
    with av.open(str(source)) as read, av.open(str(out), "w") as written:
        stream = written.add_stream_from_template(read.streams.video[0])
        for number, packet in enumerate(read.demux(read.streams.video[0])):
            if packet.size and not leave_out(number, packet):
                packet.stream = stream
                written.mux(packet)
    return out


def references(path: Path) -> list[int]:
    """Numbers of packets in the middle of a film, P pictures among them, that are larger than those around them."""
    with av.open(str(path)) as container:
        sizes = [packet.size for packet in container.demux(container.streams.video[0]) if packet.size]
    middle = sizes[22:38]
    return [22 + number for number in np.argsort(middle)[-3:].tolist()]


# Frames that vanish


def test_lost_frames_of_hevc_are_counted(films, tmp_path):
    """A later keyframe makes it go on: the number is that of the frames which libavcodec leaves out."""
    number = references(films / "hevc.mp4")[-1]
    path = remuxed(films / "hevc.mp4", tmp_path / "x.mp4", lambda n, _: n == number)
    with av.open(str(path)) as container:
        num_decoded = sum(1 for _ in container.decode(container.streams.video[0]))
    result = answer(path)
    assert isinstance(result, MediaError)
    assert 0 < num_decoded < NUM_FRAMES - 1
    assert f"lost {NUM_FRAMES - 1 - num_decoded} of {NUM_FRAMES - 1} frames" in result.message
    assert "hevc: Could not find ref with POC" in result.message
    assert result.cause == "decode"


@pytest.mark.parametrize("name", ["h264.ts", "hevc.ts", "mpeg2.ts"])
def test_one_transport_packet_lost(films, tmp_path, name):
    """Every packet of the track, but those that hold nothing else than stuffing."""
    data = (films / name).read_bytes()
    packets = [data[at : at + 188] for at in range(0, len(data), 188)]
    of_video = [n for n, packet in enumerate(packets) if int.from_bytes(packet[1:3], "big") & 0x1FFF == 0x100]
    sound = answer(films / name)
    silent = []
    for number in random.Random(0).sample(of_video[3:], 40):
        path = tmp_path / name
        path.write_bytes(b"".join(packets[:number] + packets[number + 1 :]))
        if not isinstance(answer(path), MediaError):
            silent.append(number)
    assert len(sound) == NUM_FRAMES
    assert silent == []


def test_raw_picture_without_its_reference(films, tmp_path):
    data = (films / "raw.hevc").read_bytes()
    # P and B pictures that others refer to
    starts = [match.start() for match in re.finditer(rb"\x00\x00\x01\x02\x01", data)]
    first, second = starts[len(starts) // 2 : len(starts) // 2 + 2]
    (tmp_path / "x.hevc").write_bytes(data[:first] + data[second:])
    result = answer(tmp_path / "x.hevc")
    assert isinstance(result, MediaError)
    assert re.search(r"lost \d+ of \d+ frames", result.message)


def test_zeros_in_an_ogg(films, tmp_path):
    """The checksum of a page is wrong: libavformat leaves it out, here while it opens the file."""
    data = bytearray((films / "theora.ogv").read_bytes())
    data[len(data) // 4 : len(data) // 4 + 200] = bytes(200)
    (tmp_path / "x.ogv").write_bytes(data)
    result = answer(tmp_path / "x.ogv")
    assert isinstance(result, MediaError)
    assert "CRC mismatch" in result.message
    assert re.search(rf"lost \d+ of {NUM_FRAMES} frames", result.message)


def test_flv_cut_between_two_tags(films, tmp_path):
    """Only the duration in its header shows it."""
    data = (films / "h264.flv").read_bytes()
    at = 13
    while at < len(data) // 2:
        at += 11 + int.from_bytes(data[at + 1 : at + 4], "big") + 4
    (tmp_path / "x.flv").write_bytes(data[:at])
    result = answer(tmp_path / "x.flv")
    assert isinstance(result, MediaError)
    assert result.cause == "truncated"
    assert "its header promises 2.4" in result.message
    assert re.search(r"lost \d+ of (59|60|61) frames", result.message)


def test_mp4_cut_between_two_samples(films, tmp_path):
    """libavformat reads nothing behind the end of a file, and says nothing of it."""
    front = tmp_path / "front.mp4"
    ffmpeg("-i", films / "h264.mp4", "-c", "copy", "-movflags", "+faststart", front)
    with av.open(str(front)) as container:
        at = [packet.pos for packet in container.demux(container.streams.video[0]) if packet.size][40]
    (tmp_path / "x.mp4").write_bytes(front.read_bytes()[:at])
    result = answer(tmp_path / "x.mp4")
    assert isinstance(result, MediaError)
    assert (result.cause, result.message) == (
        "truncated",
        "lost 20 of 60 frames; 20 samples lie behind the end of the file",
    )


def test_clock_without_a_unit(tmp_path):
    """The message names the field that is wrong, not an empty track."""
    path = write_video(tmp_path / "x.mp4", num_frames=6, options={"bf": "0"})
    data = bytearray(path.read_bytes())
    at = data.index(b"mdhd") + 16
    assert int.from_bytes(data[at : at + 4], "big") > 0
    data[at : at + 4] = bytes(4)
    path.write_bytes(data)
    result = answer(path)
    assert isinstance(result, MediaError)
    assert result.cause == "decode"
    assert "Invalid mdhd time scale 0" in result.message


def test_zeros_where_a_disk_left_a_hole(films, tmp_path):
    """Neither decoder says anything of it."""
    for name in ("h264.mp4", "hevc.mp4"):
        with av.open(str(films / name)) as container:
            packet = max(container.demux(container.streams.video[0]), key=lambda candidate: candidate.size)
            at = packet.pos + packet.size // 2
        data = bytearray((films / name).read_bytes())
        data[at : at + 100] = bytes(100)
        (tmp_path / name).write_bytes(data)
        result = answer(tmp_path / name)
        assert isinstance(result, MediaError)
        assert "zero bytes in a packet" in result.message or "damaged" in result.message


def test_table_of_samples_that_lies(films, tmp_path):
    """A ctts that shows a picture before the one that the decoder has before it."""
    data = bytearray((films / "h264.mp4").read_bytes())
    at = data.index(b"ctts") + 12
    entries = np.frombuffer(data, ">u4", 2 * int.from_bytes(data[at - 4 : at], "big"), at).reshape(-1, 2).copy()
    entries[4, 1], entries[5, 1] = entries[5, 1], entries[4, 1]
    data[at : at + entries.nbytes] = entries.tobytes()
    (tmp_path / "x.mp4").write_bytes(data)
    result = answer(tmp_path / "x.mp4")
    assert isinstance(result, MediaError)
    assert "earlier time than the one shown before it" in result.message


def test_first_keyframe_destroyed(films, tmp_path):
    """Its index calls it a keyframe: the file is damaged, and not one that begins in the middle."""
    with av.open(str(films / "vp8.webm")) as container:
        packet = next(container.demux(container.streams.video[0]))
        at = packet.pos
    data = bytearray((films / "vp8.webm").read_bytes())
    start = data.index(bytes(packet)[:8], at)
    data[start] |= 1
    (tmp_path / "x.webm").write_bytes(data)
    result = answer(tmp_path / "x.webm")
    assert isinstance(result, MediaError)
    assert "called a keyframe" in result.message


# What is legal stays legal


@pytest.mark.parametrize("name", ["h264.ts", "hevc.ts", "mpeg2.ts", "mpeg2.mpg", "mpeg4.avi"])
def test_stream_that_begins_in_the_middle(films, tmp_path, run_cli, name):
    """It is cached from the first whole frame on; index, sidecar and summaries say how many were skipped."""
    videos = tmp_path / "videos"
    videos.mkdir()
    remuxed(films / name, videos / name, lambda number, _: number < 7)
    sound = answer(films / name)
    scanned = run_cli("scan", "videos", "--json", cwd=tmp_path)
    built = run_cli("build", "--json", cwd=tmp_path)
    assert (scanned.returncode, built.returncode) == (0, 0), built.stderr
    (record,) = cc.read_index(tmp_path / "index.json")
    with cc.open_cache(tmp_path / "cache") as cache:
        (video,) = cache
        num_skipped = video.sidecar.num_frames_skipped
        assert NUM_FRAMES - 7 - num_skipped == video.num_frames == record.packets.num_frames > 30
        assert 13 <= num_skipped <= 16  # to the keyframe 20, and pictures after it that are shown before it
        assert record.packets.num_frames_skipped == num_skipped
        assert record.packets.start_seconds == pytest.approx(video.start_seconds)
        assert record.packets.keyframe_numbers[0] == 0
        steps = np.diff(video.pts_seconds)
        assert steps == pytest.approx(0.04, abs=1e-6)
        assert "begins in the middle of a group of pictures" in " ".join(video.sidecar.notes)
    assert len(sound) == NUM_FRAMES
    assert [json.loads(done.stdout)["num_frames_skipped"] for done in (scanned, built)] == [num_skipped] * 2
    said = run_cli("scan", "videos", "-o", "again.json", cwd=tmp_path).stdout
    assert f"{num_skipped} frames before a first keyframe skipped" in said


def test_sources_begin_where_the_build_does(films, tmp_path):
    for name in ("h264.ts", "hevc.ts", "mpeg2.ts"):
        path = remuxed(films / name, tmp_path / name, lambda number, _: number < 7)
        with open_media(str(path)) as media:
            times = [frame.pts_seconds for frame in decode_frames(media)]
        for source_class in (cc.MP4Source, MappedMP4Source):
            with source_class().open(str(path)) as source:
                assert source.pts_seconds == pytest.approx(times)
                assert len(source.get_frames(range(source.num_frames))) == len(times)


def test_file_without_a_keyframe(films, tmp_path):
    path = remuxed(films / "h264.ts", tmp_path / "x.ts", lambda number, _: not 2 <= number < 15)
    result = answer(path)
    assert isinstance(result, MediaError)
    assert (result.cause, result.message) == (
        "no-frames",
        "the 13 packets of the video track contain no keyframe",
    )


def test_chained_ogg_is_named(films, tmp_path):
    data = (films / "theora.ogv").read_bytes()
    (tmp_path / "x.ogv").write_bytes(2 * data)
    result = answer(tmp_path / "x.ogv")
    assert isinstance(result, MediaError)
    assert (result.cause, result.message.partition(":")[0]) == ("refused-format", "chained Ogg")


_GOP = ("-g", "12", "-bf", "2")
_SOUND_MEDIA = {
    "h264.mp4": ("libx264", *_GOP),
    "h264.mov": ("libx264", "-x264-params", "keyint=8:bframes=3:b-pyramid=normal:open-gop=1:ref=4"),
    "h264.mkv": ("libx264", "-x264-params", "intra-refresh=1:bframes=0:keyint=10"),
    "h264.ts": ("libx264", "-x264-params", "slices=4:keyint=12", "-flags", "+ildct+ilme"),
    "h264.flv": ("libx264", "-tune", "zerolatency"),
    "h264.264": ("libx264", "-x264-params", "keyint=10:bframes=3:tff=1"),
    "hevc.mp4": ("libx265", "-x265-params", "log-level=none:open-gop=1:keyint=8:bframes=3"),
    "hevc.mkv": ("libx265", "-x265-params", "log-level=none:keyint=10:no-open-gop=1:b-pyramid=0"),
    "hevc.ts": ("libx265", "-x265-params", "log-level=none:keyint=10:repeat-headers=1"),
    "hevc.265": ("libx265", "-x265-params", "log-level=none:keyint=10"),
    "mpeg1.mpg": ("mpeg1video", *_GOP),
    "mpeg2.vob": ("mpeg2video", *_GOP, "-flags", "+ildct+ilme"),
    "mpeg2.ts": ("mpeg2video", *_GOP),
    "mpeg2.mxf": ("mpeg2video", *_GOP),
    "mpeg2.m2v": ("mpeg2video", *_GOP, "-f", "mpeg2video"),
    "mpeg4.mp4": ("mpeg4", *_GOP),
    "mpeg4.avi": ("mpeg4", *_GOP),
    "mpeg4.mkv": ("mpeg4", "-b:v", "200k", "-minrate", "200k", "-maxrate", "200k", "-bufsize", "40k"),
    "xvid.avi": ("libxvid", *_GOP),
    "msmpeg4.avi": ("msmpeg4",),
    "wmv2.asf": ("wmv2",),
    "flv1.flv": ("flv",),
    "h263.3gp": ("h263", "-s", "176x144"),
    "theora.ogv": ("libtheora", "-g", "12"),
    "vp8.webm": ("libvpx", "-b:v", "300k", "-auto-alt-ref", "1", "-lag-in-frames", "16"),
    "vp9.webm": ("libvpx-vp9", "-b:v", "300k", "-auto-alt-ref", "1", "-lag-in-frames", "16"),
    "vp9.mp4": ("libvpx-vp9", "-b:v", "200k", "-deadline", "realtime"),
    "av1.webm": ("libsvtav1", "-preset", "12"),
    "av1.mp4": ("libaom-av1", "-cpu-used", "8", "-b:v", "200k"),
    "prores.mov": ("prores_ks",),
    "dnxhr.mov": ("dnxhd", "-profile:v", "dnxhr_lb", "-s", "256x120"),
    "mjpeg.avi": ("mjpeg", "-q:v", "4"),
    "ffv1.mkv": ("ffv1", "-level", "3"),
    "huffyuv.avi": ("huffyuv",),
    "raw.nut": ("rawvideo",),
}
"""Encoders and containers, each with what it can do that is legal and rare."""


@pytest.mark.parametrize("name", _SOUND_MEDIA)
def test_no_false_alarm(films, tmp_path, name):
    """As many frames as ffmpeg shows, in the build and in the index."""
    path = tmp_path / name
    encoder, *options = _SOUND_MEDIA[name]
    pixels = _PIXELS.get(name, "yuv420p")
    ffmpeg("-i", films / "h264.mp4", "-pix_fmt", pixels, "-c:v", encoder, *options, path)
    result = answer(path)
    assert not isinstance(result, MediaError), result
    facts = probe(str(path), root="r", relative_path=name)
    assert facts.error is None
    assert len(result) == facts.packets.num_frames == num_frames_of_ffmpeg(path)
    assert facts.packets.num_frames_skipped == 0


def num_frames_of_ffmpeg(path: Path) -> int:
    return int(ffprobe_column(path, "stream=nb_read_frames", "-count_frames")[0])


# Facts and words


def test_pictures_with_one_time(tmp_path):
    """Five pictures, all at 0 s: cache and sources agree that there are five."""
    path = write_video(tmp_path / "x.mp4", num_frames=5, gop=1, options={"bf": "0"})
    data = bytearray(path.read_bytes())
    at = data.index(b"stts") + 8
    assert data[at : at + 8] == bytes((0, 0, 0, 1, 0, 0, 0, 5))  # one entry, of five samples
    data[at + 8 : at + 12] = bytes(4)
    path.write_bytes(data)
    result = answer(path)
    assert not isinstance(result, MediaError)
    assert len(result) == 5
    assert len(set(result)) == 1
    assert probe(str(path), root="r", relative_path="x.mp4").packets.num_frames == 5
    for source_class in (cc.MP4Source, MappedMP4Source):
        with source_class().open(str(path)) as source:
            assert source.num_frames == 5
            assert len(source.get_frames([4, 0, 2])) == 3


def test_edit_list_that_cuts_off_everything(tmp_path):
    path = write_video(tmp_path / "x.mp4", num_frames=5, options={"bf": "0"})
    data = bytearray(path.read_bytes())
    at = data.index(b"elst") + 8
    assert int.from_bytes(data[at : at + 4], "big") == 1
    data[at + 8 : at + 12] = (1 << 30).to_bytes(4, "big")  # begin behind the last sample
    path.write_bytes(data)
    result = answer(path)
    assert isinstance(result, MediaError)
    assert result.cause == "no-frames"
    assert result.message == "its edit list cuts off all of the 5 packets of the video track"


def test_headers_that_no_decoder_takes(films, tmp_path):
    """Theora's setup header with zeros in it."""
    path = tmp_path / "x.mkv"
    ffmpeg("-i", films / "theora.ogv", "-c", "copy", "-write_crc32", "0", path)
    data = bytearray(path.read_bytes())
    at = data.index(b"\x82theora") + 7
    data[at : at + 400] = bytes(400)
    path.write_bytes(data)
    result = answer(path)
    assert isinstance(result, MediaError)
    assert "its decoder cannot be opened" in result.message
    assert "Operation not permitted" not in result.message


# Headers of packets


@pytest.mark.parametrize("interlaced", [False, True])
def test_frame_numbers_of_sound_streams_have_no_gaps(tmp_path, interlaced):
    x264 = "keyint=12:bframes=3:b-pyramid=normal:ref=4" + (":tff=1" if interlaced else "")
    path = write_video(tmp_path / "x.mp4", num_frames=40, planes=textured, options={"x264-params": x264})
    with av.open(str(path)) as container:
        video = container.streams.video[0]
        reader = packet_reader("h264", video.codec_context.extradata)
        packets = [memoryview(packet) for packet in container.demux(video) if packet.size]
        assert [reader.num_left_out(packet) for packet in packets] == [0] * 40
        assert [reader.is_hidden(packet) for packet in packets] == [False] * 40


def reference_packets(path: Path) -> Iterator[int]:
    """Numbers of packets that hold a P picture which others refer to, as ffprobe calls its NAL unit."""
    with av.open(str(path)) as container:
        for number, packet in enumerate(container.demux(container.streams.video[0])):
            if packet.size and bytes(packet)[4] >> 5 and bytes(packet)[4] & 31 == 1:
                yield number


def test_every_lost_reference_of_h264_is_found(films, tmp_path):
    """Also where the decoder shows other pictures in its place and says nothing."""
    silent = []
    for number in reference_packets(films / "h264.mp4"):
        path = remuxed(films / "h264.mp4", tmp_path / "x.mp4", lambda n, _, left_out=number: n == left_out)
        result = answer(path)
        if not isinstance(result, MediaError):
            silent.append(number)
    # the loss of the last one cannot be seen; nor of one with a keyframe behind it
    assert len(silent) <= 3, silent
