"""Our own parsers under hypothesis: the documented exceptions and no others, in bounded memory and time."""

from __future__ import annotations

import contextlib
import resource
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st

import chordcache as cc
from chordcache.config.config import config_from_json, config_to_json
from chordcache.config.yaml_files import load_config
from chordcache.index.labels import Labels
from chordcache.media.mp4_boxes import display_matrices
from chordcache.media.mp4_samples import read_video_track
from chordcache.records import Identity, VideoRecord
from chordcache.storage import sealed_json
from chordcache.storage.artefacts import npy
from chordcache.storage.cache_header import read_header, write_header
from chordcache.storage.catalog import Catalog
from chordcache.storage.quarantine import Failure, Quarantine
from chordcache.storage.sidecar import Sidecar
from fault_injection.fixtures import make_corpus
from fault_injection.harness import Figures, Trial, experiment

_MEMORY_BYTES = 256 << 20
"""Memory that parsing a file of some kilobytes may add to the process."""

_DEADLINE = timedelta(seconds=5)
"""For one input; they take a millisecond."""

_CONFIG = b"""frames: {codec: jpeg, quality: 90, short_side: 256, fps: 12.5, hdr: tonemap}
features:
  flow: {method: dis, dtype: float16}
  motion: null
  mel: {n_mels: 80, sample_rate: 16000}
  own: {extractor: "package.module:Class", gain: [1, 2.5, x]}
hdf5: {features: [frames, flow]}
"""
_LABELS = b'path,label,caption,further\n0.mp4,cat,"a, b",x\n1.mp4,\'=dog,,"""j\\u00f6"""\n'
_LIST = b'path,label,caption\nvideos/0.mp4,cat,\n"videos/1.mp4",dog,"two\nlines"\n'


@dataclass(frozen=True)
class _Parser:
    """An input and its parser."""

    make: Callable[[Path], bytes]
    """A sound input, out of ``make_corpus``"""
    parse: Callable[[Path, bytes], None]
    """Parse an input, and what comes of it again where there is an inverse; gets an empty folder"""
    sealed: bool = False
    """True if lines carry their digest: half of the inputs are then changed and sealed again"""
    refusals: tuple[type[Exception], ...] = (cc.ChordcacheError,)


def _parse_boxes(folder: Path, data: bytes) -> None:
    (folder / "a.mp4").write_bytes(data)
    matrices = display_matrices(str(folder / "a.mp4"))
    assert all(len(matrix) == 9 for matrix in matrices.values())


def _parse_tables(folder: Path, data: bytes) -> None:
    track = read_video_track(memoryview(data))
    assert (track.offsets >= 0).all()
    assert (track.offsets + track.sizes <= len(data)).all()


def _parse_sidecar(folder: Path, data: bytes) -> None:
    sidecar = Sidecar.from_line(data.decode("ascii", "replace"), "here")
    assert Sidecar.from_line(sidecar.to_line(), "there") == sidecar


def _parse_index(suffix: str, folder: Path, data: bytes) -> None:
    (folder / f"a{suffix}").write_bytes(data)
    index = cc.read_index(folder / f"a{suffix}")
    records = list(index)
    assert len(records) == len(index)
    index.write(folder / "again.jsonl")
    assert list(cc.read_index(folder / "again.jsonl")) == records


def _parse_config(folder: Path, data: bytes) -> None:
    (folder / "a.yaml").write_bytes(data)
    config = load_config(folder / "a.yaml")
    assert config_from_json(config_to_json(config)) == config


def _parse_header(folder: Path, data: bytes) -> None:
    (folder / "chordcache.json").write_bytes(data)
    header = read_header(folder)
    write_header(folder, header)
    assert read_header(folder) == header


def _parse_quarantine(folder: Path, data: bytes) -> None:
    (folder / "quarantine.jsonl").write_bytes(data)
    quarantine = Quarantine(folder, {})
    num_failures = len(quarantine)
    quarantine.compact()
    assert len(Quarantine(folder, {})) == num_failures


def _parse_labels(folder: Path, data: bytes) -> None:
    (folder / "a.csv").write_bytes(data)
    labels = Labels(str(folder / "a.csv"))
    labels.apply(VideoRecord("videos", "0.mp4"))


def _parse_catalog(folder: Path, data: bytes) -> None:
    (folder / "catalog.bin").write_bytes(data)
    (folder / "chordcache.json").write_bytes((folder.parent / "header").read_bytes())
    catalog = Catalog(folder)
    assert len(catalog.labels) <= len(data)
    for position, key in enumerate(catalog.keys()):
        catalog.find(key)
        if position < len(catalog):
            catalog.at(position)
    list(catalog.check())


def _parse_npy(folder: Path, data: bytes) -> None:
    values = npy.loads(data)
    assert values.nbytes <= len(data)
    again = npy.loads(npy.dumps(values))
    assert (again.dtype, again.shape, again.tobytes()) == (values.dtype, values.shape, values.tobytes())


def _index_of(suffix: str, corpus: Path) -> bytes:
    path = corpus.parent / f"index{suffix}"
    cc.read_index(corpus / "index.json").write(path)
    return path.read_bytes()


def _quarantine(corpus: Path) -> bytes:
    folder = corpus.parent / "quarantine"
    folder.mkdir(exist_ok=True)
    quarantine = Quarantine(folder, {"av": "18"})
    for name in ("a", "b"):
        quarantine.add(
            Failure(name, "videos", f"{name}.mp4", "decode", "short", "cut", Identity(1, 2), fingerprints=("x",))
        )
    return (folder / "quarantine.jsonl").read_bytes()


def _first_sidecar(corpus: Path) -> bytes:
    return min((corpus / "whole/videos").rglob("*.json")).read_bytes()


PARSERS: dict[str, _Parser] = {
    "boxes of MP4": _Parser(lambda corpus: (corpus / "videos/0.mp4").read_bytes(), _parse_boxes, refusals=()),
    "tables of MP4": _Parser(lambda corpus: (corpus / "videos/0.mp4").read_bytes(), _parse_tables),
    "sidecars": _Parser(_first_sidecar, _parse_sidecar, sealed=True),
    "index.json": _Parser(partial(_index_of, ".json"), partial(_parse_index, ".json")),
    "index.jsonl": _Parser(partial(_index_of, ".jsonl"), partial(_parse_index, ".jsonl"), sealed=True),
    "index.csv": _Parser(partial(_index_of, ".csv"), partial(_parse_index, ".csv")),
    "lists": _Parser(lambda corpus: _LIST, partial(_parse_index, ".csv")),
    "configs": _Parser(lambda corpus: _CONFIG, _parse_config),
    "headers": _Parser(lambda corpus: (corpus / "whole/chordcache.json").read_bytes(), _parse_header, sealed=True),
    "quarantines": _Parser(_quarantine, _parse_quarantine, sealed=True),
    "labels": _Parser(lambda corpus: _LABELS, _parse_labels),
    "catalogs": _Parser(lambda corpus: (corpus / "whole/catalog.bin").read_bytes(), _parse_catalog),
    "npy": _Parser(lambda corpus: npy.dumps(np.arange(12.0).reshape(3, 4)), _parse_npy, refusals=(ValueError,)),
}

# Inputs

_TOKENS = st.sampled_from([b"", b"\0", b"\n", b'"', b"'", b",", b"{", b"}", b"[", b"]", b":", b"null", b"-1", b"1e999",
                           b"NaN", b"\\ud800", b"\xff", b"\xef\xbb\xbf", b"&a *a", b"!!python/object:os.system", b"../",
                           b"99999999999999999999", b"(2,)", b"<f8", b"'descr': '|O'"])  # fmt: skip

_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["", "..", "/etc/passwd", "\udcff", "a\0b", "lmdb", "frames"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def _edited(draw: st.DrawFn, seed: bytes) -> bytes:
    """Some bytes replaced, at up to four places."""
    data = bytearray(seed)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        size = draw(st.sampled_from([0, 1, 1, 2, 4, 8, 100, len(data)]))
        data[start : start + size] = draw(st.binary(max_size=8) | _TOKENS)
    return bytes(data)


@st.composite
def _resealed(draw: st.DrawFn, seed: bytes) -> bytes:
    """One line with another value somewhere, or a key less or more, under a digest that is right."""
    lines = seed.decode("ascii").splitlines()
    number = draw(st.integers(0, len(lines) - 1))
    data = sealed_json.unseal(lines[number], "seed")
    _edit_json(draw, data)
    lines[number] = sealed_json.seal(data)
    return "".join(line + "\n" for line in lines).encode()


def _edit_json(draw: st.DrawFn, data: Any) -> None:
    key = draw(st.sampled_from(sorted(data) if isinstance(data, dict) else range(len(data))))
    inner = data[key]
    if isinstance(inner, dict | list) and inner and draw(st.booleans()):
        _edit_json(draw, inner)
    elif draw(st.integers(0, 4)):
        data[key] = draw(_VALUES)
    elif isinstance(data, dict) and draw(st.booleans()):
        data[draw(st.text(max_size=4))] = inner
    else:
        del data[key]


def _inputs(parser: _Parser, seed: bytes) -> st.SearchStrategy[bytes]:
    edited = _edited(seed) | st.binary(max_size=64)
    return _resealed(seed) | edited if parser.sealed else edited


# The experiment


@contextlib.contextmanager
def _memory_limit() -> Iterator[None]:
    """A request for much more than is in use gets a MemoryError, which is not one of the exceptions allowed."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    in_use = int(status["VmData"].split()[0]) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (in_use + _MEMORY_BYTES, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, limits)


@experiment(
    "S10", "hypothesis against our own parsers, 256 MiB and 5 s for an input; what is read is written and read again",
    trials=2_000, batch=250, variants=tuple(PARSERS),
)  # fmt: skip
def parsers(trial: Trial) -> Figures:
    """The sound input must be read; every other one read or refused."""
    parser = PARSERS[trial.variant]
    corpus = trial.once("corpus", make_corpus)
    seed = parser.make(corpus)
    (trial.folder / "header").write_bytes((corpus / "whole/chordcache.json").read_bytes())
    folder = trial.folder / "parsed"
    num_inputs = num_refused = 0

    def parse(data: bytes) -> bool:
        """Return whether it was read."""
        folder.mkdir()
        try:
            parser.parse(folder, data)
        except parser.refusals:
            return False
        finally:
            shutil.rmtree(folder)
        return True

    @hypothesis.seed(trial.number)
    @hypothesis.settings(
        max_examples=trial.count,
        deadline=_DEADLINE,
        database=None,
        derandomize=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(_inputs(parser, seed))
    def parse_inputs(data: bytes) -> None:
        nonlocal num_inputs, num_refused
        num_inputs += 1
        num_refused += not parse(data)

    assert parse(seed)
    with _memory_limit():
        parse_inputs()
    assert num_refused or not parser.refusals
    return {"sum_inputs": num_inputs, "sum_refused": num_refused}
