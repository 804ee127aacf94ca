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
    "chordcache.last_words": 0,
    "chordcache.records": 0,
    "chordcache.config": 0,
    "chordcache.watchdog": 0,
    "chordcache.progress": 0,
    "chordcache.digests": 0,
    "chordcache.bitstream": 1,
    "chordcache.nal_units": 1,
    "chordcache.packet_reader": 1,
    "chordcache.packet_check": 1,
    "chordcache.faults": 1,
    "chordcache.video_decoder": 1,
    "chordcache.decoding": 1,
    "chordcache.container_watch": 1,
    "chordcache.containers": 1,
    "chordcache.clock": 1,
    "chordcache.complaints": 1,
    "chordcache.content": 1,
    "chordcache.decode": 1,
    "chordcache.endings": 1,
    "chordcache.extractors.base": 1,
    "chordcache.flow_codes": 1,
    "chordcache.geometry": 1,
    "chordcache.header": 1,
    "chordcache.jpeg": 1,
    "chordcache.live": 1,
    "chordcache.locking": 1,
    "chordcache.manifest": 1,
    "chordcache.mp4": 1,
    "chordcache.mp4_tables": 1,
    "chordcache.opencv": 1,
    "chordcache.picture": 1,
    "chordcache.picture_data": 1,
    "chordcache.policy": 1,
    "chordcache.probe": 1,
    "chordcache.resample": 1,
    "chordcache.sample_decoder": 1,
    "chordcache.sound": 1,
    "chordcache.source_file": 1,
    "chordcache.stereo": 1,
    "chordcache.stores.base": 1,
    "chordcache.stores.writing": 1,
    "chordcache.stores.npy": 1,
    "chordcache.timeline": 1,
    "chordcache.tonemap": 1,
    "chordcache.transport_stream": 1,
    "chordcache.catalog": 2,
    "chordcache.corpus": 2,
    "chordcache.csv_table": 2,
    "chordcache.extractors": 2,
    "chordcache.extractors.flow": 2,
    "chordcache.extractors.frames": 2,
    "chordcache.extractors.mel": 2,
    "chordcache.extractors.motion": 2,
    "chordcache.extractors.pose": 2,
    "chordcache.extractors.registry": 2,
    "chordcache.index": 2,
    "chordcache.index_csv": 2,
    "chordcache.index_reuse": 2,
    "chordcache.labels": 2,
    "chordcache.quarantine": 2,
    "chordcache.stores": 2,
    "chordcache.stores.hdf5_store": 2,
    "chordcache.stores.lmdb_store": 2,
    "chordcache.stores.npz_store": 2,
    "chordcache.stores.registry": 2,
    "chordcache.cache": 3,
    "chordcache.engine": 3,
    "chordcache.engine_worker": 3,
    "chordcache.stopping": 3,
    "chordcache.extraction": 3,
    "chordcache.retrieval": 3,
    "chordcache.wanted": 3,
    "chordcache.information": 4,
    "chordcache.pipeline": 4,
    "chordcache.read": 4,
    "chordcache.read.arguments": 4,
    "chordcache.read.augment": 4,
    "chordcache.read.background": 4,
    "chordcache.read.clips": 4,
    "chordcache.read.dataset": 4,
    "chordcache.read.ragged": 4,
    "chordcache.read.batches": 4,
    "chordcache.read.budget": 4,
    "chordcache.read.loader": 4,
    "chordcache.read.on_miss": 4,
    "chordcache.read.order": 4,
    "chordcache.read.sampler_config": 4,
    "chordcache.read.samplers": 4,
    "chordcache.read.selection": 4,
    "chordcache.read.text": 4,
    "chordcache.read.time_transforms": 4,
    "chordcache.read.decoded": 4,
    "chordcache.read.from_source": 4,
    "chordcache.read.live": 4,
    "chordcache.read.mapped": 4,
    "chordcache.read.sources": 4,
    "chordcache.read.transforms": 4,
    "chordcache.read.windows": 4,
    "chordcache.registration": 4,
    "chordcache.repairing": 4,
    "chordcache.scanning": 4,
    "chordcache.source_check": 4,
    "chordcache.verification": 4,
    "chordcache.worker": 4,
    "chordcache": 5,  # the public names; `from chordcache import __version__` is anybody's
    "chordcache.cli": 5,
    "chordcache.__main__": 6,
}
"""Layer of each module. A module may import from its own layer and from those below it."""

OWNERS = {
    "av": (
        "chordcache.clock",
        "chordcache.video_decoder",
        "chordcache.decoding",
        "chordcache.container_watch",
        "chordcache.containers",
        "chordcache.complaints",
        "chordcache.content",
        "chordcache.decode",
        "chordcache.extractors.mel",
        "chordcache.live",  # opens addresses and devices, which decode refuses
        "chordcache.picture",
        "chordcache.picture_data",
        "chordcache.probe",
        "chordcache.resample",
        "chordcache.sample_decoder",  # opens no container: it feeds a codec with samples cut out of a map
        "chordcache.sound",
    ),
    "click": ("chordcache.cli", "chordcache.cli.*"),
    "cv2": ("chordcache.opencv",),
    "h5py": ("chordcache.stores.hdf5_store",),
    "jinja2": ("chordcache.reporting",),
    "joblib": ("chordcache.engine",),
    "kornia": ("chordcache.read.augment",),
    "librosa": ("chordcache.extractors.*",),
    "lmdb": ("chordcache.stores.lmdb_store",),
    "mediapipe": ("chordcache.extractors.*",),
    "numpy": ("*",),
    "simplejpeg": ("chordcache.jpeg",),
    "sqlite3": ("chordcache.catalog",),
    "tokenizers": ("chordcache.read.text",),
    "torch": (
        "chordcache.read.augment",
        "chordcache.read.batches",
        "chordcache.read.dataset",
        "chordcache.read.loader",
        "chordcache.read.ragged",
    ),
    "tqdm": ("chordcache.engine",),
    "xxhash": ("chordcache.digests",),
    "yaml": ("chordcache.config",),
}
"""Modules that may import a package from outside; sqlite3 is one that we keep as we keep those."""

DYNAMIC_IMPORTS = ("chordcache", "chordcache.cli", "chordcache.extractors.registry")
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
        ("chordcache.records", "from chordcache.pipeline import build", "layer 0 imports chordcache.pipeline, layer 4"),
        ("chordcache.records", "import chordcache.cache", "layer 0 imports chordcache.cache, layer 3"),
        ("chordcache.decode", "from chordcache import engine", "layer 1 imports chordcache.engine, layer 3"),
        ("chordcache.decode", "from . import engine", "layer 1 imports chordcache.engine, layer 3"),
        ("chordcache.stores.lmdb_store", "from ..cache import Cache", "layer 2 imports chordcache.cache, layer 3"),
        ("chordcache.pipeline", "from chordcache import scan", "layer 4 imports chordcache, layer 5"),
        ("chordcache.pipeline", "from chordcache.cli import build", "layer 4 imports chordcache.cli.build, layer 5"),
        ("chordcache.config", "def f():\n    from chordcache import jpeg", "config:2: layer 0 imports chordcache.jpeg"),
        (
            "chordcache.config",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import chordcache.cache",
            "config:3: layer 0 imports chordcache.cache",
        ),
        (
            "chordcache.config",
            "import importlib\nimportlib.import_module('chordcache.cache')",
            "layer 0 imports chordcache.cache",
        ),
        ("chordcache.config", "__import__(name)", "made at run time"),
        ("chordcache.config", "import chordcache.elsewhere", "chordcache.elsewhere, which is not listed"),
        ("chordcache.cache", "import av", "av, which belongs to"),
        ("chordcache.cache", "import av.filter", "av, which belongs to"),
        ("chordcache.pipeline", "from torch.utils import data", "torch, which belongs to"),
        ("chordcache.clicks", "import click", "click, which belongs to"),
        ("chordcache.pipeline", "import sqlite3", "sqlite3, which belongs to"),
        ("chordcache.pipeline", "import pandas", "pandas, which nobody owns"),
        ("chordcache.utils", "", "chordcache.utils: not listed"),
        ("chordcache.cache", "def f(:", "cannot be parsed"),
        ("chordcache.cache", "\0", "cannot be parsed"),
    ],
)
def test_checker_sees(module: str, source: str, match: str) -> None:
    assert match in "\n".join(violations(source, module, MODULES))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("chordcache.pipeline", "import os, numpy as np\nfrom chordcache import manifest, jpeg"),
        ("chordcache.pipeline", "from chordcache import __version__"),
        ("chordcache.picture", "from chordcache.containers import MAX_PIXELS"),
        ("chordcache.cli.build", "import click\nfrom chordcache import scan\nfrom chordcache.pipeline import build"),
        ("chordcache.extractors.mel", "import av, librosa"),
        ("chordcache.stores.lmdb_store", "import lmdb\nfrom ..errors import DamageError"),
        ("chordcache.cli", "import_module(name)"),
    ],
)
def test_checker_lets_pass(module: str, source: str) -> None:
    assert violations(source, module, MODULES) == []


def test_relative_imports_of_a_package() -> None:
    (found,) = imports_of("from .lmdb_store import open_records", "chordcache.stores", is_package=True)
    assert found.module == "chordcache.stores.lmdb_store"
