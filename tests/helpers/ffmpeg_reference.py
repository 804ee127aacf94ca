"""Reference facts and frames of a file, by the commands ``ffprobe`` and ``ffmpeg`` and never by our own decoder.

A cached frame is compared with the source frame that ffmpeg scales with swscale, in one of two metrics:

planes
    The Y, U and V planes that the JPEG stores, against ffmpeg's ``yuvj420p``. The PSNR is over all their samples.
    A JPEG holds half as many chroma columns and rows as luma, and the program that turns it into RGB chooses how to
    interpolate them. Compared in RGB, a tiny, noisy or saturated picture shows the difference between two such choices,
    up to 10 dB of it, and nothing of the cache.
RGB
    The raw RGB24 that ``frames.codec: raw`` stores, against ffmpeg's ``rgb24``. Nothing is lost on the way, so that
    a wrong matrix or range, which may leave the planes of a gray picture above any sensible bound, stands out.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

import av
import lmdb
import numpy as np
import pytest

NUM_THREADS = 2
"""Commands at a time; each is given one thread."""

_HARMLESS = "non monotonically increasing dts to muxer"
"""ffmpeg's complaint of the output that we asked for, not of the file"""

_CHROMA_POSITIONS = {"left": (0, 128), "center": (128, 128), "topleft": (0, 0)}
"""Where a 4:2:0 sample lies among four pixels, in 1/256 pixels; libswscale 5.1 needs it as an option, 8.1 does not."""

Input = TypeVar("Input")
Output = TypeVar("Output")


def map_in_threads(function: Callable[[Input], Output], inputs: list[Input]) -> list[Output]:
    """Apply a function to many inputs, on threads: the work is done by commands and by code without the GIL."""
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        return list(pool.map(function, inputs))


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Any]) -> Any:
    """Make something expensive once per run: the first xdist worker makes it, the others wait. It must be JSON.

    ``make`` gets an empty folder, which is removed after it: a cache of the corpus is half a gigabyte.
    """
    shared = factory.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else factory.getbasetemp()
    result = shared / f"{name}.json"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not result.exists():
            with tempfile.TemporaryDirectory(dir=shared, prefix=name) as folder:
                result.write_text(json.dumps(make(Path(folder))))
    return json.loads(result.read_text())


# ffprobe


@dataclass(frozen=True)
class Probed:
    """Output of ffprobe for one file."""

    streams: list[dict[str, Any]]
    container: dict[str, Any]
    packets: list[dict[str, Any]] = field(default_factory=list)
    """Packets of all streams, in the order of the file"""
    errors: str = ""

    @cached_property
    def video(self) -> dict[str, Any] | None:
        """The first video stream that is not a cover picture: the one that players show in every file of the corpus."""
        videos = (s for s in self.streams if s.get("codec_type") == "video" and not s["disposition"]["attached_pic"])
        return next(videos, None)

    @cached_property
    def time_base(self) -> Fraction:
        return Fraction(self.video["time_base"]) if self.video else Fraction(1)

    @cached_property
    def video_packets(self) -> list[dict[str, Any]]:
        index = self.video["index"] if self.video else None
        return [packet for packet in self.packets if packet["stream_index"] == index]

    @cached_property
    def timestamp_source(self) -> str:
        """Times that chordcache goes by, see ``decode.Media.packets``: AVI and raw streams have no pts."""
        first = self.video_packets[0]
        if "pts" in first and self.container["format_name"] != "avi":
            return "pts"
        return "dts" if "dts" in first else "rate"

    def shown(self) -> list[tuple[Fraction, bool]]:
        """(time, is keyframe) of every frame, in the order in which they are shown.

        Packets that an edit list discards show nothing; packets of one time are one frame (a hidden reference frame
        of VP8 and VP9, or two fields). Where the clock of a stream is set back, as in two joined files, its times
        continue one frame later.
        """
        kept = [packet for packet in self.video_packets if packet["flags"][1] != "D"]
        if self.timestamp_source == "rate":
            seconds = 1 / Fraction(self.video["r_frame_rate"])  # type: ignore[index]
            return [(i * seconds, packet["flags"][0] == "K") for i, packet in enumerate(kept)]
        runs: list[dict[int, bool]] = [{}]
        last_dts = None
        for packet in kept:
            if last_dts is not None and packet.get("dts", last_dts) < last_dts:
                runs.append({})
            last_dts = packet.get("dts", last_dts)
            time = packet[self.timestamp_source]
            runs[-1][time] = runs[-1].get(time, False) or packet["flags"][0] == "K"
        shown: list[tuple[Fraction, bool]] = []
        for run in runs:
            shift = shown[-1][0] + 1 / Fraction(self.video["r_frame_rate"]) - min(run) * self.time_base if shown else 0  # type: ignore[index]
            shown += [(time * self.time_base + shift, run[time]) for time in sorted(run)]
        return shown


def probe(path: str | Path, *, packets: bool = False) -> Probed:
    """Ask ffprobe. A file that it cannot read has no streams."""
    said, errors = _ffprobe(path, "stream:stream_disposition:stream_side_data:format")
    # In a call of its own: after ffprobe has read all packets, it states other durations than the headers
    read, more_errors = _ffprobe(path, "packet=stream_index,pts,dts,flags") if packets else ({}, "")
    return Probed(said.get("streams", []), said.get("format", {}), read.get("packets", []), errors + more_errors)


def _ffprobe(path: str | Path, entries: str) -> tuple[dict[str, Any], str]:
    status = os.stat(path)
    return _ffprobe_of_state(os.fspath(path), entries, (status.st_ino, status.st_size, status.st_mtime_ns))


@lru_cache(maxsize=256)
def _ffprobe_of_state(path: str, entries: str, _state: tuple[int, int, int]) -> tuple[dict[str, Any], str]:
    """Ask once about a file that stays as it is. Do not change the result."""
    command = ["ffprobe", "-v", "error", "-show_entries", entries, "-of", "json", path]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return {} if done.returncode else json.loads(done.stdout), done.stderr.decode(errors="replace")


# ffmpeg


class Decoded:
    """ffmpeg's decode of one stream, scaled: iterate for the frames, one at a time, then ask what else it said.

    Parameters
    ----------
    path : str or Path
        The file.
    index : int or str
        Of the stream, or another word of ffmpeg's for it.
    size : tuple of int
        (width, height) of what comes out, upright: ffmpeg turns the picture first, as players do.
    pixel_format : {"yuvj420p", "rgb24"}
        The first is full-range BT.601, which is what a JPEG is taken for.
    chroma_location : str, optional
        As ffprobe names it, for 4:2:0.
    is_strict : bool
        Let the decoder assume the most reordering that the stream allows.
    crop : str, optional
        Part of the upright picture that is cut out before it is scaled, "width:height:left:top".
    """

    def __init__(
        self,
        path: str | Path,
        index: int | str,
        size: tuple[int, int],
        pixel_format: str,
        *,
        chroma_location: str | None = None,
        is_strict: bool = False,
        crop: str = "",
    ) -> None:
        scale = f"{crop and f'crop={crop}:exact=1,'}scale={size[0]}:{size[1]}:flags=area+accurate_rnd+full_chroma_int"
        if pixel_format == "yuvj420p":
            scale += ":out_color_matrix=bt601:out_range=full"
        if chroma_location in _CHROMA_POSITIONS:
            horizontal, vertical = _CHROMA_POSITIONS[chroma_location]
            scale += f":in_h_chr_pos={horizontal}:in_v_chr_pos={vertical}"
            if pixel_format == "rgb24":  # straight to RGB, swscale 5.1 repeats rows of chroma: 38 dB instead of 61
                scale += ",format=yuv444p16,scale=flags=accurate_rnd+full_chroma_int"
        if pixel_format == "yuvj420p":  # where JPEG has it
            scale += ":out_h_chr_pos=128:out_v_chr_pos=128"
        # fmt: off
        self._command = [
            "ffmpeg", "-nostdin", "-hide_banner", "-nostats", "-v", "level+info",
            "-copyts", "-threads", "1", *(("-strict", "strict") if is_strict else ()), "-i", os.fspath(path),
            "-map", f"0:{index}", "-vsync", "passthrough", "-vf", f"{scale},showinfo=checksum=0",
            "-pix_fmt", pixel_format, "-f", "rawvideo", "-",
        ]
        # fmt: on
        self._num_bytes = size[0] * size[1] * (3 if pixel_format == "rgb24" else 2) - (
            0 if pixel_format == "rgb24" else size[0] * size[1] // 2
        )
        self._said = ""

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yield each frame [shape=(N,), dtype=uint8]: rgb24 pixels, or the planes Y, U and V after each other."""
        with tempfile.TemporaryFile() as words:
            with subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=words) as ffmpeg:
                while len(data := ffmpeg.stdout.read(self._num_bytes)) == self._num_bytes:  # type: ignore[union-attr]
                    yield np.frombuffer(data, np.uint8)
            words.seek(0)
            self._said = words.read().decode(errors="replace")
        assert not data, f"{len(data)} bytes after the last whole frame"

    @property
    def errors(self) -> list[str]:
        """Lines in which ffmpeg complained of the file."""
        complaint = r"\[(error|fatal|panic)\]|corrupt decoded frame"
        return [line for line in self._said.splitlines() if re.search(complaint, line) and _HARMLESS not in line]

    @property
    def times(self) -> list[Fraction | None]:
        """Presentation times of the frames, [seconds]."""
        stamps = re.findall(r"\] n: *\d+ pts: *(\S+) ", self._said)
        (base,) = set(re.findall(r"config in time_base: (\d+/\d+),", self._said)) or {"1"}
        return [None if pts == "NOPTS" else int(pts) * Fraction(base) for pts in stamps]

    @property
    def keys(self) -> list[bool]:
        """For each frame, true if the decoder calls it a keyframe."""
        return [flag == "1" for flag in re.findall(r"\] n: .* iskey:(\d) ", self._said)]


def psnr_db(a: np.ndarray, b: np.ndarray) -> float:
    """PSNR of 8-bit samples; 100 if they are equal."""
    error = np.mean(np.square(np.subtract(a, b, dtype=np.int16), dtype=np.int32))
    return 100.0 if error == 0 else float(10 * np.log10(255**2 / error))


# Our cache, read without our own code


def records(file: str | Path) -> Iterator[bytes]:
    """The frames' records of an LMDB artefact in order, as DESIGN.md lays it out."""
    with tempfile.NamedTemporaryFile() as copy:  # LMDB opens no file twice in a process, and the cache may have it open
        shutil.copyfile(file, copy.name)
        with lmdb.open(copy.name, subdir=False, readonly=True, lock=False) as environment, environment.begin() as read:
            number = 0
            while (record := read.get(number.to_bytes(4, "big"))) is not None:
                yield record
                number += 1


def jpeg_planes(data: bytes) -> np.ndarray:
    """The samples Y, U and V that a JPEG stores, after each other [shape=(N,), dtype=uint8]."""
    decoder = av.CodecContext.create("mjpeg", "r")
    decoder.thread_count = 1
    packet = av.Packet(len(data))
    packet.update(data)
    (picture,) = decoder.decode(packet)
    assert picture.format.name == "yuvj420p"
    planes = [np.frombuffer(p, np.uint8).reshape(-1, p.line_size)[: p.height, : p.width] for p in picture.planes]
    return np.concatenate([plane.reshape(-1) for plane in planes])


@dataclass(frozen=True)
class Comparison:
    """A cached video beside ffmpeg's decode of its source."""

    num_cached: int
    num_decoded: int
    min_psnr_db: float
    """Over the frames that both have; 100 if equal or if there are none"""
    worst_frame: int
    times: list[Fraction | None]
    """ffmpeg's, [seconds]"""
    errors: list[str]
    """ffmpeg's"""


def compare(source: str | Path, file: str | Path, size: tuple[int, int], *, codec: str = "jpeg") -> Comparison:
    """Compare every frame of an LMDB artefact with ffmpeg's decode of the source, in the metric of its codec.

    Parameters
    ----------
    source, file : str or Path
        The video and the artefact.
    size : tuple of int
        (width, height) of the cached frames.
    codec : {"jpeg", "raw"}
        What the records are.
    """
    video = probe(source).video or {"index": "v:0"}  # ffprobe gives up where the sound is broken, ffmpeg does not
    pixel_format = "yuvj420p" if codec == "jpeg" else "rgb24"
    location = video.get("chroma_location", "center") if "420" in video.get("pix_fmt", "") else None
    # else ffmpeg guesses by how much H.264 is reordered where it does not say so, and drops frames if that is too low
    is_strict = video.get("codec_name") == "h264"
    decoded = Decoded(source, video["index"], size, pixel_format, chroma_location=location, is_strict=is_strict)
    cached = records(file)
    num_decoded = num_cached = 0
    worst_psnr, worst_frame = 100.0, 0
    for number, expected in enumerate(decoded):
        num_decoded += 1
        record = next(cached, None)
        if record is None:
            continue
        num_cached += 1
        planes = jpeg_planes(record) if codec == "jpeg" else np.frombuffer(record, np.uint8)
        psnr = psnr_db(planes, expected)
        if psnr < worst_psnr:
            worst_psnr, worst_frame = psnr, number
    num_cached += sum(1 for _ in cached)
    return Comparison(num_cached, num_decoded, worst_psnr, worst_frame, decoded.times, decoded.errors)
