"""CPU time of the parts of a build for one frame at 720p, all interleaved: part of ``make bench``."""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import av
from av.codec.context import Flags2
from measure import spread_of, timed_in_turn

from chordcache.media.activity import ContentMeter
from chordcache.media.decoding import DecodedFrame
from chordcache.media.resample import Resampler

SIZE = (456, 256)
NUM_FRAMES = 48


def encoded(clip: Path, target: Path, matrix: str, color_range: str) -> Path:
    """Encode a part of a clip with a matrix and a range."""
    colors = ["-colorspace", matrix, "-color_range", color_range, "-color_primaries", "bt709", "-color_trc", "bt709"]
    scale = f"scale=out_color_matrix={matrix}:out_range={color_range},format=yuv420p"
    command = ["ffmpeg", "-v", "error", "-i", str(clip), "-an", "-frames:v", str(NUM_FRAMES), "-vf", scale]
    subprocess.run([*command, "-c:v", "libx264", "-preset", "veryfast", *colors, str(target)], check=True)
    return target


def decode(path: Path, *, motion_vectors: bool = False) -> Iterator[av.VideoFrame]:
    """Decode the first frames on one thread."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        if motion_vectors:
            stream.codec_context.flags2 |= Flags2.export_mvs
        yield from islice(container.decode(stream), NUM_FRAMES)


def sound_packets(path: Path) -> list[av.Packet[av.AudioStream]]:
    """Packets of the sound of as many frames, with their decoder."""
    container = av.open(str(path))
    seconds = NUM_FRAMES / container.streams.video[0].average_rate
    packets = [packet for packet in container.demux(container.streams.audio[0]) if packet.size]
    return [packet for packet in packets if packet.pts * packet.time_base < seconds]


def planes(pictures: list[av.VideoFrame]) -> Callable[[], None]:
    """Scale to the planes of a JPEG."""
    resampler = Resampler()

    def run() -> None:
        for picture in pictures:
            resampler.jpeg(picture, *SIZE)

    return run


def motion(pictures: list[av.VideoFrame]) -> Callable[[], None]:
    """Measure motion."""

    def run() -> None:
        meter = ContentMeter()
        for number, picture in enumerate(pictures):
            meter.add_frame(DecodedFrame(number, number / 25, picture))

    return run


def loudness(sounds: list[av.AudioFrame]) -> Callable[[], None]:
    """Measure loudness."""

    def run() -> None:
        meter = ContentMeter()
        for sound in sounds:
            meter.add_sound(sound)
        meter.facts()

    return run


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clips", type=Path, help="what scripts/fetch_clips.py fetched")
    parser.add_argument("--runs", type=int, default=15, help="interleaved rounds")
    options = parser.parse_args()
    clip = options.clips / "animation" / "bigbuckbunny.mp4"
    packets = sound_packets(clip)
    with tempfile.TemporaryDirectory() as work:
        parts: dict[str, Callable[[], Any]] = {
            "decode": lambda: sum(1 for _ in decode(clip)),
            "decode, with motion vectors": lambda: sum(1 for _ in decode(clip, motion_vectors=True)),
            "decode the sound, 5.1 channels": lambda: sum(len(packet.decode()) for packet in packets),
            "content facts: motion": motion(list(decode(clip))),
            "content facts: loudness, 5.1 channels": loudness(
                [sound for packet in packets for sound in packet.decode()]
            ),
        }
        for matrix, color_range in (("bt470bg", "tv"), ("bt709", "tv"), ("bt470bg", "pc"), ("bt709", "pc")):
            path = encoded(clip, Path(work) / f"{matrix}_{color_range}.mp4", matrix, color_range)
            parts[f"planes of a JPEG, {matrix}, {color_range}"] = planes(list(decode(path))[:12] * (NUM_FRAMES // 12))
        rounds = timed_in_turn(parts, options.runs, time.thread_time)
    for name in parts:
        spread = spread_of(times[name] / NUM_FRAMES * 1000 for times in rounds)
        print(f"{name:40} {spread.median:.3f} ms a frame (least {spread.least:.3f})")


if __name__ == "__main__":
    main()
