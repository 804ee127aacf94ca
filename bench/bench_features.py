"""Speed and memory of features and tiers, as ratios inside one run: part of ``make bench``.

The rival is what scripts for such data sets usually do: one pass after the other, each of which reads what the last one
wrote. Both sides compute flow at the same size with the same parameters, on two processes, with everything warm.
"""

from __future__ import annotations

import argparse
import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread for each process, on both sides

import av
import cv2
import h5py
import joblib
import librosa
import lmdb
import numpy as np
from measure import repeat_video, report, report_all, report_memory

import chordcache as cc
from chordcache.config.config import config_from_json

SHORT_SIDE = 256
NUM_SLICES, SLICE_ROWS = 100, 16
FARNEBACK = (0.5, 3, 15, 3, 5, 1.2, 0)
DIS = {"method": "dis", "preset": "ultrafast"}
EVERY_TIER = ("lmdb", "npz", "hdf5")
IN_HDF5 = ["frames", "flow", "motion", "mel"]


# The naive three passes


def small(picture: np.ndarray) -> np.ndarray:
    """Scaled to the short side of the cache."""
    height, width = picture.shape[:2]
    scale = SHORT_SIDE / min(height, width)
    return cv2.resize(picture, (round(width * scale), round(height * scale)), interpolation=cv2.INTER_AREA)


def stored_frames(folder: Path) -> Any:
    """Every full-size frame of the first pass, decoded again, scaled."""
    with (
        lmdb.open(str(folder / "frames"), readonly=True, lock=False) as environment,
        environment.begin() as transaction,
    ):
        for _, value in transaction.cursor():
            yield small(cv2.imdecode(np.frombuffer(value, np.uint8), cv2.IMREAD_COLOR))


def pass_frames(path: Path, folder: Path) -> None:
    """cv2 reads, full-size JPEG into LMDB."""
    capture = cv2.VideoCapture(str(path))
    number = 0
    with (
        lmdb.open(str(folder / "frames"), map_size=1 << 34, sync=False) as environment,
        environment.begin(write=True) as transaction,
    ):
        while True:
            there, picture = capture.read()
            if not there:
                break
            _, data = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 90])
            transaction.put(b"%08d" % number, data.tobytes())
            number += 1


def pass_flow(folder: Path, method: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> None:
    """Load again, flow, ``savez_compressed``."""
    last, flows = None, []
    for picture in stored_frames(folder):
        gray = cv2.cvtColor(picture, cv2.COLOR_BGR2GRAY)
        if last is not None:
            flows.append(method(last, gray))
        last = gray
    np.savez_compressed(folder / "flow.npz", flow=np.stack(flows))


def pass_mixed(path: Path, folder: Path) -> None:
    """Load again, HDF5 with lzf; mel with librosa."""
    pictures = np.stack([cv2.cvtColor(picture, cv2.COLOR_BGR2RGB) for picture in stored_frames(folder)])
    samples = []
    with av.open(str(path)) as container:
        resampler = av.AudioResampler("fltp", "mono", 16000)
        for frame in container.decode(audio=0):
            samples += [piece.to_ndarray()[0] for piece in resampler.resample(frame)]
    power = librosa.feature.melspectrogram(y=np.concatenate(samples), sr=16000, n_fft=400, hop_length=160, n_mels=80)
    with h5py.File(folder / "mixed.h5", "w") as file, np.load(folder / "flow.npz") as flow:
        file.create_dataset("frames", data=pictures, compression="lzf", chunks=(16, *pictures.shape[1:]))
        file.create_dataset("flow", data=flow["flow"], compression="lzf")
        file["mel"] = librosa.power_to_db(power, ref=1.0, top_db=None)


def farneback(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """As ``flow.method: farneback``."""
    return cv2.calcOpticalFlowFarneback(a, b, None, *FARNEBACK)


def naive(path: Path, folder: Path) -> None:
    """All three passes over one video."""
    cv2.setNumThreads(1)
    folder = folder / path.stem
    folder.mkdir()
    pass_frames(path, folder)
    pass_flow(folder, farneback)
    pass_mixed(path, folder)


# The pairs


def longer(clip: Path, folder: Path, num_videos: int, times: int) -> list[Path]:
    """Some copies of a clip, each repeated with its sound."""
    folder.mkdir()
    for i in range(num_videos):
        repeat_video(clip, folder / f"{i}.mp4", times, sound=True)
    return sorted(folder.iterdir())


def build(index: Path, work: Path, config: dict[str, Any], tiers: tuple[str, ...], jobs: int) -> None:
    """Build into a folder that is not there yet, and remove it."""
    with tempfile.TemporaryDirectory(dir=work) as cache:
        cc.build(index, Path(cache) / "cache", tiers=tiers, config=config_from_json(config), jobs=jobs)


def bench_naive(work: Path, clip: Path, runs: int) -> None:
    """Everything in one pass against the naive three."""
    paths = longer(clip, work / "naive", 4, 2)
    index = work / "naive.jsonl"
    cc.scan([work / "naive"], output=index)

    def three_passes() -> None:
        with tempfile.TemporaryDirectory(dir=work) as folder:
            joblib.Parallel(2)(joblib.delayed(naive)(path, Path(folder)) for path in paths)

    rivals = []
    for name, target, flow in (("Farneback", ">= 2.5", {"method": "farneback"}), ("DIS ultrafast", ">= 8", DIS)):
        config = {"features": {"flow": {"dtype": "int8", **flow}}, "hdf5": {"features": IN_HDF5}}
        one_pass = functools.partial(build, index, work, config, EVERY_TIER, 2)
        rivals.append((f"naive three passes / all features and tiers, {name}", target, one_pass))
    report_all(rivals, three_passes, runs)


def bench_additions(work: Path, clip: Path, runs: int) -> None:
    """Cost that motion and mel add to a build of frames."""
    longer(clip, work / "more", 2, 10)
    index = work / "more.jsonl"
    cc.scan([work / "more"], output=index)
    nothing = {"flow": None, "motion": None, "mel": None}
    frames = functools.partial(build, index, work, {"features": nothing}, ("lmdb",), 1)
    for name, target in (("motion", "<= 1.10"), ("mel", "<= 1.15")):
        more = functools.partial(build, index, work, {"features": {**nothing, name: {}}}, ("lmdb", "npz"), 1)
        report(f"build of frames and {name} / of frames alone", target, more, frames, runs)


def bench_slices(work: Path, clip: Path, runs: int) -> None:
    """Random slices of flow from an NPZ file."""
    longer(clip, work / "slices", 1, 2)
    cache_folder = work / "sliced"
    config = config_from_json({"features": {"flow": DIS}})
    cc.build(cc.scan([work / "slices"]), cache_folder, tiers=["npz"], features=["flow"], config=config)
    cache = cc.open_cache(cache_folder)
    (video,) = cache
    flow = cache.read(video, "flow")
    np.savez_compressed(work / "flow.npz", flow=flow)
    np.save(work / "flow.npy", flow)
    starts = np.random.default_rng(0).integers(len(flow) - SLICE_ROWS, size=NUM_SLICES).tolist()
    mapped = np.load(work / "flow.npy", mmap_mode="r")

    def ours(num_slices: int) -> None:
        for start in starts[:num_slices]:
            cache.read(video, "flow", start, start + SLICE_ROWS)

    def loaded() -> None:
        with np.load(work / "flow.npz") as npz:
            npz["flow"][starts[0] : starts[0] + SLICE_ROWS].copy()

    def from_map() -> None:
        for start in starts:
            mapped[start : start + SLICE_ROWS].copy()

    report("np.load of compressed / a 16-step slice of flow", ">= 50", loaded, lambda: ours(1), runs)
    report("slices of flow / of an .npy by np.memmap", "<= 1.5", lambda: ours(NUM_SLICES), from_map, runs)


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clips", type=Path, help="what scripts/fetch_clips.py fetched")
    parser.add_argument("--runs", type=int, default=5, help="interleaved runs of each pair")
    parser.add_argument("--no-memory", action="store_true", help="leave out the 20-minute video")
    options = parser.parse_args()
    clip = options.clips / "animation" / "bigbuckbunny.mp4"
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        bench_slices(work, clip, options.runs)
        bench_additions(work, clip, options.runs)
        bench_naive(work, clip, options.runs)
        if not options.no_memory:
            config = work / "everything.yaml"
            config.write_text("features: {flow: {method: dis, preset: ultrafast, dtype: int8}}\n")
            tiers = [word for tier in EVERY_TIER for word in ("--tier", tier)]
            name = "peak memory of a worker, all features and tiers"
            report_memory(name, "< 600 MB", work, clip, ["-c", str(config), *tiers], sound=True)


if __name__ == "__main__":
    main()
