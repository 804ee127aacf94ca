"""Frames that a training job gets of damaged files, by the usual decoders and by each choice of ``--on-damage``.

FOLDER has a ``facts.csv`` with the columns ``path``, ``kind``, ``note``, ``vcodec`` and ``made_from``. If the file
that a damaged one was made from is known, each decoder reads it too, and a frame that it does not show of the intact
file counts as wrong. Each decoder runs in a process of its own. A decoder that cannot be imported is left out.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np

SECONDS = 60
"""Time for one decoder and one file"""


def digest(picture: np.ndarray) -> str:
    """Return a digest of the samples of a picture."""
    return hashlib.md5(np.ascontiguousarray(picture).tobytes()).hexdigest()


def of_ffmpeg(path: str) -> Iterator[str]:
    """Yield the frames that the command writes, as a job that converts videos beforehand gets them."""
    command = ["ffmpeg", "-nostdin", "-v", "quiet", "-i", f"file:{path}", "-map", "0:v:0", "-vsync", "passthrough"]
    done = subprocess.run([*command, "-f", "framemd5", "-"], capture_output=True, text=True, check=False)
    yield from (line.split()[-1] for line in done.stdout.splitlines() if line and not line.startswith("#"))


def of_pyav(path: str) -> Iterator[str]:
    """Yield the frames of the usual loop, up to the first error."""
    import av

    with av.open(path) as container:
        for frame in container.decode(video=0):
            yield digest(frame.to_ndarray())


def of_opencv(path: str) -> Iterator[str]:
    """Yield the frames up to the first that ``read`` does not return."""
    import cv2

    capture = cv2.VideoCapture(path)
    while True:
        is_there, picture = capture.read()
        if not is_there:
            return
        yield digest(picture)


def of_torchcodec(path: str) -> Iterator[str]:
    """Yield the frames by number, without those that raise."""
    from torchcodec.decoders import VideoDecoder

    decoder = VideoDecoder(path)
    for number in range(len(decoder)):
        try:
            picture = decoder[number]
        except (RuntimeError, IndexError):
            continue
        yield digest(picture.numpy())


def of_decord(path: str) -> Iterator[str]:
    """Yield the frames by number, without those that raise."""
    import decord

    reader = decord.VideoReader(path)
    for number in range(len(reader)):
        try:
            picture = reader[number].asnumpy()
        except decord.DECORDError:
            continue
        yield digest(picture)


def of_chordcache(path: str, on_damage: str) -> Iterator[str]:
    """Yield the frames that a build caches."""
    from chordcache.errors import MediaError
    from chordcache.media.decoding import decode_frames
    from chordcache.media.demux import open_media
    from chordcache.media.first_damage import damage_after

    damage = None
    for _ in range(2):
        try:
            with open_media(path) as media:
                media.damage = damage
                digests = [digest(frame.picture.to_ndarray()) for frame in decode_frames(media)]
            yield from digests
            return
        except MediaError as error:
            try:
                damage = damage_after(error, path, on_damage)
            except MediaError:
                return


WAYS: dict[str, Callable[[str], Iterator[str]]] = {
    "ffmpeg": of_ffmpeg,
    "PyAV": of_pyav,
    "OpenCV": of_opencv,
    "torchcodec": of_torchcodec,
    "decord": of_decord,
    "quarantine": lambda path: of_chordcache(path, "quarantine"),
    "trim": lambda path: of_chordcache(path, "trim"),
}


def answer(way: str, path: str) -> None:
    """Print the digests of the frames, and the name of the error that ended them."""
    digests: list[str] = []
    error = ""
    try:
        digests.extend(WAYS[way](path))
    except ModuleNotFoundError:
        error = "missing"
    except Exception as raised:  # noqa: BLE001 # decoders raise what they like
        error = type(raised).__name__
    print(json.dumps([digests, error]))


@cache
def frames(way: str, path: Path) -> tuple[list[str], str]:
    """Return the digests that another process prints, and the error."""
    command = [sys.executable, __file__, "--way", way, str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return [], "hangs"
    if done.returncode:
        return [], "crashes"
    digests, error = json.loads(done.stdout.splitlines()[-1])
    return digests, error


def cell(digests: list[str], error: str, truth: set[str] | None) -> str:
    """Return the number of frames, with the wrong ones among them."""
    wrong = 0 if truth is None else sum(frame not in truth for frame in digests)
    text = f"{len(digests)}, **{wrong} wrong**" if wrong else str(len(digests))
    return f"{text} ({error})" if error in ("hangs", "crashes") else text


def main() -> None:
    """Print one line for each damaged file, as a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=list(WAYS))
    parser.add_argument("--kind", default="", metavar="TEXT", help="only rows whose kind begins with this")
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    if arguments.way:
        answer(arguments.way, str(arguments.folder))
        return
    with (arguments.folder / "facts.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["path"].startswith("broken/")]
    rows = [row for row in rows if row["kind"].startswith(arguments.kind)]
    ways = [way for way in WAYS if frames(way, arguments.folder / rows[0]["path"])[1] != "missing"]
    print("| file | intact | " + " | ".join(ways) + " |")
    print("|---|---|" + "---|" * len(ways))
    for row in rows:
        source = arguments.folder / row["made_from"] if row["made_from"] else None
        cells, intact = [], ""
        for way in ways:
            digests, error = frames(way, arguments.folder / row["path"])
            truth = frames(way, source)[0] if source and digests else None
            if truth:
                intact = str(len(truth))
            cells.append(cell(digests, error, set(truth) if truth else None))
        if not any(char in "123456789" for char in "".join(cells)):  # no decoder shows a frame
            continue
        what = f"{row['vcodec'] or 'no video'}, {row['kind'].removeprefix('made_').replace('_', ' ')}: {row['note']}"
        print(f"| {what} | {intact} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
