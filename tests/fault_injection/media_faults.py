"""Small films of many containers and codecs, and faults that recordings, networks and disks give them."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import av
import numpy as np
import xxhash
from conftest import write_video
from helpers.ffmpeg import ffmpeg

NUM_FRAMES = 48

GOP_FRAMES = 12

_SIZE = (160, 120)

_TS_BYTES = 188

_ZERO_RUN_BYTES = 200

_SECTOR_BYTES, _BLOCK_BYTES = 512, 4096

_PACK_START = b"\0\0\1\xba"

_X265 = {"x265-params": "log-level=none"}
_SVT = {"preset": "10", "svtav1-params": "keyint=12"}
_VPX = {"deadline": "good", "cpu-used": "5", "b": "400k"}
_FRAGMENTED = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}

FILMS: Mapping[str, Mapping[str, Any]] = {
    "h264.mp4": {},
    "h264.faststart.mp4": {"container_options": {"movflags": "faststart"}},
    "h264.fragmented.mp4": {"container_options": _FRAGMENTED},
    "h264.mkv": {},
    "h264.ts": {},
    "h264.flv": {},
    "h264.h264": {},
    "hevc.mp4": {"codec": "libx265", "options": _X265},
    "hevc.mkv": {"codec": "libx265", "options": _X265},
    "hevc.ts": {"codec": "libx265", "options": _X265},
    "hevc.hevc": {"codec": "libx265", "options": _X265},
    "av1.mp4": {"codec": "libsvtav1", "options": _SVT},
    "av1.webm": {"codec": "libsvtav1", "options": _SVT},
    "vp8.webm": {"codec": "libvpx", "options": _VPX},
    "vp9.webm": {"codec": "libvpx-vp9", "options": _VPX},
    "mpeg2.ts": {"codec": "mpeg2video", "options": {"bf": "2", "b": "800k"}},
    "mpeg2.vob": {"codec": "mpeg2video", "options": {"bf": "2", "b": "800k"}},
    "mpeg4.mp4": {"codec": "mpeg4", "options": {"bf": "2", "b": "800k"}},
    "mpeg4.avi": {"codec": "mpeg4", "options": {"bf": "2", "b": "800k"}},
    "theora.ogv": {"codec": "libtheora", "ffmpeg": ("-g", str(GOP_FRAMES), "-q:v", "6")},
    "vp8.ogv": {
        "codec": "libvpx",
        "ffmpeg": ("-g", str(GOP_FRAMES), "-b:v", "400k", "-deadline", "good", "-cpu-used", "5"),
    },
    "flv1.flv": {"codec": "flv", "ffmpeg": ("-g", str(GOP_FRAMES), "-b:v", "800k")},
    "msmpeg4.avi": {"codec": "msmpeg4", "ffmpeg": ("-g", str(GOP_FRAMES), "-b:v", "800k")},
    "wmv2.wmv": {"codec": "wmv2", "ffmpeg": ("-g", str(GOP_FRAMES), "-b:v", "800k")},
    "mpeg2.mxf": {"codec": "mpeg2video", "ffmpeg": ("-g", str(GOP_FRAMES), "-b:v", "2M")},
    "dv.dv": {"codec": "dvvideo", "ffmpeg": ("-s", "720x576", "-pix_fmt", "yuv420p")},
    "prores.mov": {"codec": "prores_ks", "pixel_format": "yuv422p10le"},
    "mjpeg.mov": {"codec": "mjpeg", "pixel_format": "yuvj420p"},
    "mjpeg.avi": {"codec": "mjpeg", "pixel_format": "yuvj420p"},
}
"""Codec and container, and how the film is written: see ``conftest.VideoSpec``, or the options of ``ffmpeg``."""

_RAW = ("h264.h264", "hevc.hevc", "dv.dv")
"""Films without a container: their packets are what a parser cuts."""

_SPREAD = (".ts", ".vob", ".ogv", ".mxf")
"""Formats in which the bytes of a packet are not together, or are followed by others of their own"""

_JOINABLE = (".ts", ".vob", ".flv", ".ogv", ".h264", ".hevc")
"""Formats that stay one stream when a second file is appended."""


# What is shown


@dataclass(frozen=True)
class Shown:
    """Pictures of a film in the order in which they are shown."""

    digests: tuple[int, ...]
    """xxh3 of size, format and planes of each"""
    times: tuple[float, ...]
    """[seconds] of each"""
    num_skipped: int = 0
    """Frames before the first one, which the reader says it skipped"""

    def __len__(self) -> int:
        return len(self.digests)


def digest_of(picture: av.VideoFrame) -> int:
    """Digest everything of a picture that is seen: no padding, no time."""
    digest = xxhash.xxh3_64(f"{picture.format.name} {picture.width} {picture.height}".encode())
    sample_bytes = (picture.format.components[0].bits + 7) // 8
    for plane in picture.planes:
        rows = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
        digest.update(np.ascontiguousarray(rows[: plane.height, : plane.width * sample_bytes]))
    return digest.intdigest()


Expected: TypeAlias = Callable[[Shown], bool]
"""Check that a damaged film shows everything that is left in it."""


# Films


def _texture(seed: int) -> np.ndarray:
    """Noise with detail of several sizes [shape=(1024, 1024), dtype=float64, 0 to 1]."""
    rng = np.random.default_rng(seed)
    total = np.zeros((1024, 1024))
    for size in (4, 16, 64):
        noise = rng.random((1024 // size, 1024 // size))
        total += np.kron(noise, np.ones((size, size))) / 3
    return total


def moving_planes(seed: int) -> Callable[[int, int, int], tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return a maker of pictures whose parts all move: what is lost of a reference is missed in later pictures."""
    ground, patch = _texture(seed), _texture(seed + 1)

    def planes(number: int, width: int, height: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        y = ground[number : number + height, 2 * number : 2 * number + width].copy()
        left, top = 20 + number, 60 - number
        y[top : top + 48, left : left + 64] = patch[:48, :64]
        u = ground[: height // 2, number : number + width // 2]
        v = patch[: height // 2, number : number + width // 2]
        return tuple((16 + 200 * plane).astype(np.uint8) for plane in (y, u, v))  # type: ignore[return-value]

    return planes


def make_films(folder: Path, name: str) -> None:
    """Write the film called ``name``, and a second one with other pictures."""
    os.environ.setdefault("SVT_LOG", "1")  # else SVT-AV1 prints what it does
    for stem, seed in (("first", 1), ("second", 2)):
        path = folder / f"{stem}{Path(name).suffix}"
        spec = {"num_frames": NUM_FRAMES, "size": _SIZE, "gop": GOP_FRAMES, "planes": moving_planes(seed)}
        if "ffmpeg" in FILMS[name]:
            lossless = write_video(path.with_suffix(".lossless.mkv"), codec="ffv1", **spec)
            ffmpeg("-i", lossless, "-c:v", FILMS[name]["codec"], *FILMS[name]["ffmpeg"], path)
            lossless.unlink()
        else:
            write_video(path, **spec, **FILMS[name])


@dataclass(frozen=True)
class Packet:
    """Where a packet of the video lies, and when it is shown."""

    start: int
    """First byte in the file, in transport and program streams that of the unit that holds it"""
    stop: int
    """The byte after its last one"""
    pts: int | None
    """[ticks] None without a container"""
    is_key: bool


@dataclass(frozen=True)
class Film:
    """A sound film, and what to expect of it."""

    name: str
    """One of ``FILMS``"""
    path: Path
    shown: Shown
    other: Path
    """A film of the same kind with other pictures"""
    other_shown: Shown

    @cached_property
    def data(self) -> bytes:
        """All bytes of the file."""
        return self.path.read_bytes()

    @cached_property
    def packets(self) -> list[Packet]:
        """Packets of the video in the order of the file."""
        with av.open(str(self.path)) as container:
            packets = [packet for packet in container.demux(video=0) if packet.size]
            sizes = [packet.size for packet in packets]
            keys = [packet.is_keyframe for packet in packets]
            times = [packet.pts for packet in packets]
            starts: list[int] = []
            for packet in packets:  # a packet that begins in the middle of a unit has no place of its own
                starts.append(starts[-1] if packet.pos is None and starts else packet.pos or 0)
        if self.is_raw:
            starts = np.cumsum([0, *sizes[:-1]]).tolist()
        stops = [start + size for start, size in zip(starts, sizes, strict=True)]
        if self.path.suffix in (".ts", ".vob", ".ogv"):  # the bytes of a packet are not together
            stops = [next((later for later in starts if later > start), len(self.data)) for start in starts]
        return [Packet(*fields) for fields in zip(starts, stops, times, keys, strict=True)]

    @cached_property
    def tick_seconds(self) -> float:
        """Unit of the container's times [seconds]."""
        with av.open(str(self.path)) as container:
            return float(container.streams.video[0].time_base)

    @property
    def is_raw(self) -> bool:
        """Return whether the film has no container."""
        return self.name in _RAW

    @property
    def head_bytes(self) -> int:
        """Length of what comes before the first packet."""
        return self.packets[0].start

    def is_whole(self, shown: Shown) -> bool:
        """Return whether every picture came, and at its time."""
        if shown.digests != self.shown.digests:
            return False
        return self.is_raw or same_times(shown.times, self.shown.times, self.tick_seconds)


def same_times(times: Sequence[float], expected: Sequence[float], tick_seconds: float) -> bool:
    """Return whether times [seconds] differ by at most a unit of the container."""
    return bool(np.allclose(times, expected, rtol=0, atol=1.01 * tick_seconds))


# Faults


def _remux(film: Film, out: Path, chosen: Sequence[int]) -> None:
    """Copy some packets, by their numbers, into a new file of the same format."""
    options = dict(FILMS[film.name].get("container_options", {}))
    kept = frozenset(chosen)
    with av.open(str(film.path)) as source, av.open(str(out), "w", options=options) as target:
        video = source.streams.video[0]
        stream = target.add_stream_from_template(video, opaque=True)
        for number, packet in enumerate(_dated(packet for packet in source.demux(video) if packet.size)):
            if number in kept:
                packet.stream = stream
                target.mux(packet)


def _dated(packets: Iterable[Any]) -> list[Any]:
    """Give the first packets of Matroska, which has no decoding times, the ones that they lack."""
    dated = list(packets)
    first = next(number for number, packet in enumerate(dated) if packet.dts is not None)
    for number in range(first):
        dated[number].dts = dated[first].dts - (first - number) * dated[first].duration
    return dated


def remuxed(film: Film, out: Path) -> Expected:
    """Copy all packets into a new file: no fault, for false alarms."""
    _remux(film, out, range(len(film.packets)))
    return film.is_whole


def packet_removed(rng: random.Random, film: Film, out: Path) -> Expected:
    """Leave out a packet other than the first."""
    number = rng.randrange(1, len(film.packets))
    return _without(film, out, range(number, number + 1))


def three_packets_removed(rng: random.Random, film: Film, out: Path) -> Expected:
    """Leave out three packets in a row, not the first one."""
    number = rng.randrange(1, len(film.packets) - 3)
    return _without(film, out, range(number, number + 3))


def _without(film: Film, out: Path, gone: range) -> Expected:
    if film.is_raw:
        out.write_bytes(film.data[: film.packets[gone[0]].start] + film.data[film.packets[gone[-1]].stop :])
    else:
        _remux(film, out, [number for number in range(len(film.packets)) if number not in gone])
    return film.is_whole


def transport_packet_removed(rng: random.Random, film: Film, out: Path) -> Expected:
    """Leave out a transport packet of the video; in other formats as many bytes."""
    if film.path.suffix == ".ts":
        video = _pid(film.data, film.head_bytes)
        same = [at for at in range(film.head_bytes, len(film.data), _TS_BYTES) if _pid(film.data, at) == video]
        start = rng.choice(same)
    else:
        start = rng.randrange(film.head_bytes, len(film.data) - _TS_BYTES)
    out.write_bytes(film.data[:start] + film.data[start + _TS_BYTES :])
    return film.is_whole


def _pid(data: bytes, at: int) -> int:
    """Return the stream that a transport packet belongs to."""
    return int.from_bytes(data[at + 1 : at + 3], "big") & 0x1FFF


def bits_flipped(rng: random.Random, film: Film, out: Path) -> Expected:
    """Flip three bits of one packet."""
    packet = rng.choice(film.packets)
    data = bytearray(film.data)
    for bit in rng.sample(range(8 * packet.start, 8 * packet.stop), 3):
        data[bit // 8] ^= 1 << bit % 8
    out.write_bytes(data)
    return film.is_whole


def zero_run(rng: random.Random, film: Film, out: Path) -> Expected:
    """Set 200 bytes to zero."""
    start = rng.randrange(film.head_bytes, len(film.data) - _ZERO_RUN_BYTES)
    out.write_bytes(film.data[:start] + bytes(_ZERO_RUN_BYTES) + film.data[start + _ZERO_RUN_BYTES :])
    return film.is_whole


def burst(rng: random.Random, film: Film, out: Path) -> Expected:
    """Replace 32 bytes by random ones."""
    start = rng.randrange(film.head_bytes, len(film.data) - 32)
    out.write_bytes(film.data[:start] + rng.randbytes(32) + film.data[start + 32 :])
    return film.is_whole


def hole(rng: random.Random, film: Film, out: Path) -> Expected:
    """Set a block of a disk, 4,096 bytes, to zero."""
    start = rng.randrange(film.head_bytes // _BLOCK_BYTES + 1, len(film.data) // _BLOCK_BYTES) * _BLOCK_BYTES
    out.write_bytes(film.data[:start] + bytes(_BLOCK_BYTES) + film.data[start + _BLOCK_BYTES :])
    return film.is_whole


def foreign_sector(rng: random.Random, film: Film, out: Path) -> Expected:
    """Replace a sector of a disk, 512 bytes, by one of another film."""
    start = rng.randrange(film.head_bytes // _SECTOR_BYTES + 1, len(film.data) // _SECTOR_BYTES) * _SECTOR_BYTES
    other = film.other.read_bytes()
    at = rng.randrange(len(other) // _SECTOR_BYTES) * _SECTOR_BYTES
    out.write_bytes(film.data[:start] + other[at : at + _SECTOR_BYTES] + film.data[start + _SECTOR_BYTES :])
    return film.is_whole


def bytes_inserted(rng: random.Random, film: Film, out: Path) -> Expected:
    """Insert 16 to 512 random bytes."""
    start = rng.randrange(film.head_bytes, len(film.data))
    out.write_bytes(film.data[:start] + rng.randbytes(rng.randrange(16, 513)) + film.data[start:])
    return film.is_whole


def bytes_removed(rng: random.Random, film: Film, out: Path) -> Expected:
    """Leave out 16 to 512 bytes, which are not the end of the file."""
    num_bytes = rng.randrange(16, 513)
    start = rng.randrange(film.head_bytes, len(film.data) - num_bytes - 1)
    out.write_bytes(film.data[:start] + film.data[start + num_bytes :])
    return film.is_whole


def swapped(rng: random.Random, film: Film, out: Path) -> Expected:
    """Exchange two sectors of a disk."""
    numbers = range(film.head_bytes // _SECTOR_BYTES + 1, len(film.data) // _SECTOR_BYTES)
    one, other = (number * _SECTOR_BYTES for number in sorted(rng.sample(numbers, 2)))
    data = bytearray(film.data)
    data[one : one + _SECTOR_BYTES], data[other : other + _SECTOR_BYTES] = (
        film.data[other : other + _SECTOR_BYTES],
        film.data[one : one + _SECTOR_BYTES],
    )
    out.write_bytes(data)
    return film.is_whole


def tables(rng: random.Random, film: Film, out: Path) -> Expected | None:
    """Change a byte outside of the pictures: of headers, tables and indexes."""
    tail = range(film.packets[-1].stop, len(film.data)) if film.path.suffix not in _SPREAD else range(0)
    places = [*range(film.head_bytes), *tail]
    if not places:
        return None
    data = bytearray(film.data)
    data[rng.choice(places)] ^= rng.randrange(1, 256)
    out.write_bytes(data)
    return film.is_whole


def part_left_out(rng: random.Random, film: Film, out: Path) -> Expected | None:
    """Leave out a part that the container has: a fragment, page, cluster, chunk, or all between two tables."""
    starts = sorted(
        {match.start() + offset for mark, offset in _parts_of(film) for match in re.finditer(mark, film.data)}
    )
    starts = [at for at in starts if at >= min(film.head_bytes, starts[0])]
    if len(starts) < 4:
        return None
    number = rng.randrange(1, len(starts) - 2)
    out.write_bytes(film.data[: starts[number]] + film.data[starts[number + 1] :])
    return film.is_whole


def _parts_of(film: Film) -> list[tuple[bytes, int]]:
    """Return the mark of each part of a container, and where the part begins relative to it."""
    if film.name == "h264.fragmented.mp4":
        return [(b"moof", -4)]
    marks = {".ogv": b"OggS", ".avi": b"00dc", ".mkv": b"\x1f\x43\xb6\x75", ".webm": b"\x1f\x43\xb6\x75"}
    if film.path.suffix == ".ts":
        return [(re.escape(b"G\x40\0"), 0)]
    return [(re.escape(marks[film.path.suffix]), 0)] if film.path.suffix in marks else []


def truncated(rng: random.Random, film: Film, out: Path) -> Expected:
    """Cut off the end, where a shorter film could not end too."""
    cut = rng.randrange(film.head_bytes, len(film.data))
    while _is_end_of_unit(film, cut):
        cut = rng.randrange(film.head_bytes, len(film.data))
    out.write_bytes(film.data[:cut])
    return film.is_whole


def _is_end_of_unit(film: Film, at: int) -> bool:
    """Return whether a cut here leaves a whole film in a format that states no length."""
    if film.path.suffix == ".ts":
        return at % _TS_BYTES == 0
    if film.path.suffix == ".vob":
        return film.data[at : at + 4] == _PACK_START
    if film.is_raw:
        return any(packet.start == at for packet in film.packets)
    return film.name == "h264.fragmented.mp4" and film.data[at + 4 : at + 8] in (b"moof", b"mfra")


def joined(rng: random.Random, film: Film, out: Path) -> Expected | None:
    """Append another film of the same kind: the pictures of both, whatever their times."""
    del rng
    if film.path.suffix not in _JOINABLE:
        return None
    out.write_bytes(film.data + film.other.read_bytes())
    return lambda shown: shown.digests == film.shown.digests + film.other_shown.digests


def mid_gop(rng: random.Random, film: Film, out: Path) -> Expected | None:
    """Begin between two keyframes: all pictures from the next keyframe on, perhaps some before, in their distance."""
    keys = [number for number, packet in enumerate(film.packets) if packet.is_key]
    between = [number for number in range(1, keys[-1]) if number not in keys]
    if not between:
        return None
    start = _begin_at(rng, film, out, between)
    key = next(number for number in keys if number >= start)
    if film.is_raw:
        num_sure = len(film.packets) - key - _MAX_LEADING
    else:
        num_sure = sum(packet.pts >= film.packets[key].pts for packet in film.packets[key:])
    return lambda shown: len(shown) >= num_sure and is_suffix(shown, film)


def _begin_at(rng: random.Random, film: Film, out: Path, between: Sequence[int]) -> int:
    """Write a film that begins at a random packet, and return the number of the first one that is whole."""
    number = rng.choice(between)
    if film.path.suffix == ".ts":
        last = film.packets[between[-1]].start
        cut = rng.randrange(film.head_bytes // _TS_BYTES, last // _TS_BYTES) * _TS_BYTES
        tables = next(at for at in range(cut, len(film.data), _TS_BYTES) if _pid(film.data, at) == 0)
        number = next(position for position, packet in enumerate(film.packets) if packet.start >= tables)
    elif film.path.suffix == ".vob":
        cuts = [match.start() for match in re.finditer(re.escape(_PACK_START), film.data)]
        cut = rng.choice([at for at in cuts if film.head_bytes < at <= film.packets[between[-1]].start])
        number = next(position for position, packet in enumerate(film.packets) if packet.start >= cut)
    elif film.is_raw:
        cut = film.packets[number].start
    else:
        _remux(film, out, range(number, len(film.packets)))
        return number
    out.write_bytes(film.data[cut:])
    return number


_MAX_LEADING = 4
"""Pictures that are stored after a keyframe and shown before it, which refer to older ones."""


def is_suffix(shown: Shown, film: Film) -> bool:
    """Return whether the last pictures of a film are shown."""
    num = len(shown)
    if shown.digests != film.shown.digests[-num:]:
        return False
    steps, expected = (
        [later - one for one, later in pairwise(times)] for times in (shown.times, film.shown.times[-num:])
    )
    return film.is_raw or same_times(steps, expected, film.tick_seconds)


Fault: TypeAlias = Callable[[random.Random, Film, Path], "Expected | None"]
"""Damages a film and returns what to expect of it; None where it does not apply to the format."""

FAULTS: Mapping[str, Fault] = {
    fault.__name__: fault
    for fault in (
        packet_removed,
        three_packets_removed,
        transport_packet_removed,
        bits_flipped,
        burst,
        zero_run,
        hole,
        foreign_sector,
        bytes_inserted,
        bytes_removed,
        swapped,
        tables,
        part_left_out,
        truncated,
        joined,
        mid_gop,
    )
}
