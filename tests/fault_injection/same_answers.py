"""One answer to a damaged file, whether it is built, read as a source, or drawn by a dataset without a cache."""

from __future__ import annotations

import random
import re
import struct
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import xxhash
from helpers import processes

import chordcache as cc
from chordcache.config.config import config_from_json
from chordcache.index.index_files import Index
from chordcache.sources.mapped_mp4 import MappedMP4Source
from chordcache.sources.video_source import VideoSource
from fault_injection.damaged_media import ENDINGS, film_of, signals_of
from fault_injection.harness import BrokenGuarantee, Figures, Trial, experiment
from fault_injection.media_faults import FAULTS, FILMS, Film, Shown, same_times

Answer: TypeAlias = "Shown | str"
"""All frames of a file as RGB, or the error that comes instead of one of them."""

_AS_STORED = config_from_json({"frames": {"codec": "raw", "short_side": None}})

_NUM_ALONE = 8
"""Frames of a file with a lying table that are also read by their number, in any order."""

_MAPPED = ("mp4", "mov")

_TICK_SECONDS = 1e-6
"""Tolerance between two ways to read the same file: they round alike."""


# Ways to read a file


def _shown(frames: np.ndarray, times: np.ndarray) -> Shown:
    return Shown(tuple(map(_digest, frames)), tuple(times.tolist()))


def _digest(frame: np.ndarray) -> int:
    return xxhash.xxh3_64_intdigest(np.ascontiguousarray(frame))


def from_source(path: Path, kind: type[VideoSource], rng: random.Random, num_alone: int) -> Answer:
    """Read all frames in order, and ``num_alone`` by their number, which replace those."""
    try:
        with kind().open(path) as source:
            shown = _shown(source.get_frames(range(source.num_frames)), source.pts_seconds)
        digests = list(shown.digests)
        with kind().open(path) as source:
            for number in rng.sample(range(len(digests)), min(num_alone, len(digests))):
                digests[number] = _digest(source.get_frame(number))
    except cc.ChordcacheError as error:
        return str(error)
    return Shown(tuple(digests), shown.times)


def from_build(folder: Path, index: Index) -> dict[str, Answer]:
    """Build all files of an index and read what is cached: path to answer."""
    cc.build(index, folder / "cache", features=["frames"], config=_AS_STORED, jobs=1)
    answers: dict[str, Answer] = {
        path: line["message"] for path, line in processes.quarantine(folder / "cache").items()
    }
    with cc.open_cache(folder / "cache") as cache:
        for video in cache:
            answers[video.path] = _shown(cache.read(video, "frames"), video.pts_seconds)
    return answers


def from_dataset(folder: Path, index: Index) -> dict[str, Answer]:
    """Draw every frame of every video from a dataset whose cache is empty: path to answer, without times."""
    (folder / "nothing.csv").write_text("path\n")
    cc.build(cc.read_index(folder / "nothing.csv"), folder / "empty", features=["frames"], config=_AS_STORED, jobs=1)
    answers: dict[str, Answer] = {record.path: record.error for record in index if record.error}
    if len(answers) == len(index):
        return answers
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about those that the scan could not read
        from_source = cc.videos.indexed(index, folder / "empty", on_miss="source")
        dataset = cc.ChordVideoDataset(from_source, size=None, clip_sampler=_EveryFrame())
    for number, path in enumerate(record.path for record in index if not record.error):
        try:
            frames = dataset[number]["frames"]
            answers[path] = _shown(frames.movedim(1, -1).numpy(), np.empty(0))
        except cc.ChordcacheError as error:
            answers[path] = str(error)
    return answers


class _EveryFrame:
    """A clip of all frames of a video."""

    def frame_numbers(self, video: Any, request: Any) -> np.ndarray:
        del request
        return np.arange(video.num_frames)


# Comparison


def _answers(trial: Trial, files: Mapping[str, bytes], num_alone: int = 0) -> dict[str, dict[str, Answer]]:
    """Read files in all ways: name to way to answer."""
    videos = trial.folder / "videos"
    videos.mkdir()
    for name, data in files.items():
        (videos / name).write_bytes(data)
    index = cc.scan([videos], output=trial.folder / "index.jsonl", level="headers", jobs=1)
    built, drawn = from_build(trial.folder, index), from_dataset(trial.folder, index)
    answers: dict[str, dict[str, Answer]] = {}
    for name in files:
        answers[name] = {"build": built[name], "dataset": drawn[name]}
        answers[name]["MP4Source"] = from_source(videos / name, cc.MP4Source, trial.rng, num_alone)
        if name.endswith(_MAPPED):
            answers[name]["MappedMP4Source"] = from_source(videos / name, MappedMP4Source, trial.rng, num_alone)
    return answers


def _is_same(answer: Answer, expected: Answer) -> bool:
    """Return whether both are errors, or the same frames at the same times."""
    if isinstance(answer, str) or isinstance(expected, str):
        return isinstance(answer, str) and isinstance(expected, str)
    if answer.digests != expected.digests:
        return False
    return not answer.times or not expected.times or same_times(answer.times, expected.times, _TICK_SECONDS)


def _difference(answers: Mapping[str, Answer]) -> str | None:
    """Describe how ways to read a file differ; None if they do not."""
    first, *others = answers
    different = [way for way in others if not _is_same(answers[way], answers[first])]
    if not different:
        return None
    return "; ".join(f"{way}: {_in_words(answers[way], answers[first])}" for way in (first, *different))


def _in_words(answer: Answer, other: Answer) -> str:
    """Shorten an answer, without the paths in it."""
    if isinstance(answer, str):
        return re.sub(r"cannot read '.*?': |; video '.*?' is not cached either.*", "", answer)[:120]
    if answer is other or isinstance(other, str) or len(other) != len(answer):
        return f"{len(answer)} frames"
    wrong = [number for number in range(len(answer)) if answer.digests[number] != other.digests[number]]
    return f"{len(answer)} frames, {len(wrong)} different {wrong[:5]}"


@experiment(
    "R22",
    "a film damaged by any fault: build, MP4Source, MappedMP4Source and a dataset without a cache, bit for bit",
    trials=2 * len(FAULTS),
    batch=5 * len(FAULTS),
    variants=tuple(FILMS),
)
def same_answer(trial: Trial) -> Figures:
    """A file is cached if and only if every other way gives all of its frames, and then they are the same."""
    film = film_of(trial, trial.variant)
    path = trial.folder / film.path.name
    files = {f"sound{path.suffix}": film.data}
    for number in range(trial.count):
        fault = list(FAULTS)[number % len(FAULTS)]
        if FAULTS[fault](trial.rng, film, path) is not None:
            files[f"{number}-{fault}{path.suffix}"] = path.read_bytes()
    path.unlink()
    answers = _answers(trial, files)
    differences = {name: difference for name, by_way in answers.items() if (difference := _difference(by_way))}
    num_refused = sum(all(isinstance(answer, str) for answer in by_way.values()) for by_way in answers.values())
    figures = {
        "sum_refused_by_all": num_refused,
        "sum_read_by_all": len(files) - num_refused - len(differences),
        "sum_different": len(differences),
    }
    assert isinstance(answers[f"sound{path.suffix}"]["build"], Shown)
    if differences:
        raise BrokenGuarantee("\n".join(f"{name}: {text}" for name, text in differences.items()), figures)
    return figures


# Tables that lie


def _places(data: bytes, kind: bytes) -> list[int]:
    """Where the values of a table of the last ``moov`` lie; none if it has no such table."""
    at = data.find(kind, data.rindex(b"moov")) + 4
    if at < 4:
        return []
    first, step, count_at = {b"stsz": (12, 4, 8), b"ctts": (12, 8, 4), b"stss": (8, 4, 4)}[kind]
    (count,) = struct.unpack_from(">I", data, at + count_at)
    return [at + first + step * number for number in range(count)]


_EDITS: Mapping[bytes, Callable[[random.Random, int], int]] = {
    b"stsz": lambda rng, size: rng.choice((size - 1, size + 1, rng.randrange(1, 2 * size), rng.randrange(1 << 16))),
    b"ctts": lambda rng, ticks: rng.choice((0, ticks + 512 * rng.randrange(-4, 5), rng.randrange(1 << 13))),
    b"stss": lambda rng, number: rng.choice((number - 1, number + 1, rng.randrange(1, 100))),
}
"""Table, and how one of its values is replaced."""


def _lie(rng: random.Random, data: bytes, kind: bytes) -> bytes | None:
    """Replace a value of a table; None if the file has no such table."""
    places = _places(data, kind)
    if not places:
        return None
    changed = bytearray(data)
    while changed == data:
        at = rng.choice(places)
        (old,) = struct.unpack_from(">I", data, at)
        struct.pack_into(">I", changed, at, _EDITS[kind](rng, old) % (1 << 32))
    return bytes(changed)


@experiment(
    "R22",
    "a value of a sample table (stsz, ctts, stss) replaced: build, MP4Source, MappedMP4Source and a dataset",
    trials=90,
    batch=30,
    variants=("h264.mp4", "hevc.mp4", "av1.mp4", "mpeg4.mp4", "prores.mov"),
)
def tables_that_lie(trial: Trial) -> Figures:
    """Every way to read gives the frames and times of the sound film or an error.

    Where no layer of FFmpeg objects, those that give no error agree.
    """
    film = film_of(trial, trial.variant)
    files = {"sound.mp4": film.data}
    for number in range(trial.count):
        kind = list(_EDITS)[number % len(_EDITS)]
        data = _lie(trial.rng, film.data, kind)
        if data is not None:
            files[f"{number}-{kind.decode()}.mp4"] = data
    answers = _answers(trial, files, _NUM_ALONE)
    sound = answers.pop("sound.mp4")
    assert _difference(sound) is None, _difference(sound)
    counts: Counter[str] = Counter()
    broken = []
    for name, by_way in answers.items():
        table = name.partition("-")[2].removesuffix(".mp4")
        ending, text = _ending(trial.folder / "videos" / name, film, by_way, sound["build"])
        counts[f"sum_{ending}"] += 1
        counts[f"cell_{table}_{ending}"] += 1
        difference = _difference({way: answer for way, answer in by_way.items() if isinstance(answer, Shown)} or by_way)
        counts["sum_different"] += difference is not None
        broken += [f"{name}: {ending}, {text}"] * (ending == "silent")
        broken += [f"{name}: {difference}"] * (difference is not None)
    names = [*(f"sum_{ending}" for ending in ENDINGS), "sum_different"]
    names += [f"cell_{kind.decode()}_{ending}" for kind in _EDITS for ending in ENDINGS]
    figures = {name: counts[name] for name in names}
    if broken:
        raise BrokenGuarantee("\n".join(broken), figures)
    return figures


def _ending(path: Path, film: Film, answers: Mapping[str, Answer], sound: Answer) -> tuple[str, str]:
    """Return the worst result of some ways to read a file, one of ``ENDINGS``, and FFmpeg's messages."""
    if all(isinstance(answer, str) or _is_same(answer, sound) for answer in answers.values()):
        return ("found" if any(isinstance(answer, str) for answer in answers.values()) else "harmless"), ""
    signals = signals_of(path) - signals_of(film.path)
    return ("silent" if signals else "mute"), ", ".join(sorted(signals))
