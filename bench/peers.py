"""The same clips through other libraries, each in an environment of its own: ``make bench-peers``.

Decoders (torchcodec, decord, PyAV, OpenCV) read the sources. LitData, MosaicML MDS, WebDataset and Lance have the same
JPEGs as ready-made clips, which suits them best: chordcache finds the frames of random clips. Every peer runs in one
process with one decoding thread. All are measured in turn in each round.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import lmdb
from measure import GOP_FRAMES, spread_of

import chordcache as cc

PEERS = Path(__file__).resolve().parent / "peers"
NUM_FRAMES, STRIDE, SHORT_SIDE = 16, 4, 224
PIECE_SECONDS, CLIPS_PER_VIDEO = 8, 8


def make_work(work: Path, clips: Path) -> None:
    """Cut the real clips into pieces with far keyframes, cache them, and describe random clips of them."""
    (work / "videos").mkdir()
    for name in ("animation/bigbuckbunny.mp4", "street/bikes.mp4"):
        command = ["ffmpeg", "-v", "error", "-i", str(clips / name), "-an", "-r", "25", "-c:v", "libx264", "-crf", "20"]
        command += ["-g", str(GOP_FRAMES), "-sc_threshold", "0", "-pix_fmt", "yuv420p", "-t", str(PIECE_SECONDS)]
        subprocess.run([*command, str(work / "videos" / Path(name).name)], check=True)
    config = work / "config.yaml"
    config.write_text(f"frames: {{short_side: {SHORT_SIDE}}}\n")
    cc.build(cc.scan([work / "videos"]), work / "cache", config=config)
    chosen, drawn = [], random.Random(0)
    for video in cc.open_cache(work / "cache"):
        starts = range(video.num_frames - (NUM_FRAMES - 1) * STRIDE)
        for _ in range(CLIPS_PER_VIDEO):
            first = drawn.choice(starts)
            frames = list(range(first, first + NUM_FRAMES * STRIDE, STRIDE))
            copy_jpegs(work, video, frames, work / "jpegs" / str(len(chosen)))
            size = video.height, video.width
            chosen.append(
                {"key": video.key, "video": str(work / "videos" / video.path), "frames": frames, "size": size}
            )
    (work / "clips.json").write_text(json.dumps({"clips": chosen}))


def copy_jpegs(work: Path, video: cc.Video, frames: list[int], target: Path) -> None:
    """Copy the JPEGs of a clip out of the cache."""
    target.mkdir(parents=True)
    file = work / "cache" / video.feature("frames").file.name
    with lmdb.open(str(file), subdir=False, readonly=True, lock=False) as environment, environment.begin() as records:
        for i, frame in enumerate(frames):
            (target / f"{i:02}.jpg").write_bytes(records.get(frame.to_bytes(4, "big")))


class Peer:
    """The process of a peer."""

    def __init__(self, name: str, python: Path, work: Path) -> None:
        self.rounds: list[dict[str, Any]] = []
        self.version, self.reason = name, ""
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- as long as the process
        if not python.exists():
            self.reason = "not installed: its environment could not be made"
            return
        command = [str(python), str(PEERS / f"with_{name}.py"), str(work)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._errors, text=True)
        self.version = self._answer().get("version", name)

    def measure(self) -> None:
        """Measure one round, unless the peer failed."""
        if self.reason:
            return
        self._process.stdin.write("round\n")
        self._process.stdin.flush()
        answer = self._answer()
        if answer:
            self.rounds.append(answer)

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        self._errors.seek(0)
        self.reason = (self._errors.read().strip().splitlines() or ["its process ended"])[-1][:200]
        return {}

    def close(self) -> None:
        """End the process."""
        if hasattr(self, "_process"):
            self._process.stdin.close()
            self._process.wait()


def report(peers: list[Peer], num_rounds: int) -> None:
    """Print a Markdown table: medians of the rounds, with the range, and the ratio to the first peer."""
    print("| peer | CPU ms a clip | range | ms a clip | CPU time / chordcache's | range |")
    print("|---|---:|---:|---:|---:|---:|")
    base = peers[0]
    for peer in peers:
        if len(peer.rounds) < num_rounds:
            print(f"| {peer.version} | {peer.reason or 'too slow'} | | | | |")
            continue
        cpu, wall = (
            spread_of(1000 * answer[clock] / answer["num_clips"] for answer in peer.rounds)
            for clock in ("cpu_seconds", "wall_seconds")
        )
        ratio = spread_of(
            answer["cpu_seconds"] / answer["num_clips"] / (other["cpu_seconds"] / other["num_clips"])
            for answer, other in zip(peer.rounds, base.rounds, strict=True)
        )
        print(
            f"| {peer.version} | {cpu.median:.1f} | {cpu.least:.1f} to {cpu.most:.1f} | {wall.median:.1f} | "
            f"{ratio.median:.2f} | {ratio.least:.2f} to {ratio.most:.2f} |"
        )
    means = {peer.version: round(peer.rounds[0]["mean"], 1) for peer in peers if peer.rounds}
    print(f"\nMean pixel of all clips, which shows that all read the same frames: {means}")


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clips", type=Path, help="what scripts/fetch_clips.py fetched")
    parser.add_argument("--environments", type=Path, default=Path(".venv-peers"), help="a folder for each peer")
    parser.add_argument("--runs", type=int, default=5, help="interleaved rounds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        make_work(work, options.clips)
        names = sorted(path.stem for path in PEERS.glob("*.txt"))
        peers = [Peer("chordcache", Path(sys.executable), work)]
        peers += [Peer(name, options.environments.absolute() / name / "bin" / "python", work) for name in names]
        for peer in peers:
            peer.measure()
            peer.rounds.clear()  # the first round loads what is loaded once
        for _ in range(options.runs):
            for peer in peers:
                peer.measure()
        report(peers, options.runs)
        for peer in peers:
            peer.close()


if __name__ == "__main__":
    main()
