"""Imports go down the layer table only, and a third-party package has its owners."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "chordcache"

LAYERS = {
    "chordcache.errors": 0,
    "chordcache.engine.crash_log": 0,
    "chordcache.records": 0,
    "chordcache.config": 0,
    "chordcache.engine.limits": 0,
    "chordcache.progress": 0,
    "chordcache.digests": 0,
    "chordcache.media.checks.bitstream": 1,
    "chordcache.media.checks.nal_units": 1,
    "chordcache.media.checks.packet_reader": 1,
    "chordcache.media.checks.packet_check": 1,
    "chordcache.media.checks.faults": 1,
    "chordcache.media.video_decoder": 1,
    "chordcache.media.decoding": 1,
    "chordcache.media.checks.container_watch": 1,
    "chordcache.media.containers": 1,
    "chordcache.media.timestamps": 1,
    "chordcache.media.ffmpeg_log": 1,
    "chordcache.media.activity": 1,
    "chordcache.media.demux": 1,
    "chordcache.media.checks.truncation": 1,
    "chordcache.features.base": 1,
    "chordcache.storage.flow_int8": 1,
    "chordcache.media.geometry": 1,
    "chordcache.storage.cache_header": 1,
    "chordcache.media.jpeg": 1,
    "chordcache.media.network": 1,
    "chordcache.storage.lock": 1,
    "chordcache.storage.layout": 1,
    "chordcache.media.mp4_boxes": 1,
    "chordcache.media.mp4_samples": 1,
    "chordcache.media.opencv": 1,
    "chordcache.media.scaling": 1,
    "chordcache.media.picture_data": 1,
    "chordcache.pipeline.options": 1,
    "chordcache.media.probe": 1,
    "chordcache.media.resample": 1,
    "chordcache.media.mp4_decoder": 1,
    "chordcache.media.audio": 1,
    "chordcache.media.source_file": 1,
    "chordcache.media.stereo3d": 1,
    "chordcache.storage.artefacts.base": 1,
    "chordcache.storage.artefacts.writer": 1,
    "chordcache.storage.artefacts.npy": 1,
    "chordcache.media.frame_index": 1,
    "chordcache.media.tonemap": 1,
    "chordcache.media.checks.transport_stream": 1,
    "chordcache.storage.catalog": 2,
    "chordcache.index.walk": 2,
    "chordcache.index.csv_table": 2,
    "chordcache.features": 2,
    "chordcache.features.flow": 2,
    "chordcache.features.frames": 2,
    "chordcache.features.mel": 2,
    "chordcache.features.motion": 2,
    "chordcache.features.pose": 2,
    "chordcache.features.registry": 2,
    "chordcache.index.files": 2,
    "chordcache.index.csv_index": 2,
    "chordcache.index.previous": 2,
    "chordcache.index.labels": 2,
    "chordcache.storage.quarantine": 2,
    "chordcache.storage.artefacts": 2,
    "chordcache.storage.artefacts.hdf5_store": 2,
    "chordcache.storage.artefacts.lmdb_store": 2,
    "chordcache.storage.artefacts.npz_store": 2,
    "chordcache.storage.artefacts.open_files": 2,
    "chordcache.read.cache": 3,
    "chordcache.engine.pool": 3,
    "chordcache.engine.worker": 3,
    "chordcache.engine.signals": 3,
    "chordcache.features.decode_pass": 3,
    "chordcache.read.decode_rows": 3,
    "chordcache.pipeline.plan": 3,
    "chordcache.read.summary": 4,
    "chordcache.pipeline.build": 4,
    "chordcache.read": 4,
    "chordcache.read.arguments": 4,
    "chordcache.read.augment": 4,
    "chordcache.read.on_demand.builder_process": 4,
    "chordcache.read.clips": 4,
    "chordcache.read.dataset": 4,
    "chordcache.read.collate": 4,
    "chordcache.read.batch_memory": 4,
    "chordcache.read.sampling.budget_batches": 4,
    "chordcache.read.loader": 4,
    "chordcache.read.on_demand.indexed_videos": 4,
    "chordcache.read.sampling.distributed": 4,
    "chordcache.read.sampling.by_name": 4,
    "chordcache.read.sampling.clip_samplers": 4,
    "chordcache.read.selection": 4,
    "chordcache.read.text": 4,
    "chordcache.read.sampling.time_transforms": 4,
    "chordcache.read.sources.file": 4,
    "chordcache.read.on_demand.from_source": 4,
    "chordcache.read.sources.live": 4,
    "chordcache.read.sources.mapped_mp4": 4,
    "chordcache.read.sources.base": 4,
    "chordcache.read.transforms": 4,
    "chordcache.read.crops": 4,
    "chordcache.pipeline.registration": 4,
    "chordcache.pipeline.repair": 4,
    "chordcache.index.scan": 4,
    "chordcache.pipeline.verify_source": 4,
    "chordcache.pipeline.verify": 4,
    "chordcache.pipeline.worker": 4,
    "chordcache": 5,  # the public names; `from chordcache import __version__` is anybody's
    "chordcache.cli": 5,
    "chordcache.__main__": 6,
}
"""Layer of each module. A module may import from its own layer and from those below it."""

OWNERS = {
    "av": (
        "chordcache.media.timestamps",
        "chordcache.media.video_decoder",
        "chordcache.media.decoding",
        "chordcache.media.checks.container_watch",
        "chordcache.media.containers",
        "chordcache.media.ffmpeg_log",
        "chordcache.media.activity",
        "chordcache.media.demux",
        "chordcache.features.mel",
        "chordcache.media.network",  # opens addresses and devices, which decode refuses
        "chordcache.media.scaling",
        "chordcache.media.picture_data",
        "chordcache.media.probe",
        "chordcache.media.resample",
        "chordcache.media.mp4_decoder",  # opens no container: it feeds a codec with samples cut out of a map
        "chordcache.media.audio",
    ),
    "click": ("chordcache.cli", "chordcache.cli.*"),
    "cv2": ("chordcache.media.opencv",),
    "h5py": ("chordcache.storage.artefacts.hdf5_store",),
    "jinja2": ("chordcache.reporting",),
    "joblib": ("chordcache.engine.pool",),
    "kornia": ("chordcache.read.augment",),
    "librosa": ("chordcache.features.*",),
    "lmdb": ("chordcache.storage.artefacts.lmdb_store",),
    "mediapipe": ("chordcache.features.*",),
    "numpy": ("*",),
    "simplejpeg": ("chordcache.media.jpeg",),
    "sqlite3": ("chordcache.storage.catalog",),
    "tokenizers": ("chordcache.read.text",),
    "torch": (
        "chordcache.read.augment",
        "chordcache.read.batch_memory",
        "chordcache.read.dataset",
        "chordcache.read.loader",
        "chordcache.read.collate",
    ),
    "tqdm": ("chordcache.engine.pool",),
    "xxhash": ("chordcache.digests",),
    "yaml": ("chordcache.config",),
}
"""Modules that may import a package from outside; sqlite3 is one that we keep as we keep those."""

DYNAMIC_IMPORTS = ("chordcache", "chordcache.cli", "chordcache.features.registry")
"""Modules that may import by a name made at run time: all load lazily what is asked for."""


@dataclass(frozen=True)
class Import:
    line: int
    module: str | None
    """None where the name is made at run time"""
    name: str | None = None
    """What ``from module import name`` takes, None for ``import module``"""


def imports_of(source: str, module: str, *, is_package: bool = False) -> Iterator[Import]:
    """All imports of a module, those inside functions and under TYPE_CHECKING too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            start = absolute_name(node.module, node.level, module, is_package)
            for alias in node.names:
                yield Import(node.lineno, start, alias.name)
        elif isinstance(node, ast.Call) and called_name(node.func) in ("import_module", "__import__"):
            argument = node.args[0] if node.args else None
            literal = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            yield Import(node.lineno, argument.value if literal else None)


def absolute_name(name: str | None, level: int, module: str, is_package: bool) -> str:
    """``from ..b import c`` within a.x.y is from a.b."""
    if not level:
        return name or ""
    parts = module.split(".")
    parts = parts[: len(parts) - level + is_package]
    return ".".join([*parts, name] if name else parts)


def called_name(function: ast.expr) -> str:
    return getattr(function, "attr", getattr(function, "id", ""))


def layer_of(module: str) -> int | None:
    """The cli's modules are many and alike; all others are listed one by one."""
    return LAYERS["chordcache.cli"] if module.startswith("chordcache.cli.") else LAYERS.get(module)


def is_owner(module: str, patterns: tuple[str, ...]) -> bool:
    return any(module == p or (p.endswith("*") and module.startswith(p[:-1])) for p in patterns)


def complaint(module: str, found: Import, modules: set[str]) -> str | None:
    """What is wrong with one import, None if nothing is."""
    if found.module is None:
        return None if module in DYNAMIC_IMPORTS else "imports by a name made at run time"
    package = found.module.split(".")[0]
    if package == "chordcache":
        if found.module == "chordcache" and found.name == "__version__":
            return None
        submodule = f"{found.module}.{found.name}"
        target = submodule if submodule in modules else found.module
        layer, own = layer_of(target), layer_of(module)
        if layer is None:
            return f"imports {target}, which is not listed in LAYERS"
        if own is not None and layer > own:
            return f"layer {own} imports {target}, layer {layer}"
    elif package in OWNERS:
        if not is_owner(module, OWNERS[package]):
            return f"imports {package}, which belongs to {', '.join(OWNERS[package])}"
    elif package not in sys.stdlib_module_names:
        return f"imports {package}, which nobody owns: list it in OWNERS"
    return None


def violations(source: str, module: str, modules: set[str], *, is_package: bool = False) -> list[str]:
    """Everything that is wrong with a module's imports, one line each."""
    found = [] if layer_of(module) is not None else [f"{module}: not listed; give it a layer in LAYERS"]
    try:
        imports = sorted(set(imports_of(source, module, is_package=is_package)), key=lambda i: (i.line, str(i)))
    except (SyntaxError, ValueError) as error:
        return [*found, f"{module}: cannot be parsed: {error}"]
    return found + [f"{module}:{i.line}: {text}" for i in imports if (text := complaint(module, i, modules))]


def package_files() -> dict[str, Path]:
    """Module name: file, of the whole package."""
    files = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def test_package_keeps_to_its_layers() -> None:
    files = package_files()
    found = []
    for module, path in files.items():
        source = path.read_text(encoding="utf-8")
        found += violations(source, module, set(files), is_package=path.name == "__init__.py")
    assert not found, "\n" + "\n".join(found)


def test_every_listed_module_exists() -> None:
    assert set(LAYERS) <= set(package_files())


# The checker itself

MODULES = set(LAYERS) | {"chordcache.cli.build"}


@pytest.mark.parametrize(
    ("module", "source", "match"),
    [
        (
            "chordcache.records",
            "from chordcache.pipeline.build import build",
            "layer 0 imports chordcache.pipeline.build, layer 4",
        ),
        ("chordcache.records", "import chordcache.read.cache", "layer 0 imports chordcache.read.cache, layer 3"),
        ("chordcache.media.demux", "from chordcache import engine", "layer 1 imports chordcache.engine.pool, layer 3"),
        ("chordcache.media.demux", "from . import engine", "layer 1 imports chordcache.engine.pool, layer 3"),
        (
            "chordcache.storage.artefacts.lmdb_store",
            "from ..cache import Cache",
            "layer 2 imports chordcache.read.cache, layer 3",
        ),
        ("chordcache.pipeline.build", "from chordcache import scan", "layer 4 imports chordcache, layer 5"),
        (
            "chordcache.pipeline.build",
            "from chordcache.cli import build",
            "layer 4 imports chordcache.cli.build, layer 5",
        ),
        (
            "chordcache.config",
            "def f():\n    from chordcache import jpeg",
            "config:2: layer 0 imports chordcache.media.jpeg",
        ),
        (
            "chordcache.config",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import chordcache.read.cache",
            "config:3: layer 0 imports chordcache.read.cache",
        ),
        (
            "chordcache.config",
            "import importlib\nimportlib.import_module('chordcache.read.cache')",
            "layer 0 imports chordcache.read.cache",
        ),
        ("chordcache.config", "__import__(name)", "made at run time"),
        ("chordcache.config", "import chordcache.elsewhere", "chordcache.elsewhere, which is not listed"),
        ("chordcache.read.cache", "import av", "av, which belongs to"),
        ("chordcache.read.cache", "import av.filter", "av, which belongs to"),
        ("chordcache.pipeline.build", "from torch.utils import data", "torch, which belongs to"),
        ("chordcache.clicks", "import click", "click, which belongs to"),
        ("chordcache.pipeline.build", "import sqlite3", "sqlite3, which belongs to"),
        ("chordcache.pipeline.build", "import pandas", "pandas, which nobody owns"),
        ("chordcache.utils", "", "chordcache.utils: not listed"),
        ("chordcache.read.cache", "def f(:", "cannot be parsed"),
        ("chordcache.read.cache", "\0", "cannot be parsed"),
    ],
)
def test_checker_sees(module: str, source: str, match: str) -> None:
    assert match in "\n".join(violations(source, module, MODULES))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("chordcache.pipeline.build", "import os, numpy as np\nfrom chordcache import manifest, jpeg"),
        ("chordcache.pipeline.build", "from chordcache import __version__"),
        ("chordcache.media.scaling", "from chordcache.media.containers import MAX_PIXELS"),
        (
            "chordcache.cli.build",
            "import click\nfrom chordcache import scan\nfrom chordcache.pipeline.build import build",
        ),
        ("chordcache.features.mel", "import av, librosa"),
        ("chordcache.storage.artefacts.lmdb_store", "import lmdb\nfrom ..errors import DamageError"),
        ("chordcache.cli", "import_module(name)"),
    ],
)
def test_checker_lets_pass(module: str, source: str) -> None:
    assert violations(source, module, MODULES) == []


def test_relative_imports_of_a_package() -> None:
    (found,) = imports_of("from .lmdb_store import open_records", "chordcache.storage.artefacts", is_package=True)
    assert found.module == "chordcache.storage.artefacts.lmdb_store"
