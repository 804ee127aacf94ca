"""Caches that a stranger sent: every command and the reader open nothing outside of them, and end in bounded memory."""

from __future__ import annotations

import json
import os
import resource
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from helpers import processes
from helpers.array_tables import Arrays, entry_of, line_of
from helpers.catalogs import forge, rows_of, sections_of
from helpers.ffmpeg import ffmpeg

from chordcache.building.pack import pack
from chordcache.digests import digest64, digest_file, hex128
from chordcache.storage import sealed_json
from chordcache.storage.artefacts.writer import create_artefact
from chordcache.storage.catalog_file import CATALOG, HEAD_BYTES
from fault_injection.corruptions import copy_of
from fault_injection.fixtures import make_corpus, states
from fault_injection.harness import Figures, Trial, experiment
from fault_injection.strace import traced

_MAX_MIB = 1024
"""[MiB] of a command and its workers, each"""

_SPARSE_BYTES = 64 << 30
"""Size of a file that has no content on the disk [bytes]"""

_LISTS = ("chordcache.json", "index.jsonl", CATALOG, "runs.jsonl", "quarantine.jsonl", ".lock")

Forgery = Callable[[Path, Path], None]
"""A change of a cache. The second folder is the one that no command may open."""


def _first(cache: Path, suffix: str) -> Path:
    return min(cache.glob(f"*/*/*{suffix}"))


def _place(cache: Path, name: str) -> Path:
    return _first(cache, name) if name in (".json", ".lmdb", ".npz", ".h5") else cache / name


def _link(name: str) -> Forgery:
    """Move a file or a folder out of the cache, and link to it."""

    def change(cache: Path, elsewhere: Path) -> None:
        path = _place(cache, name)
        target = elsewhere / path.name
        if path.exists():
            shutil.move(path, target)
        elif name.startswith("."):
            target.write_text("private\n")
        else:
            target.mkdir()
        path.symlink_to(target)

    return change


def _special(name: str, make: Callable[[Path], None]) -> Forgery:
    """Put a FIFO, a device or an endless file in the place of a file."""

    def change(cache: Path, elsewhere: Path) -> None:
        path = _place(cache, name)
        path.unlink(missing_ok=True)
        make(path)

    return change


def _zeros(path: Path) -> None:
    os.mknod(path, 0o644 | 0o020000, os.makedev(1, 5))


def _sparse(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(_SPARSE_BYTES)


def _sidecar(change_data: Callable[[dict[str, Any]], object], key: str = "") -> Forgery:
    """Change a sidecar and its row in the catalog, under digests that are right."""

    def change(cache: Path, elsewhere: Path) -> None:
        path = _first(cache, f"{key}.json")
        data = sealed_json.unseal(path.read_text(), "")
        change_data(data)
        line = sealed_json.seal(data)
        path.write_text(line + "\n")
        position = sections_of(cache)["keys"].decode().splitlines().index(path.stem)
        forge(cache, rows={position: line})

    return change


def _frames_of(data: dict[str, Any], **changes: object) -> None:
    for info in data["features"]:
        if info["feature"] == "frames":
            info.update(changes)


def _flow_in_a_hole(cache: Path, elsewhere: Path) -> None:
    """Let flow be a few kB of NPZ that hold 6 GiB of zeros, with digests and a sidecar that are right."""
    side, num_rows = 2048, 400
    path = min(cache.glob("*/*/*.flow.*.npz"))
    digest = digest64(bytes(side * side * 4))
    numbers = np.arange(num_rows + 1)
    arrays = {"flow.xxh3_64": np.full(num_rows, digest, "<u8"), "pts_seconds": numbers / 25}
    arrays |= {"source_frames": numbers, "keyframes": numbers[:1]}
    table: Arrays = {"flow": {"offset": 0, "shape": [num_rows, side, side, 2], "dtype": "<f2"}}
    with path.open("wb") as artefact:
        artefact.seek(num_rows * side * side * 4)
        for name, values in arrays.items():
            table[name] = entry_of(artefact.tell(), values)
            artefact.write(values.tobytes())
        artefact.write(b"\n" + line_of(table))
    size, file = path.stat().st_size, str(path.relative_to(cache))
    flow = {"shape": [num_rows, side, side, 2], "dtype": "float16", "num_rows": {"flow": num_rows}}

    def state(data: dict[str, Any]) -> None:
        data.update(num_frames=num_rows + 1, display_size=[side, side])
        data["features"] = [{**info, **flow} for info in data["features"] if _is_in(info, file)]
        for info in data["features"]:
            info["file"]["num_bytes"] = size

    _sidecar(state, path.name.partition(".")[0])(cache, elsewhere)


def _is_in(info: dict[str, Any], file: str) -> bool:
    return "file" in info and info["file"]["name"] == file


def _add_mel(data: dict[str, Any]) -> None:
    """Add mel of more channels than a file of sound has."""
    key = data["key"]
    data["features"].append(
        {
            "feature": "mel",
            "tier": "npz",
            "fingerprint": "0" * 16,
            "file": {
                "name": f"npz/{key[-16:-14]}/{key}.mel.00000000.npz",
                "num_bytes": 1 << 40,
                "digest": "0" * 32,
            },
            "dtype": "float32",
            "params": {"sample_rate": 16000, "hop_length": 160, "n_mels": 32769, "mono": False},
            "shape": [200, 1024, 32769],
            "num_rows": {"mel": 200},
            "facts": {"row_seconds": 0.01, "start_seconds": 0.0, "silence": -100.0},
        }
    )


def _holes(suffix: str) -> Forgery:
    """Let an artefact have 15 TiB, nearly all of them a hole, as the sidecar states."""

    def change(cache: Path, elsewhere: Path) -> None:
        path, size = _first(cache, suffix), 15 << 40
        os.truncate(path, size)

        def state(data: dict[str, Any]) -> None:
            for info in data["features"]:
                if _is_in(info, str(path.relative_to(cache))):
                    info["file"]["num_bytes"] = size

        _sidecar(state, path.name.partition(".")[0])(cache, elsewhere)

    return change


def _many_keys(cache: Path, elsewhere: Path) -> None:
    """State very many videos in the catalog, of which only the keys are there."""
    keys = b"".join(b"a-%016x\n" % number for number in range(1 << 20))
    with open(cache / CATALOG, "r+b") as file:
        head = sealed_json.unseal(file.read(HEAD_BYTES).decode().rstrip(), "")
        head["sections"]["keys"] = [file.seek(0, os.SEEK_END), len(keys), hex128(keys)]
        file.write(keys)
        file.truncate(400 << 20)
        head.update(num_videos=1 << 20, num_bytes=400 << 20)
        file.seek(0)
        file.write(sealed_json.seal(head).encode().ljust(HEAD_BYTES - 1) + b"\n")


def _many_labels(cache: Path, elsewhere: Path) -> None:
    """State very many labels in the catalog, which is as large as one may be."""
    forge(cache, sections={"labels": json.dumps([f"{number:x}" for number in range(6 << 20)]).encode()})


def _many_runs(cache: Path, elsewhere: Path) -> None:
    path = cache / "runs.jsonl"
    line = path.read_text().splitlines(keepends=True)[-1]
    path.write_text(line * 200_000)


def _large_packets(cache: Path, elsewhere: Path) -> None:
    """Let the frames of a video be packets of H.264 that decode to a far larger picture than the sidecar states."""
    path, count = _first(cache, ".frames.*.lmdb"), 24
    stream = elsewhere.with_name(f"{elsewhere.name}.h264")
    size = "color=black:s=16384x8704"
    ffmpeg("-f", "lavfi", "-i", size, "-frames:v", "1", "-c:v", "libx264", "-preset", "ultrafast", "-bf", "0", stream)
    with tempfile.TemporaryDirectory() as folder:
        writer = create_artefact(Path(folder) / path.name, gop=8, stride=1)
        writer.append("frames", [stream.read_bytes()] * count)
        numbers = np.arange(count)
        writer.finish({"pts_seconds": numbers / 25, "source_frames": numbers, "keyframes": numbers[:1]}, {})
        shutil.copy(writer.path, path)
    name = str(path.relative_to(cache))
    file = {"name": name, "num_bytes": path.stat().st_size, "digest": digest_file(path)}

    def state(data: dict[str, Any]) -> None:
        (info,) = [info for info in data["features"] if _is_in(info, name)]
        params = {"codec": "h264", "crf": 17, "gop": 8, "stride": 1, "picture": info["params"]["picture"]}
        info = {**info, "file": file, "params": params, "shape": [count, 64, 64, 3], "num_rows": {"frames": count}}
        data.update(num_frames=count, features=[info])

    _sidecar(state, path.name.partition(".")[0])(cache, elsewhere)


def _header(**changes: object) -> Forgery:
    def change(cache: Path, elsewhere: Path) -> None:
        path = cache / "chordcache.json"
        data = sealed_json.unseal(path.read_text(), "")
        path.write_text(sealed_json.seal({**data, **changes}) + "\n")

    return change


def _roots(cache: Path, elsewhere: Path) -> None:
    """Name a folder of the user, which has videos of the names and sizes that the sender knows."""
    header = sealed_json.unseal((cache / "chordcache.json").read_text(), "")
    shutil.copytree(header["roots"]["videos"], elsewhere / "videos")
    _header(roots={"videos": str(elsewhere / "videos")})(cache, elsewhere)


def _plug_in(cache: Path, elsewhere: Path) -> None:
    """Name a module beside the cache, which makes a folder when it is imported."""
    (cache.parent / "evilmod.py").write_text(f"import os\nos.mkdir({str(elsewhere / 'imported')!r})\n")
    _add_features(cache, evil={"extractor": "evilmod:Evil"})


def _models(cache: Path, elsewhere: Path) -> None:
    """Name models in a folder outside of the cache."""
    for name, kind in {"vae": {"_class_name": "AutoencoderKL"}, "text": {"model_type": "t5"}}.items():
        (elsewhere / name).mkdir()
        (elsewhere / name / "config.json").write_text(json.dumps(kind))
    vae, text = str(elsewhere / "vae"), str(elsewhere / "text")
    _add_features(cache, latents={"model": vae}, text={"model": text, "tokenizer": vae}, embed={"model": text})


def _add_features(cache: Path, **sections: dict[str, str]) -> None:
    """Add features to the header, as if builds had made them."""
    path = cache / "chordcache.json"
    data = sealed_json.unseal(path.read_text(), "")
    data["config"]["features"].update(sections)
    data["features"] = {tier: [*names, *sections] for tier, names in data["features"].items()}
    path.write_text(sealed_json.seal(data) + "\n")


def _far_rows(cache: Path, elsewhere: Path) -> None:
    forge(cache, sections={"offsets": b"\x7f" * len(sections_of(cache)["offsets"])})


def _packed(change: Forgery) -> Forgery:
    """Pack the cache, then change it."""

    def change_packed(cache: Path, elsewhere: Path) -> None:
        pack(cache, cache.with_name("packed"), move=True)
        cache.with_name("packed").rename(cache)
        change(cache, elsewhere)

    return change_packed


def _in_pack(make: Callable[[Path], None]) -> Forgery:
    """Put something else in the place of the pack."""

    def change(cache: Path, elsewhere: Path) -> None:
        path = min(cache.glob("packs/*.pack"))
        path.rename(elsewhere / path.name)
        make(path)

    return change


def _linked_pack(cache: Path, elsewhere: Path) -> None:
    path = min(cache.glob("packs/*.pack"))
    path.rename(elsewhere / path.name)
    path.symlink_to(elsewhere / path.name)


def _place_in_pack(**place: object) -> Forgery:
    """State another place of the files of a video in the catalog, under digests that are right."""

    def change(cache: Path, elsewhere: Path) -> None:
        data = sealed_json.unseal(rows_of(cache)[0], "")
        for info in data["features"]:
            if "packed" in info["file"]:
                info["file"]["packed"].update(place)
        forge(cache, rows={0: sealed_json.seal(data)})

    return change


def _forged_head(cache: Path, elsewhere: Path) -> None:
    """State in the head of the catalog that it has very many videos in few bytes."""
    path = cache / "catalog.bin"
    with open(path, "r+b") as file:
        head = sealed_json.unseal(file.read(HEAD_BYTES).decode().rstrip(), "")
        head["num_videos"] = 1 << 40
        file.seek(0)
        file.write(sealed_json.seal(head).encode().ljust(HEAD_BYTES - 1) + b"\n")


FORGERIES: dict[str, Forgery] = {
    **{f"link {name}": _link(name) for name in (*_LISTS, ".json", ".lmdb", ".npz", ".h5")},
    **{f"link {name}": _link(name) for name in ("videos", "lmdb", "npz", ".partial")},
    **{f"FIFO {name}": _special(name, os.mkfifo) for name in (*_LISTS, ".json", ".lmdb", ".npz", ".h5")},
    **{f"device {name}": _special(name, _zeros) for name in (*_LISTS, ".json", ".lmdb", ".npz", ".h5")},
    **{f"sparse {name}": _special(name, _sparse) for name in (*_LISTS, ".json", ".lmdb", ".npz", ".h5")},
    "packed, link": _packed(_linked_pack),
    "packed, link packs": _packed(_link("packs")),
    "packed, FIFO": _packed(_in_pack(os.mkfifo)),
    "packed, device": _packed(_in_pack(_zeros)),
    "packed, sparse": _packed(_in_pack(_sparse)),
    "packed, far away": _packed(_place_in_pack(offset=(1 << 62) - 1)),
    "packed, in another place": _packed(_place_in_pack(offset=1)),
    "packed, another name": _packed(_place_in_pack(pack="../../elsewhere")),
    "packed, no such pack": _packed(_place_in_pack(pack="0" * 32)),
    "packed, many videos": _packed(_forged_head),
    "plug-in": _plug_in,
    "models": _models,
    "roots": _roots,
    "rows far away": _far_rows,
    "one channel": _sidecar(lambda data: _frames_of(data, shape=[24, 64, 64, 1])),
    "no rows": _sidecar(lambda data: _frames_of(data, shape=[0, 0, 0, 0], num_rows={})),
    **{f"15 TiB {suffix}": _holes(suffix) for suffix in (".lmdb", ".npz", ".h5")},
    "flow in a hole": _flow_in_a_hole,
    "sound of many channels": _sidecar(_add_mel),
    "keys of many videos": _many_keys,
    "many labels": _many_labels,
    "many runs": _many_runs,
    "many features": _sidecar(lambda data: data.update(features=data["features"][:1] * 20_000)),
    "large packets": _large_packets,
    "a wide picture": _sidecar(
        lambda data: (data.update(width=16384, height=16384), _frames_of(data, shape=[24, 16384, 16384, 3]))
    ),
    "a large picture": _sidecar(lambda data: _frames_of(data, shape=[24, 30_000, 30_000, 3])),
    "many rows": _sidecar(lambda data: _frames_of(data, num_rows={"frames": 1 << 30})),
    "a long video": _sidecar(lambda data: data.update(num_frames=(1 << 31) - 1, duration_seconds=1e300)),
    "another key": _sidecar(lambda data: data.update(key="../../elsewhere/x-0123456789abcdef")),
}

READ = """
import chordcache as cc
try:
    with cc.open_cache("cache") as cache:
        for position in range(len(cache)):
            try:
                video = cache[position]
                for info in video.sidecar.features:
                    cache.read(video, info.feature, 0, 2, tier=info.tier)
            except cc.ChordcacheError:
                pass
except cc.ChordcacheError:
    pass
"""

COMMANDS = (
    *(["info", "cache"], ["ls", "cache"], ["verify", "cache", "--deep", "-j1"], ["merge", "cache", "-o", "merged"]),
    *(
        ["unpack", "cache", "-o", "unpacked"],
        ["pack", "cache", "-o", "packed"],
        ["gc", "cache"],
        ["verify", "cache", "--repair", "-j1"],
        ["report", "cache", "-o", "report.html"],
    ),
    *(["info", "cache", "0-"], ["show", "cache", "0-", "-o", "0.png"], ["ls", "cache/index.jsonl"]),
    ["build", "cache/index.jsonl", "-o", "new", "--dry-run"],
)

BENCH = """
import chordcache as cc
from chordcache.tools.bench.measurement import bench
from chordcache.tools.bench.result import BenchOptions
try:
    bench("cache", options=BenchOptions(workers=0, seconds=0.01))
except cc.ChordcacheError:
    pass
"""

OF_SOURCES: tuple[list[str], ...] = (
    ["export", "cache", "-o", "out", "--format", "webdataset", "--frames", "mp4"],
    ["build", "cache/index.jsonl", "-o", "cache", "--dry-run"],
    ["verify", "cache", "--source", "-j1"],
    ["-c", BENCH],
)
"""Commands that open videos below the roots that the header names, as SECURITY.md says. ``bench`` takes ten seconds, so
that it reads only the cache whose header names a folder of the user"""


@experiment(
    "R24", "a cache from a stranger, of one kind of forgery each: every command and the reader, under strace",
    trials=len(FORGERIES), batch=2, alone=True,  # pack writes 64 GiB, of which others may need some
)  # fmt: skip
def received(trial: Trial) -> Figures:
    corpus = trial.once("corpus", make_corpus)
    num_outside = num_runs = 0
    for number in range(trial.number, trial.number + trial.count):
        name = list(FORGERIES)[number]
        folder, elsewhere = trial.folder / str(number), trial.folder / f"elsewhere-{number}"
        folder.mkdir()
        elsewhere.mkdir()
        FORGERIES[name](copy_of(corpus / "whole", folder), elsewhere)
        before = states(elsewhere)
        build = ["build", str(corpus / "index.json"), "-o", "cache", "-j1"]
        for args in (["-c", READ], *COMMANDS, *OF_SOURCES[: None if name == "roots" else -1], build):
            run = traced(folder, program=args) if args[0] == "-c" else traced(folder, *args)
            num_runs += 1
            assert 0 <= run.returncode < 128, f"{name}: {args}: {run.returncode}: {run.stderr}"
            assert run.returncode != 1, f"{name}: {args}: {run.stderr}"
            assert processes.fine(run.stderr), f"{name}: {args}: {run.stderr}"
            outside = set() if name == "roots" and args in OF_SOURCES else run.touched_below(elsewhere)
            assert outside == set(), f"{name}: {args}: {outside}"
            num_outside += len(outside)
        assert states(elsewhere) == before, name
    peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    assert peak_mib < _MAX_MIB, peak_mib
    return {"sum_runs": num_runs, "sum_outside": num_outside, "max_mib": peak_mib}
