"""Precision and recall of ``Video.cuts`` on joined pieces of real videos, beside PySceneDetect.

``python bench/cuts.py VIDEOS`` joins pieces of the videos of a folder, some of them with flashes, pans or a shaking
camera. PySceneDetect needs ``pip install scenedetect`` in an environment of its own: ``--peer PYTHON``.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import tempfile
import time
from pathlib import Path

import av
import cv2
import numpy as np

from chordcache.media.activity import ContentMeter
from chordcache.media.decoding import DecodedFrame

WIDTH, HEIGHT, FPS = 480, 270, 25
NUM_SOURCES, NUM_VIDEOS, NUM_SHOTS = 44, 12, 26
Frames = list[np.ndarray]

PEER = """
import json, sys
from scenedetect import AdaptiveDetector, ContentDetector, detect
makers = {
    "AdaptiveDetector": lambda: AdaptiveDetector(),
    "AdaptiveDetector, min_scene_len=5": lambda: AdaptiveDetector(min_scene_len=5),
    "ContentDetector, min_scene_len=5": lambda: ContentDetector(min_scene_len=5),
}
scenes = {name: [detect(path, make()) for path in sys.argv[1:]] for name, make in makers.items()}
print(json.dumps({name: [[s[0].frame_num for s in v][1:] for v in videos] for name, videos in scenes.items()}))
"""


def load(path: Path) -> Frames:
    """Return the first 300 pictures of a video, none if it cannot be read."""
    pictures: Frames = []
    try:
        with av.open(path) as container:
            for frame in container.decode(video=0):
                pictures.append(frame.reformat(WIDTH, HEIGHT, "bgr24").to_ndarray())
                if len(pictures) == 300:
                    break
    except (av.FFmpegError, IndexError):
        pass
    return pictures


def changed(pictures: Frames, kind: str, drawn: random.Random) -> Frames:
    """Return a shot with a flash of 1 to 3 frames, as a pan over its first picture, or as of a shaking camera."""
    if kind == "flash" and len(pictures) > 16:
        start = drawn.randint(5, len(pictures) - 7)
        flash = slice(start, start + drawn.randint(1, 3))
        pictures[flash] = [picture // 4 + 190 for picture in pictures[flash]]
    elif kind == "pan":
        large, step = cv2.resize(pictures[0], (3 * WIDTH, 3 * HEIGHT)), drawn.randint(6, 26)
        lefts = range(0, 2 * WIDTH, step)[: len(pictures)]
        pictures = [large[HEIGHT : 2 * HEIGHT, left : left + WIDTH] for left in lefts]
    elif kind == "shake":
        for number, picture in enumerate(pictures):
            x, y = 15 + drawn.randrange(30), 10 + drawn.randrange(20)
            pictures[number] = cv2.resize(picture, (WIDTH + 60, HEIGHT + 40))[y : y + HEIGHT, x : x + WIDTH]
    return pictures


def join(sources: list[Frames], path: Path, drawn: random.Random) -> list[int]:
    """Write a video of shots of different sources, and return the first frames of all shots but the first."""
    joined, cuts, last = Frames(), [], -1
    for _ in range(NUM_SHOTS):
        last = drawn.choice([number for number in range(len(sources)) if number != last])
        length = min(len(sources[last]), drawn.randint(10, 70))
        start = drawn.randint(0, len(sources[last]) - length)
        cuts.append(len(joined))
        kind = drawn.choice(["plain", "plain", "flash", "pan", "shake"])
        joined += changed(sources[last][start : start + length], kind, drawn)
    with av.open(path, "w") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"crf": "26", "preset": "veryfast"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for picture in joined:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), "bgr24")))
        container.mux(stream.encode(None))
    return cuts[1:]


def cuts_of(path: Path) -> list[int]:
    """Return the cuts that a build finds."""
    meter = ContentMeter()
    with av.open(path) as container:
        for number, frame in enumerate(container.decode(video=0)):
            meter.add_frame(DecodedFrame(number, number / FPS, frame))
    return [round(seconds * FPS) for seconds in meter.facts().cuts_seconds]


def show(name: str, answers: list[list[int]], truths: list[list[int]]) -> None:
    """Print precision, recall and F1. A cut that is a frame away is right."""
    pairs = list(zip(answers, truths, strict=True))
    num_right = sum(any(abs(cut - true) <= 1 for true in truth) for answer, truth in pairs for cut in answer)
    num_known = sum(any(abs(cut - true) <= 1 for cut in answer) for answer, truth in pairs for true in truth)
    precision, recall = num_right / max(1, sum(map(len, answers))), num_known / sum(map(len, truths))
    f1 = 2 * precision * recall / max(1e-9, precision + recall)
    print(f"{name}: F1 {f1:.3f}, precision {precision:.3f}, recall {recall:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("videos", type=Path)
    parser.add_argument("--peer", type=Path, help="a Python with scenedetect")
    options = parser.parse_args()
    drawn = random.Random(3)
    paths = sorted(path for path in options.videos.rglob("*") if path.is_file())
    loaded = (load(path) for path in drawn.sample(paths, len(paths)))
    sources = [next(pictures for pictures in loaded if len(pictures) >= 38) for _ in range(NUM_SOURCES)]
    with tempfile.TemporaryDirectory() as work:
        videos = [Path(work) / f"{number}.mp4" for number in range(NUM_VIDEOS)]
        truths = [join(sources, path, drawn) for path in videos]
        started = time.process_time()
        show("chordcache", [cuts_of(path) for path in videos], truths)
        print(f"decoding and all facts: {time.process_time() - started:.1f} s of CPU time")
        if options.peer:
            done = subprocess.run([options.peer, "-c", PEER, *videos], check=True, stdout=subprocess.PIPE)
            for name, answers in json.loads(done.stdout).items():
                show(name, answers, truths)


if __name__ == "__main__":
    main()
