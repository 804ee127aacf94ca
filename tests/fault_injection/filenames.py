"""Any name that a file may have: cached, found again, distinguished, shown so that no terminal or spreadsheet obeys."""

from __future__ import annotations

import csv
import itertools
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

from conftest import write_video
from helpers import processes

import chordcache as cc
from chordcache.index.cells import to_cell
from chordcache.storage import sealed_json
from fault_injection.fixtures import TIERS
from fault_injection.harness import Figures, Trial, experiment

_ODD: tuple[bytes, ...] = (
    b"new\nline.mp4",
    b"\ttab.mp4",
    b"return\r.mp4",
    b"esc\x1b]0;title\x07\x1b[31mred.mp4",
    b"\x9bc1.mp4",
    "\x9b31mc1.mp4".encode(),
    "\u202ertl.mp4".encode(),
    "\u2066isolate.mp4".encode(),
    b"bell\x07.mp4",
    b"delete\x7f.mp4",
    b"not\xff\xfe.mp4",
    b"half\xc3.mp4",
    b"n" * 251 + b".mp4",
    "\u00e4".encode() * 125 + b".mp4",
    b"%03d.mp4",
    b"%s%n.mp4",
    b"-i.mp4",
    b"--output.mp4",
    b"=1+1.mp4",
    b"+1.mp4",
    b"@SUM(A1).mp4",
    b"'quoted.mp4",
    b'"quoted".mp4',
    b'"a","b".mp4',
    b"{}.mp4",
    b" space.mp4",
    b"space .mp4",
    b".hidden.mp4",
    b"..two.mp4",
    b"...mp4",
    b"~.mp4",
    b"$HOME.mp4",
    b"back\\slash.mp4",
    b"a.mp4.mp4",
    b"caf\xc3\xa9.mp4",
    b"cafe\xcc\x81.mp4",
    b"\xf0\x9f\x8e\xac.mp4",
    b"Case.mp4",
    b"case.mp4",
    b"CASE.MP4",
    b"http:x.mp4",
    b"concat:a|b.mp4",
    b"a",
    b"NUL.mp4",
    b"\xef\xbb\xbfbom.mp4",
    b"null.mp4",
    b"nan.mp4",
    b"-inf.mp4",
    b"x=y.mp4",
    b"comma,semi;colon:.mp4",
)

_FORMS = ("json", "jsonl", "csv")

_RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters of a terminal: C0 except the line end, DEL, C1, and those that change the direction of text."""


def _random_name(rng: random.Random) -> bytes:
    """Return legal bytes: any, or control characters, or pieces of other scripts; often with a video's suffix."""
    alphabet = rng.choice(
        [
            [bytes([n]) for n in range(1, 256) if n != 0x2F],
            [bytes([n]) for n in (*range(1, 32), 127)],
            [chr(n).encode() for n in (*range(0x80, 0xA0), 0x202E, 0x2028, 0xFEFF, 0xE9, 0x301, 0x4E2D, 0x1F3AC)],
            [b"a", b"A", b".", b" ", b"-", b"%", b"'", b'"', b",", b"=", b"\\"],
        ]
    )
    length = rng.choice([1, 2, 8, 30, 200])
    return b"".join(rng.choice(alphabet) for _ in range(length))[:240] + rng.choice(
        [b".mp4", b".MKV", b".avi", b".mp4"]
    )


def _deep(folder: bytes) -> bytes:
    """A relative path as long as the system takes one."""
    part = b"d" * 200
    room = os.pathconf("/", "PC_PATH_MAX") - len(folder) - 40
    return b"/".join([part] * (room // (len(part) + 1)) + [b"deep.mp4"])


def _names(folder: Path, rng: random.Random, count: int) -> list[bytes]:
    """Distinct relative paths, the odd ones among them, and one that is a folder's name beside its file's."""
    names = dict.fromkeys([*_ODD, b"a.mp4", b"sub/a.mp4", b"sub\n/a.mp4", b"a.mkv/a.mp4", _deep(os.fsencode(folder))])
    while len(names) < count:
        names[_random_name(rng)] = None
    return list(names)[:count]


def _write(corpus: Path, names: list[bytes]) -> None:
    """One video under many names, each of its own frames' number: what is read must be what was stored there."""
    seeds = [write_video(corpus.parent / f"seed-{n}.mp4", num_frames=n, size=(32, 32)) for n in range(2, 9)]
    for number, name in enumerate(names):
        path = os.path.join(os.fsencode(corpus), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(seeds[number % len(seeds)].read_bytes())


def _run(folder: Path, *args: str | Path, code: int = 0) -> str:
    """Run the command line; return all it printed, after a look at every byte of it."""
    done = subprocess.run(
        [sys.executable, "-m", "chordcache", *map(os.fspath, args)],
        cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=300,
    )  # fmt: skip
    output = (done.stdout + done.stderr).decode()  # only UTF-8 comes out
    assert done.returncode == code, output
    assert processes.fine(output), output
    assert _RAW.findall(output) == [], output
    return done.stdout.decode()


@experiment(
    "S6",
    "names of any bytes, of 255 bytes, of 4 kB paths, twins: scanned, built, verified with the source, read",
    trials=600,
    batch=200,
    variants=_FORMS,
)
def any_name(trial: Trial) -> Figures:
    """The variant is the form of the index."""
    corpus, cache, index = trial.folder / "corpus", trial.folder / "cache", f"index.{trial.variant}"
    names = _names(corpus, trial.rng, trial.count)
    _write(corpus, names)
    expected = {os.fsdecode(name): 2 + number % 7 for number, name in enumerate(names)}
    _run(trial.folder, "scan", "corpus", "-o", index, "-j2")
    tiers = [part for tier in TIERS for part in ("--tier", tier)]
    _run(trial.folder, "build", index, "-j2", *tiers, "--features", "frames,motion")
    _run(trial.folder, "verify", "--source", "-j2")
    with cc.open_cache(cache) as opened:
        lengths = {video.path: len(opened.read(video, "frames")) for video in opened}
        num_keys = len(set(opened.keys()))
    lost = expected.keys() - lengths.keys()
    assert lost == set()
    assert lengths == expected
    assert num_keys == len(names)
    for form in _FORMS:  # each form gives the names to the next
        _through(trial.folder / index, trial.folder / f"again.{form}", set(expected))
        index = f"again.{form}"
    return {"sum_names": len(names), "sum_lost": len(lost), "sum_keys_colliding": len(names) - num_keys}


def _through(index: Path, other: Path, names: set[str]) -> None:
    """Write an index in another form, and see that it names the same files. Facts are not read from CSV."""
    records = list(cc.read_index(index))
    cc.read_index(index).write(other)
    if other.suffix == ".csv":
        facts = dict.fromkeys(("identity", "level", "header", "packets", "audio", "content"))
        records = [record.replace(**facts) for record in records]
    assert list(cc.read_index(other)) == records
    assert {record.path for record in records} == names


# S9


@experiment(
    "S9",
    "names and captions that begin as formulas do or steer a terminal, sound and broken, through every command",
    trials=60,
    batch=60,
)
def formulas_and_escapes(trial: Trial) -> Figures:
    corpus = trial.folder / "corpus"
    names = _names(corpus, trial.rng, max(6, trial.count))  # sound ones and broken ones
    _write(corpus, names)
    for name in names[::3]:
        if not name.lower().endswith((b".mp4", b".mkv", b".avi")) or os.path.basename(name).startswith(b"._"):
            continue  # junk of such a name is taken for no video
        with open(os.path.join(os.fsencode(corpus), name), "wb") as file:
            file.write(b"junk" * 99)
    texts = [os.fsdecode(name) for name in names]
    label = trial.folder / "labels.csv"
    _write_labels(label, texts)
    shown = ""
    shown += _run(trial.folder, "scan", "corpus", "-o", "index.csv", "-j2", "--labels", label, code=3)
    shown += _run(trial.folder, "info", "index.csv")
    for args, code in (
        (["build", "index.csv", "-j2"], 3),
        (["verify", "-j1"], 0),
        (["info"], 0),
        (["gc", "--dry-run"], 0),
    ):
        shown += _run(trial.folder, *args, code=code)
    _remove_artefacts(trial.folder / "cache")
    shown += _run(trial.folder, "verify", "-j1", code=5)
    shown += _run(trial.folder, "verify", "-j1", "--json", code=5)
    cells = _cells(trial.folder / "index.csv")
    captions = {record.caption for record in cc.read_index(trial.folder / "index.csv")}
    assert captions == {f"={_shown(text)}" for text in texts}
    assert {record.path for record in cc.read_index(trial.folder / "index.csv")} == set(texts)
    return {"sum_cells": cells, "sum_characters_shown": len(shown), "sum_raw_controls": 0}


def _write_labels(path: Path, texts: list[str]) -> None:
    """Write paths of any bytes, and labels and captions that are UTF-8, as they have to be."""
    with open(path, "w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "caption"])
        for text in texts:
            writer.writerow([json.dumps(text), f"@{_shown(text)}", f"={_shown(text)}"])


def _shown(text: str) -> str:
    """Return a name as UTF-8 has it: labels and captions are text."""
    return text.encode("utf-8", "replace").decode()


def _remove_artefacts(cache: Path) -> None:
    """So that verify has something to say of each video."""
    for path in (cache / "lmdb").rglob("*.lmdb"):
        path.unlink()


def _cells(path: Path) -> int:
    """Number of cells, none of which a spreadsheet would run; no raw control character in the whole file."""
    raw = path.read_bytes()
    assert not re.search(rb"[\x00-\x09\x0b-\x1f\x7f]", raw)
    assert _RAW.findall(raw.decode()) == []
    with open(path, newline="", encoding="utf-8") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    numbers = re.compile(r"-\d+(\.\d+)?(e[+-]?\d+)?")
    assert [cell for cell in cells if cell[:1] in tuple("=+-@\t\r") and cell and not numbers.fullmatch(cell)] == []
    return len(cells)


@experiment("S9", "NaN and infinity in what is written as JSON and CSV", trials=6, batch=6)
def no_nan(trial: Trial) -> Figures:
    del trial
    num_refused = 0
    for write, value in itertools.product((seal_value, to_cell), (float("nan"), float("inf"), float("-inf"))):
        try:
            write(value)
        except ValueError:
            num_refused += 1
    assert num_refused == 6
    return {"sum_refused": num_refused}


def seal_value(value: float) -> str:
    """As it would stand in a sidecar."""
    return sealed_json.seal({"value": value})
