"""Films damaged as recordings, networks and disks damage them: found, harmless, or wrong pictures."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import av
import av.logging

from chordcache.errors import MediaError
from chordcache.media.checks.container_watch import first_loss
from chordcache.media.decoding import decode_frames
from chordcache.media.demux import open_media
from fault_injection.harness import BrokenGuarantee, Figures, Trial, experiment
from fault_injection.media_faults import FAULTS, FILMS, Expected, Film, Shown, digest_of, is_suffix, make_films, remuxed

ENDINGS = ("found", "harmless", "mute", "silent")
"""Results of a damaged film: refused, or said to lack its beginning; every picture right; wrong, and neither a layer of
FFmpeg nor the numbers of the container say so; wrong, and one of them does."""


def show(path: Path) -> Shown:
    """Decode a film as ``build`` does; raises ``MediaError`` where that does."""
    digests, times = [], []
    with open_media(str(path)) as media:
        for frame in decode_frames(media):
            digests.append(digest_of(frame.picture))
            times.append(frame.pts_seconds)
        return Shown(tuple(digests), tuple(times), media.num_skipped)


def signals_of(path: Path, level: int = av.logging.ERROR) -> frozenset[str]:
    """Reports of FFmpeg on a film, without the package: messages, flags, exceptions, packets that show nothing."""
    before = av.logging.get_level()
    av.logging.set_level(level)
    av.logging.set_skip_repeated(False)
    try:
        with av.logging.Capture() as log:
            signals = set(_flags_of(path))
    finally:
        av.logging.set_level(before)
    return frozenset(signals | {f"{source}: {_without_numbers(text)}" for _, source, text in log})


def losses_of(path: Path) -> frozenset[str]:
    """Return what the numbers of the container say of a film."""
    try:
        with av.open(str(path)) as container:
            loss = first_loss(str(path), container.format.name, track=container.streams.video[0].id)
    except (av.error.FFmpegError, IndexError, MediaError):
        return frozenset()
    return frozenset() if loss is None else frozenset((f"numbers: {loss.what}",))


def _flags_of(path: Path) -> list[str]:
    flags = []
    num_packets = num_pictures = 0
    try:
        with av.open(str(path)) as container:
            video = container.streams.video[0]
            video.codec_context.thread_count = 1
            for packet in container.demux(video):
                num_packets += packet.size > 0 and not packet.is_discard
                flags += ["packet.is_corrupt"] * packet.is_corrupt
                for picture in packet.decode():
                    num_pictures += 1
                    flags += ["picture.is_corrupt"] * picture.is_corrupt
    except (av.error.FFmpegError, IndexError) as error:
        return [*flags, f"exception: {_without_numbers(str(error))}"]
    return [*flags, f"packets without a picture: {num_packets - num_pictures}"]


def _without_numbers(text: str) -> str:
    return re.sub(r"'.*'", "", re.sub(r"(0x)?[0-9a-f]*\d[0-9a-f]*", "N", " ".join(text.split())))


@dataclass(frozen=True)
class Verdict:
    """Result of one damaged film."""

    ending: str
    """One of ``ENDINGS``"""
    signals: frozenset[str] = frozenset()
    """Messages of FFmpeg on it that the undamaged film does not have, if it is silent"""


def judge(path: Path, film: Film, expected: Expected) -> Verdict:
    """Decode a damaged film and compare what comes with what is expected."""
    try:
        shown = show(path)
    except (MediaError, MemoryError):  # a file that claims too much is refused by the limit of a worker
        return Verdict("found")
    if expected(shown):
        return Verdict("harmless")
    if shown.num_skipped and is_suffix(shown, film):
        return Verdict("found")
    signals = (signals_of(path) - signals_of(film.path)) | losses_of(path)
    return Verdict("silent" if signals else "mute", signals)


def film_of(trial: Trial, name: str) -> Film:
    """Return the film called ``name``, made at the first call that asks for it."""
    folder = trial.once(name, lambda folder: _make(folder, name))
    first, second = (folder / f"{stem}{Path(name).suffix}" for stem in ("first", "second"))
    return Film(name, first, show(first), second, show(second))


def _make(folder: Path, name: str) -> None:
    folder.mkdir()
    make_films(folder, name)


@experiment(
    "R22",
    "a film damaged by each fault in turn, and decoded",
    trials=15 * len(FAULTS),
    batch=10 * len(FAULTS),
    variants=tuple(FILMS),
)
def damaged(trial: Trial) -> Figures:
    """Every picture is right or the film is refused, unless no layer of FFmpeg knows of the damage."""
    film = film_of(trial, trial.variant)
    path = trial.folder / film.path.name
    if not film.is_raw:
        assert judge(path, film, remuxed(film, path)).ending == "harmless", "a false alarm, or a fault in the trial"
    counts: Counter[str] = Counter()
    silent = []
    for number in range(trial.count):
        fault = list(FAULTS)[number % len(FAULTS)]
        expected = FAULTS[fault](trial.rng, film, path)
        if expected is None:
            continue
        verdict = judge(path, film, expected)
        counts[verdict.ending] += 1
        counts[f"{fault}/{verdict.ending}"] += 1
        if verdict.ending == "silent":
            silent.append(f"{number} {fault}: {', '.join(sorted(verdict.signals))}")
    figures = {f"sum_{ending}": counts[ending] for ending in ENDINGS}
    figures |= {f"cell_{fault}_{ending}": counts[f"{fault}/{ending}"] for fault in FAULTS for ending in ENDINGS}
    if silent:
        raise BrokenGuarantee("wrong pictures although FFmpeg knew:\n" + "\n".join(silent), figures)
    return figures
