"""Streams from real servers on loopback, and a device of libavdevice."""

from __future__ import annotations

import functools
import http.server
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers import rtsp_server
from helpers.ffmpeg import decode_samples, ffmpeg, ffprobe

import chordcache as cc
from chordcache.sources.live import CameraSource, StreamSource

NUM_FRAMES = 50


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def media(make_video: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    make_video(folder / "a.mp4", num_frames=NUM_FRAMES, options={"bf": "2"}, audio=True)
    hls = ("-f", "hls", "-hls_time", "0.5", "-hls_playlist_type", "vod")
    ffmpeg("-i", folder / "a.mp4", "-c", "copy", *hls, folder / "a.m3u8")
    assert len(list(folder.glob("*.ts"))) > 1
    return folder


@pytest.fixture(scope="module")
def server(media: Path) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(media))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


@pytest.fixture(scope="module")
def expected(media: Path) -> np.ndarray:
    with cc.MP4Source().open(media / "a.mp4") as source:
        return source.get_frames(range(NUM_FRAMES))


@pytest.mark.parametrize("name", ["a.mp4", "a.m3u8"])
def test_http_and_hls_show_the_frames_of_the_file(name: str, server: str, expected: np.ndarray) -> None:
    with StreamSource(buffer_frames=8).open(f"{server}/{name}") as source:
        assert source.fps == pytest.approx(25)
        for number in range(NUM_FRAMES):
            assert np.array_equal(source.get_frame(number), expected[number]), number
        assert source.num_frames == NUM_FRAMES
        assert np.allclose(np.diff(source.pts_seconds), 1 / 25, atol=1e-4)
        assert len(source.pts_seconds) == 8
        with pytest.raises(
            IndexError, match=rf"got {NUM_FRAMES}, expected .* \[0, {NUM_FRAMES}\) for the stream, which has ended"
        ):
            source.get_frame(NUM_FRAMES)


def test_the_buffer_is_bounded_and_goes_one_way(server: str, expected: np.ndarray) -> None:
    with StreamSource(buffer_frames=4).open(f"{server}/a.mp4") as source:
        frames = source.get_frames([6, 5, 6])
        assert np.array_equal(frames, expected[[6, 5, 6]])
        assert np.array_equal(source.get_frame(6), expected[6])
        time.sleep(0.3)  # time enough to receive it all, were there no bound
        assert source.num_frames <= 6 + 1 + 4
        source.get_frame(20)
        with pytest.raises(IndexError, match="frame 3 has left the buffer, which holds 4"):
            source.get_frame(3)
        with pytest.raises(IndexError, match="of at least 0"):
            source.get_frame(-1)


def test_rtsp_shows_the_frames_of_the_file(media: Path, expected: np.ndarray) -> None:
    with rtsp_server.serving(media / "a.mp4") as url, StreamSource(timeout_seconds=20).open(url) as source:
        for number in range(40):
            assert np.array_equal(source.get_frame(number), expected[number]), number


@pytest.mark.parametrize("name", ["a.mp4", "a.m3u8"])
def test_the_sound_is_what_ffmpeg_decodes(name: str, media: Path, server: str) -> None:
    (stream,) = ffprobe(media / name, "stream=start_time,channels,sample_rate", "-select_streams", "a")["streams"][:1]
    begin, rate = float(stream["start_time"]), int(stream["sample_rate"])
    expected = decode_samples(media / name, stream["channels"], "-map", "0:a:0")
    # In a segment of HLS, sound comes up to 0.7 s after the frames of the same time
    with StreamSource(buffer_frames=24).open(f"{server}/{name}") as source:
        assert source.sample_rate == rate
        for number in range(0, NUM_FRAMES - 5, 5):
            source.get_frame(number)
            start = float(source.pts_seconds[0])
            chunk = source.get_audio_chunk(start, 0.1)
            assert (chunk.shape, chunk.dtype) == ((round(0.1 * rate), stream["channels"]), np.float32)
            first = round((start - begin) * rate)
            kept = slice(max(0, -first), None)  # there may be silence before the first sample
            assert not chunk[: kept.start].any()
            part = expected[max(0, first) : first + len(chunk)]
            assert len(part) == len(chunk[kept]) > 0
            assert np.allclose(chunk[kept], part, atol=1e-4)
            assert part.std() > 0.01


def test_the_sound_that_is_kept_is_bounded(server: str) -> None:
    with StreamSource(buffer_frames=8, sound_seconds=0.5).open(f"{server}/a.mp4") as source:
        source.get_audio_chunk(0, 0.1)
        with pytest.raises(cc.UsageError, match="got start 0 and duration 0.6, expected .* 0 to 0.5. For more, raise"):
            source.get_audio_chunk(0, 0.6)
        with pytest.raises(cc.UsageError, match="the buffer is full of frames. Read later frames first"):
            source.get_audio_chunk(1.5, 0.1)
        source.get_frame(40)
        with pytest.raises(IndexError, match="sound at 0 s has left the buffer, which begins at"):
            source.get_audio_chunk(0, 0.1)
        assert source.get_audio_chunk(1.7, 0.1).std() > 0.01  # between this frame and the last that has room


def test_streams_without_sound(media: Path, server: str) -> None:
    ffmpeg("-i", media / "a.mp4", "-an", "-c", "copy", media / "silent.mp4")
    with StreamSource().open(f"{server}/silent.mp4") as source:
        with pytest.raises(cc.NotFoundError, match="does not have a sound track"):
            source.get_audio_chunk(0, 1)
        with pytest.raises(cc.NotFoundError, match="does not have a sound track"):
            _ = source.sample_rate
    with StreamSource(sound_seconds=0).open(f"{server}/a.mp4") as source:
        with pytest.raises(cc.NotFoundError, match="this StreamSource does not keep sound"):
            source.get_audio_chunk(0, 0)
        assert source.get_frame(3).shape == (48, 64, 3)


def test_a_server_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://user:secret@127.0.0.1:{silent.getsockname()[1]}/a.mp4"
        with pytest.raises(cc.MediaError, match=r"\*\*\*@127.0.0.1") as caught:
            StreamSource(timeout_seconds=0.5).open(url)
        assert "secret" not in str(caught.value)


def test_a_stream_that_stops(media: Path) -> None:
    data = (media / "a0.ts").read_bytes()
    done = threading.Event()

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Type: video/mp2t\r\n\r\n" + data)
            done.wait(20)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/live.ts"
        with StreamSource(timeout_seconds=1).open(url) as source:
            assert source.get_frame(3).shape == (48, 64, 3)
            with pytest.raises(cc.MediaError, match=r"cannot read 'http.*live.ts': nothing came after packet"):
                source.get_frames(range(4, NUM_FRAMES))
        done.set()


def test_a_playlist_is_not_followed_to_files(media: Path, server: str) -> None:
    (media / "evil.m3u8").write_text(
        f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://{media / 'a0.ts'}\n#EXT-X-ENDLIST\n"
    )
    with pytest.raises(cc.MediaError, match=r"cannot read 'http.*evil.m3u8'"):
        StreamSource(timeout_seconds=2).open(f"{server}/evil.m3u8")


@pytest.mark.parametrize("url", ["a.mp4", "file:///etc/passwd", "concat:a|b", "ftp://x/y", "rtmp://x/y"])
def test_strings_that_are_not_an_address_of_a_stream(url: str) -> None:
    with pytest.raises(cc.UsageError, match="expected an address with http, https, rtsp, rtsps"):
        StreamSource().open(url)


def test_missing_at_the_server(server: str) -> None:
    source = StreamSource()
    with pytest.raises(cc.MediaError, match=r"cannot read 'http.*missing.mp4': the source cannot be opened"):
        source.open(f"{server}/missing.mp4")
    assert pickle.loads(pickle.dumps(source)) is not source


CLOCK = "color=black:size=64x48:rate=50,geq=lum='N':cb=128:cr=128,realtime"
"""A device whose every frame is brighter than the one before, 50 a second"""


def test_the_newest_frame_wins() -> None:
    with CameraSource("lavfi").open(CLOCK) as camera:
        assert camera.fps == pytest.approx(50)
        first = camera.get_frame(0)
        assert first.shape == (48, 64, 3)
        time.sleep(0.5)
        num_seen = camera.num_frames
        assert num_seen > 5
        later = camera.get_frame(0)  # not frame 0, which is over
        assert later.mean() > first.mean() + 4
        assert camera.get_frame(camera.num_frames).mean() >= later.mean()
        assert camera.num_frames > num_seen
        assert len(camera.pts_seconds) == 1
        with pytest.raises(cc.NotFoundError, match="this CameraSource does not keep sound"):
            camera.get_audio_chunk(0, 1)


def test_a_camera_that_does_not_exist() -> None:
    with pytest.raises(cc.MediaError, match="cannot read 'nonsense'"):
        CameraSource("lavfi").open("nonsense")
    with pytest.raises(cc.UsageError, match="no_such_format"):
        CameraSource("no_such_format").open("x")


def test_a_camera_ends() -> None:
    with CameraSource("lavfi").open("testsrc=duration=0.2:rate=10") as camera:
        with pytest.raises(IndexError, match=r"\[0, 2\) for the stream, which has ended"):
            camera.get_frame(5)
        assert camera.num_frames == 2


def test_closing_while_frames_come_ends_the_thread() -> None:
    before = threading.active_count()
    camera = CameraSource("lavfi").open(CLOCK)
    assert threading.active_count() == before + 1
    camera.close()
    assert threading.active_count() == before
    with camera.open(CLOCK):
        assert camera.get_frame(2).shape == (48, 64, 3)


def test_settings_out_of_range() -> None:
    with pytest.raises(cc.UsageError, match="timeout_seconds: got 0"):
        StreamSource(timeout_seconds=0)
    with pytest.raises(cc.UsageError, match="buffer_frames: got 0"):
        StreamSource(buffer_frames=0)
    with pytest.raises(cc.UsageError, match="sound_seconds: got 4000, expected a number from 0 to 3600"):
        StreamSource(sound_seconds=4000)
