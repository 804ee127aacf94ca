"""The public names: all there, all lazy, none hidden by a module of the same name."""

from __future__ import annotations

import ast
import inspect
import pickle
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import chordcache

MODULES = sorted({m.name for m in pkgutil.walk_packages(chordcache.__path__, "chordcache.")} - {"chordcache.__main__"})


@pytest.mark.parametrize("name", chordcache.__all__)
def test_public_name_resolves(name: str) -> None:
    value = getattr(chordcache, name)
    assert name == "__version__" or value.__name__.rpartition(".")[2] == name


CALLS = [
    name
    for name in chordcache.__all__
    if callable(value := getattr(chordcache, name))
    and not (isinstance(value, type) and issubclass(value, Exception))
    and name not in ("Index", "Video", "from_config")
]
"""Public calls that a program makes. It makes no ``Index`` and no ``Video``. Configs have errors of their own"""


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_of_any_call_is_named(name: str) -> None:
    call = getattr(chordcache, name)
    parameters = list(inspect.signature(call).parameters)
    with pytest.raises(
        chordcache.UsageError, match=f"^shape_of_it: got an argument that {name} does not have"
    ) as caught:
        call(shape_of_it=1)
    assert f"expected one of {', '.join(parameters)}" in str(caught.value)
    with pytest.raises(TypeError, match="missing|at most|takes"):
        call(*range(len(parameters) + 1))
    assert pickle.loads(pickle.dumps(call)) is call


@pytest.mark.parametrize(
    ("name", "argument", "meant"),
    [
        ("ClipLoader", "collate_fn", "'collate'"),
        ("ClipLoader", "prefetch_factor", "'prefetch'"),
        ("make_loader", "num_threads", "'num_workers'"),
        ("make_loader", "generator", "'sampler'"),
        ("make_loader", "multiprocessing_context", "'start_method'"),
        ("ChordVideoDataset", "feature", "'features'"),
        ("ChordVideoDataset", "short_side", "'crop', such as Resize"),
        ("ChordVideoDataset", "resolution", "'size'"),
        ("ChordVideoDataset", "transforms", "'transform'"),
        ("ChordVideoDataset", "on_miss", "'cache', such as chordcache.videos.indexed"),
        ("build", "fps", "'config', with frames.fps"),
        ("build", "tier", "'tiers'"),
        ("build", "num_workers", "'jobs'"),
        ("verify", "workers", "'jobs'"),
        ("export", "stride_", "'stride'"),
    ],
)
def test_the_right_argument_is_named(name: str, argument: str, meant: str) -> None:
    with pytest.raises(chordcache.UsageError, match=f"^{argument}: got .*Did you mean {meant}"):
        getattr(chordcache, name)(**{argument: 1})


def test_all_is_sorted_and_has_no_module() -> None:
    assert chordcache.__all__ == sorted(chordcache.__all__)
    assert set(chordcache.__all__) == set(dir(chordcache))
    assert not set(chordcache.__all__) & {name.split(".")[1] for name in MODULES}


def test_the_root_stays_small() -> None:
    assert len(chordcache.__all__) <= 56


@pytest.mark.slow
def test_importing_every_module_hides_no_public_name() -> None:
    code = (
        "import importlib, sys, types, chordcache\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "values = {name: getattr(chordcache, name) for name in chordcache.__all__}\n"
        "modules = [name for name, value in values.items() if isinstance(value, types.ModuleType)]\n"
        "assert modules == ['crops', 'samplers', 'videos'], values\n"
        "for name, value in values.items(): assert getattr(chordcache, name) is value"
    )
    result = subprocess.run([sys.executable, "-c", code, *MODULES], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


PUBLIC_ERRORS = {name for name, value in vars(chordcache.errors).items() if isinstance(value, type)} - {
    "AbsentFeatureError"  # programs catch it as a NotFoundError
}


def test_type_checkers_see_what_is_loaded() -> None:
    tree = ast.parse(Path(chordcache.__file__).read_text(encoding="utf-8"))
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in guarded.body for alias in node.names}
    for module in ("crops", "samplers", "videos"):
        seen[module] = f"{seen[module]}.{module}"
    assert seen == chordcache._LAZY
    assert {*seen, *PUBLIC_ERRORS, "__version__"} == set(chordcache.__all__)


@pytest.mark.parametrize(
    ("module", "name", "message"),
    [
        ("torch", "ChordVideoDataset", "ChordVideoDataset needs PyTorch: pip install 'chordcache[train]'"),
        ("tokenizers", "CaptionTokenizer", "CaptionTokenizer needs tokenizers: pip install 'chordcache[text]'"),
    ],
)
def test_without_an_extra(module: str, name: str, message: str) -> None:
    code = f"import sys; sys.modules['{module}'] = None\nimport chordcache\nchordcache.{name}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 1
    assert message in result.stderr


def test_console_script() -> None:
    script = Path(sys.executable).with_name("chordcache")
    result = subprocess.run([script, "--help"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert "scan" in result.stdout


def test_samplers_have_short_names_at_the_root() -> None:
    assert chordcache.samplers.random is chordcache.RandomClipSampler
    assert {"adaptive", "keyframe", "random", "uniform"} <= set(dir(chordcache.samplers))
    assert len(chordcache.samplers.uniform(4).frame_numbers.__doc__ or "") > 0


@pytest.mark.slow
def test_a_name_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'open_cash'. Did you mean 'open_cache'?"):
        chordcache.open_cash  # noqa: B018
    program = tmp_path / "program.py"
    program.write_text(
        "import chordcache as cc\n"
        "cc.open_cash('cache')\n"
        "cc.samplers.uniform(8)\n"
        "cc.samplers.unifrom(8)\n"
        "cc.open_cache('cache')\n"
    )
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\nfollow_imports = skip\n"  # the modules that define the names take a minute, and are Any here
        "[mypy-chordcache,chordcache.train.samplers.*]\nfollow_imports = silent\n"
    )
    checker = [sys.executable, "-m", "mypy", f"--config-file={tmp_path / 'mypy.ini'}", "--cache-dir=/dev/null"]
    result = subprocess.run([*checker, str(program)], capture_output=True, text=True, timeout=600)
    lines = [line.partition(": ")[0].rpartition(":")[2] for line in result.stdout.splitlines() if ": error: " in line]
    assert lines == ["2", "4"], result.stdout + result.stderr
    assert 'no attribute "open_cash"' in result.stdout
