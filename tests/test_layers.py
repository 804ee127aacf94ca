"""Folders import only folders with a lower level, and a third-party package has its owners."""

from __future__ import annotations

import ast
import itertools
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "chordcache"

LEVELS = {
    "": 0,
    "config": 1,
    "object_stores.client": 1,
    "object_stores.sources": 1,
    "media": 2,
    "engine": 2,
    "storage": 2,
    "features": 3,
    "index": 3,
    "object_stores": 3,
    "building": 4,
    "read": 4,
    "verifying": 5,
    "sources": 5,
    "look": 6,
    "train": 6,
    "formats": 7,
    "tools": 7,
    "cli": 8,
}
"""Level of each folder, and of modules that are below the rest of their folder. A folder imports only from folders with
a lower level; those with the same level do not know each other. Modules that lie in the package itself, such as errors
and records, hold facts for all: level 0."""

ENTRANCES = ("chordcache", "chordcache.__main__")
"""Modules of the package itself that are above all folders: the public names, and the command."""

OWNERS = {
    "PIL": ("chordcache.features.networks.pixels",),
    "av": ("chordcache.media.*", "chordcache.tools.bench.readers"),
    "click": ("chordcache.cli", "chordcache.cli.*"),
    "cv2": ("chordcache.media.opencv",),
    "diffusers": ("chordcache.features.networks.*",),
    "distributed": ("chordcache.engine.dask_cluster",),
    "h5py": ("chordcache.storage.artefacts.hdf5_writer",),
    "huggingface_hub": ("chordcache.features.networks.pretrained",),
    "jinja2": ("chordcache.look.report.*",),
    "joblib": ("chordcache.engine.pool",),
    "librosa": ("chordcache.features.librosa",),
    "lmdb": ("chordcache.storage.artefacts.lmdb_writer",),
    "markupsafe": ("chordcache.look.report.*",),
    "mediapipe": ("chordcache.features.*",),
    "msgspec": ("chordcache.json_records",),
    "numpy": ("*",),
    "obstore": ("chordcache.object_stores.client",),
    "pyarrow": (
        "chordcache.features.series",
        "chordcache.index.lists.parquet",
        "chordcache.media.parquet_episodes",
        "chordcache.formats.parquet_table",
    ),
    "ray": ("chordcache.engine.ray_cluster",),
    "safetensors": ("chordcache.formats.safetensors_files",),
    "simplejpeg": ("chordcache.media.jpeg",),
    "transformers": ("chordcache.features.networks.*",),
    "tokenizers": ("chordcache.train.captions",),
    "torch": (
        "chordcache.features.networks.*",
        "chordcache.formats.decode_video",
        "chordcache.train.augment",
        "chordcache.train.batches",
        "chordcache.train.clip_dataset",
        "chordcache.train.combined",
        "chordcache.train.dataset",
        "chordcache.train.from_config",
        "chordcache.train.gpu_decode",
        "chordcache.train.loader",
        "chordcache.train.collate",
        "chordcache.train.mixing",
        "chordcache.train.samplers.budget_batches",
        "chordcache.train.samplers.distributed",
        "chordcache.train.samples",
        "chordcache.train.shared_batches",
        "chordcache.tools.bench.readers",
    ),
    "torchvision": ("chordcache.train.gpu_decode",),
    "torchcodec": ("chordcache.tools.bench.readers",),
    "tqdm": ("chordcache.engine.terminal",),
    "xxhash": ("chordcache.digests",),
    "yaml": ("chordcache.config.yaml_files",),
    "webdataset": ("chordcache.formats.webdataset_shard",),
}
"""Modules that may import a package from outside."""

DYNAMIC_IMPORTS = (
    "chordcache",
    "chordcache.cli",
    "chordcache.features.built_in",
    "chordcache.features.registry",
    "chordcache.train.instantiate",
    "chordcache.storage.artefacts.open_files",
    "chordcache.storage.artefacts.writer",
)
"""Modules that may import by a name made at run time: all load lazily what is asked for."""


@dataclass(frozen=True)
class Import:
    line: int
    module: str | None
    """None where the name is made at run time"""
    name: str | None = None
    """Name that ``from module import name`` takes, None for ``import module``"""


MAX_LINES = 400
"""Number of lines of the longest module"""

MAX_CHAIN = 14
"""Length of the longest chain of modules of which each imports the next when it is loaded"""


def imports_of(source: str, module: str, *, is_package: bool = False, at_load: bool = False) -> Iterator[Import]:
    """All imports of a module, those inside functions and under TYPE_CHECKING too, or those ``at_load`` only."""
    tree = ast.parse(source)
    for node in tree.body if at_load else ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            start = absolute_name(node.module, node.level, module, is_package)
            for alias in node.names:
                yield Import(node.lineno, start, alias.name)
        elif isinstance(node, ast.Call) and called_name(node.func) in ("import_module", "__import__", "resolve_name"):
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


def folder_of(module: str, modules: set[str]) -> str:
    """The first folder below the package; "" for modules that lie in the package itself."""
    parts = module.split(".")
    if ".".join(parts[1:3]) in LEVELS:
        return ".".join(parts[1:3])
    is_folder = len(parts) > 2 or any(other.startswith(f"{module}.") for other in modules)
    return parts[1] if len(parts) > 1 and is_folder else ""


def is_owner(module: str, patterns: tuple[str, ...]) -> bool:
    return any(module == p or (p.endswith("*") and module.startswith(p[:-1])) for p in patterns)


def folder_complaint(module: str, target: str, name: str | None, modules: set[str]) -> str | None:
    """Return what is wrong with an import of a module of the package."""
    if target == "chordcache" and (name == "__version__" or folder_of(module, modules) == "cli"):
        return None  # the command line calls the public functions, as users do
    if target not in modules:
        return f"imports {target}, which does not exist"
    own, other = folder_of(module, modules), folder_of(target, modules)
    if module in ENTRANCES or (own == other and target not in ENTRANCES):
        return None
    if target in ENTRANCES:
        return f"imports {target}, which is above all folders"
    is_near = own.partition(".")[0] == other.partition(".")[0]
    if LEVELS[other] < LEVELS[own] + is_near:
        return None
    return f"'{own}', level {LEVELS[own]}, imports {target}, level {LEVELS[other]}"


def complaint(module: str, imported: Import, modules: set[str]) -> str | None:
    """Return what is wrong with one import, None if nothing is."""
    if imported.module is None:
        return None if module in DYNAMIC_IMPORTS else "imports by a name made at run time"
    package = imported.module.split(".")[0]
    if package == "chordcache":
        submodule = f"{imported.module}.{imported.name}"
        target = submodule if submodule in modules else imported.module
        return folder_complaint(module, target, imported.name, modules)
    if package in OWNERS:
        if not is_owner(module, OWNERS[package]):
            return f"imports {package}, which belongs to {', '.join(OWNERS[package])}"
    elif package not in sys.stdlib_module_names:
        return f"imports {package}, which no module owns: list it in OWNERS"
    return None


def violations(source: str, module: str, modules: set[str], *, is_package: bool = False) -> list[str]:
    """Everything that is wrong with a module's imports, one line each."""
    if folder_of(module, modules) not in LEVELS:
        return [f"{module}: its folder has no level in LEVELS"]
    try:
        imports = sorted(set(imports_of(source, module, is_package=is_package)), key=lambda i: (i.line, str(i)))
    except (SyntaxError, ValueError) as error:
        return [f"{module}: cannot be parsed: {error}"]
    return [f"{module}:{i.line}: {text}" for i in imports if (text := complaint(module, i, modules))]


def package_files() -> dict[str, Path]:
    """Module name: file, of the whole package."""
    files = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def test_package_keeps_to_its_layers() -> None:
    files = package_files()
    complaints = []
    for module, path in files.items():
        source = path.read_text(encoding="utf-8")
        complaints += violations(source, module, set(files), is_package=path.name == "__init__.py")
    assert not complaints, "\n" + "\n".join(complaints)


def test_no_module_is_too_long() -> None:
    lengths = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in package_files().items()}
    assert {module: length for module, length in lengths.items() if length > MAX_LINES} == {}


def graph_of_package(*, at_load: bool) -> dict[str, set[str]]:
    """Module to the modules of the package that it imports, but for the entrances. See ``imports_of``."""
    files = package_files()
    return {
        module: {
            target
            for imported in imports_of(
                path.read_text(encoding="utf-8"), module, is_package=path.name == "__init__.py", at_load=at_load
            )
            for target in (f"{imported.module}.{imported.name}", imported.module)
            if target in files and target not in (module, *ENTRANCES)
        }
        for module, path in files.items()
        if module not in ENTRANCES
    }


def test_no_modules_import_each_other() -> None:
    """Imports in functions and for typing count too."""
    assert_no_circle(graph_of_package(at_load=False))


def test_no_chain_of_imports_is_too_long() -> None:
    chain = longest_chain(graph_of_package(at_load=True))
    assert len(chain) <= MAX_CHAIN, " > ".join(chain)


def longest_chain(graph: Mapping[str, Collection[str]]) -> list[str]:
    """Return the longest path in a graph without a circle."""
    chains: dict[str, list[str]] = {}
    for module in TopologicalSorter(graph).static_order():
        behind = max((chains[target] for target in graph.get(module, ())), key=len, default=[])
        chains[module] = [module, *behind]
    return max(chains.values(), key=len)


def assert_no_circle(graph: Mapping[str, Collection[str]]) -> None:
    """Raise an error that names a circle of a graph, if there is one."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" > ".join(error.args[1]))


def test_every_level_has_a_folder() -> None:
    assert {level.partition(".")[0] for level in LEVELS if level} == {
        path.name for path in PACKAGE.iterdir() if path.is_dir()
    } - {"__pycache__"}


MODULES = {
    "chordcache",
    "chordcache.__main__",
    "chordcache.records",
    "chordcache.media.jpeg",
    "chordcache.media.demux",
    "chordcache.engine",
    "chordcache.engine.pool",
    "chordcache.storage.layout",
    "chordcache.storage.artefacts.lmdb_writer",
    "chordcache.building",
    "chordcache.building.build",
    "chordcache.read.cache",
    "chordcache.cli.build",
}


@pytest.mark.parametrize(
    ("module", "source", "match"),
    [
        ("chordcache.records", "from chordcache.media import jpeg", "level 0, imports chordcache.media.jpeg, level 2"),
        ("chordcache.media.demux", "from chordcache import engine", "level 2, imports chordcache.engine, level 2"),
        ("chordcache.media.demux", "from ..engine import pool", "level 2, imports chordcache.engine.pool, level 2"),
        ("chordcache.building.build", "from chordcache import scan", "imports chordcache, which is above all folders"),
        ("chordcache.records", "def f():\n    from chordcache.media import jpeg", "records:2: '', level 0, imports"),
        ("chordcache.records", "import_module('chordcache.read.cache')", "level 0, imports chordcache.read.cache"),
        ("chordcache.records", "from pkgutil import resolve_name\nresolve_name(name)", "made at run time"),
        ("chordcache.records", "import chordcache.elsewhere", "chordcache.elsewhere, which does not exist"),
        ("chordcache.read.cache", "import av.filter", "av, which belongs to"),
        ("chordcache.building.build", "from torch.utils import data", "torch, which belongs to"),
        ("chordcache.building.build", "import pandas", "pandas, which no module owns"),
        ("chordcache.utils.strings", "", "chordcache.utils.strings: its folder has no level"),
        ("chordcache.read.cache", "\0", "cannot be parsed"),
    ],
)
def test_checker_sees(module: str, source: str, match: str) -> None:
    assert match in "\n".join(violations(source, module, MODULES))


def test_each_test_file_has_a_name_of_its_own() -> None:
    """The folders of tests are not packages, so pytest refuses the second file with a name, however it is run."""
    files = sorted((PACKAGE.parent / "tests").rglob("test_*.py"), key=lambda path: path.name)
    assert len(files) > 100
    assert [a for a, b in itertools.pairwise(files) if a.name == b.name] == []
