"""CPU time of comparing a container's numbers with the file, as a share of a build of 720p frames.

Usage: bench_checks.py CLIPS
"""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import av
from measure import spread_of, timed_in_turn

from chordcache.config.config import config_from_json
from chordcache.features.decode_pass import DecodePass
from chordcache.features.feed import decode_whole
from chordcache.features.registry import resolve
from chordcache.media.checks.container_watch import first_loss
from chordcache.media.checks.truncation import end_problem

FILMS = {
    "film.mp4": ("libx264",),
    "fragmented.mp4": ("libx264", "-movflags", "frag_keyframe+empty_moov"),
    "film.mkv": ("libx264",),
    "film.ts": ("libx264",),
    "film.flv": ("libx264",),
    "film.avi": ("mpeg4", "-b:v", "3M"),
    "film.ogv": ("libtheora", "-b:v", "3M"),
    "film.wmv": ("wmv2", "-b:v", "3M"),
    "film.mxf": ("mpeg2video", "-b:v", "8M"),
}

NUM_RUNS = 9


def check(path: Path, name: str, track: int) -> None:
    """Run all checks of a file that a build adds to its decode. ``name`` is libavformat's name of its format."""
    first_loss(str(path), name, track=track)
    end_problem(str(path), name, last_packet_at=None)


def build(path: Path) -> None:
    """Decode a file and compress its frames, as a build does."""
    config = config_from_json({})
    specs = {"frames": resolve("frames", config)}
    decode_whole(str(path), DecodePass(specs, {"frames": []}, config.picture, with_content=True))


def main() -> None:
    source = next(Path(sys.argv[1]).rglob("bigbuckbunny.mp4"))
    with tempfile.TemporaryDirectory() as folder:
        for name, (codec, *options) in FILMS.items():
            path = Path(folder, name)
            command = ["ffmpeg", "-v", "error", "-i", source, "-t", "8", "-vf", "scale=1280:720", "-an", "-c:v", codec]
            subprocess.run([*command, *options, path], check=True)
            with av.open(str(path)) as container:
                facts = (container.format.name, container.streams.video[0].id)
            ways = {"checks": functools.partial(check, path, *facts), "build": functools.partial(build, path)}
            rounds = timed_in_turn(ways, NUM_RUNS, time.process_time)
            checks, whole = (spread_of(times[way] for times in rounds).median for way in ways)
            print(f"{name:<15} checks {1000 * checks:5.2f} ms, build {whole:.2f} s: {100 * checks / whole:.2f} %")


if __name__ == "__main__":
    main()
