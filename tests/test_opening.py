"""Files below a cache are opened by one module, ``storage.opener``: other modules say what else they open."""

from __future__ import annotations

import ast

import pytest
from test_layers import package_files

OPENER = "chordcache.storage.opener"

FUNCTIONS = {
    *("open", "io.open", "io.FileIO", "os.open", "os.walk", "os.fwalk", "os.scandir", "os.listdir", "os.truncate"),
    *("os.link", "os.rename", "os.replace", "os.remove", "os.unlink", "os.mkdir", "os.makedirs", "os.rmdir"),
    *("os.path.getsize", "glob.glob", "glob.iglob", "filecmp.cmp", "zipfile.ZipFile", "sqlite3.connect", "h5py.File"),
    *("shutil.copy", "shutil.copyfile", "shutil.copytree", "shutil.move", "shutil.rmtree", "np.load", "np.memmap"),
}
"""Functions that open, list, make or remove what a path names"""

METHODS = {
    *("read_bytes", "read_text", "write_bytes", "write_text", "iterdir", "glob", "rglob", "walk", "unlink", "touch"),
    *("mkdir", "rmdir", "rename", "symlink_to", "hardlink_to", "samefile"),
}
"""Methods of ``Path`` that do so. ``Path.open`` is found by its mode, since sources have methods of that name"""

OTHER_FILES = {
    "config.bounds": "lists and configs that the user names",
    "building.cluster_build": "removes the folder of its parts, which the driver made",
    "building.join_parts": "removes parts that are joined",
    "cli.output": "/dev/null",
    "building.pack": "removes the folders of a cache that was moved",
    "config.presets": "files of the package",
    "digests": "sources, models, and descriptors of the opener",
    "engine.child": "/proc",
    "formats.export": "writes a partial folder",
    "media.containers": "sources, whose size it asks for",
    "media.remux": "a file in memory",
    "engine.run_progress": "a log that the user names",
    "engine.worker": "/proc",
    "features.networks.pretrained": "models",
    "features.pose": "/dev/null",
    "index.index_files": "indices that the user names; those of caches come from the opener",
    "features.series": "tables of a source",
    "verifying.passport": "passports that the user names, and sources",
    "index.json_index": "indices that the user names",
    "index.lists.cosmos": "lists that the user names",
    "index.lists.pairs": "lists that the user names",
    "index.lists.parquet": "lists that the user names",
    "index.lists.lerobot": "lists that the user names",
    "index.lists.tables": "lists that the user names",
    "storage.catalog_columns": "a file in its private partial folder",
    "storage.feature_files": "writes partial files",
    "storage.packs": "writes partial files",
    "object_stores.lists": "writes partial files",
    "object_stores.local_folder": "writes partial files",
    "object_stores.pull": "writes partial files",
    "index.sealed_index": "indices that the user names; those of caches come from the opener",
    "index.walk": "sources",
    "look.report.make": "files of the package",
    "media.checks.transport_stream": "sources",
    "media.checks.truncation": "sources",
    "media.source_bytes": "sources",
    "media.source_file": "sources",
    "media.inner_source": "sources, and a file in memory",
    "media.tar_members": "descriptors of sources",
    "media.turbojpeg": "libraries",
    "storage.artefacts.array_writer": "writes partial files",
    "storage.artefacts.hdf5_writer": "writes partial files",
    "storage.artefacts.lmdb_writer": "writes partial files",
    "storage.atomic": "partial files, in a folder that the opener has opened; the cache's folder; users' files; /proc",
    "temporary": "removes temporary folders",
    "tools.bench.measurement": "/dev/null",
    "tools.doctor": "/proc and /sys",
    "train.captions": "tokenizers that the user names",
    "train.dataset": "memory that another process shares",
}
"""Module, without the name of the package, to what it opens by a path"""


def calls(source: str) -> list[str]:
    """Return the calls of a module that open a file by a path, in the order of the module."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        method = name.rpartition(".")[2] if "." in name else ""
        first = node.args[0] if node.args else None
        is_of_opener = isinstance(first, ast.Call) and ast.unparse(first.func).endswith("open_file")
        is_of_opener |= any(word.arg == "dir_fd" for word in node.keywords)
        is_mode = isinstance(first, ast.Constant) and first.value in ("rb", "wb", "ab", "r", "w", "r+b")
        is_method = method in METHODS or (method == "open" and (is_mode or bool(node.keywords and not node.args)))
        if is_method or (name in FUNCTIONS and not is_of_opener):
            names.append(name)
    return names


def test_files_of_a_cache_are_opened_by_the_opener_alone() -> None:
    opening = {module: calls(path.read_text(encoding="utf-8")) for module, path in package_files().items()}
    names = {module.removeprefix("chordcache."): opened for module, opened in opening.items() if opened}
    del names["storage.opener"]
    new = {module: opened for module, opened in names.items() if module not in OTHER_FILES}
    assert not new, f"open it by {OPENER}, or say in OTHER_FILES what else it is"
    assert sorted(OTHER_FILES.keys() - names.keys()) == [], "they open nothing any more"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("open(path, 'rb')", "open"),
        ("os.open(path, os.O_RDONLY)", "os.open"),
        ("for entry in os.scandir(cache): pass", "os.scandir"),
        ("(cache / name).read_bytes()", "(cache / name).read_bytes"),
        ("path.open('rb')", "path.open"),
        ("path.open(encoding='utf-8')", "path.open"),
        ("os.replace(partial, final)", "os.replace"),
    ],
)
def test_the_checker_sees(source: str, name: str) -> None:
    assert calls(source) == [name]
