"""A cache of video frames that is made offline and feeds PyTorch.

These are the names that most programs use. The others are imported from their folders: more sources of frames from
``chordcache.sources``, batches of one budget from ``chordcache.train.samplers.budget_batches``, the base class of
plug-ins from ``chordcache.features.base``, the classes of results from ``chordcache.records`` and
``chordcache.storage.feature_info``.

All names but the exceptions are loaded when they are first used. So ``import chordcache`` is fast, and a program that
only reads caches never loads a decoder.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import TYPE_CHECKING, Any

from chordcache.arguments import did_you_mean
from chordcache.errors import ChordcacheError as ChordcacheError
from chordcache.errors import DamageError as DamageError
from chordcache.errors import LockedError as LockedError
from chordcache.errors import MediaError as MediaError
from chordcache.errors import NotFoundError as NotFoundError
from chordcache.errors import StoppedError as StoppedError
from chordcache.errors import StorageError as StorageError
from chordcache.errors import UsageError as UsageError

if TYPE_CHECKING:
    from chordcache.building.build import build as build
    from chordcache.building.build_options import BuildOptions as BuildOptions
    from chordcache.building.dry_run import dry_run as dry_run
    from chordcache.building.merge import merge as merge
    from chordcache.formats.export import export as export
    from chordcache.index.index_files import read_index as read_index
    from chordcache.index.scan import scan as scan
    from chordcache.look.draw_sheet import show as show
    from chordcache.look.report.make import report as report
    from chordcache.read import crops as crops
    from chordcache.read.cache import Cache as Cache
    from chordcache.read.cache import open_cache as open_cache
    from chordcache.read.video import Video as Video
    from chordcache.sources.media_file import MP4Source as MP4Source
    from chordcache.tools.bench.loader_waits import bench_loader as bench_loader
    from chordcache.train import samplers as samplers
    from chordcache.train import videos as videos
    from chordcache.train.augment import BatchAugment as BatchAugment
    from chordcache.train.captions import CaptionTokenizer as CaptionTokenizer
    from chordcache.train.collate import collate as collate
    from chordcache.train.combined import concat as concat
    from chordcache.train.combined import subset as subset
    from chordcache.train.dataset import ChordVideoDataset as ChordVideoDataset
    from chordcache.train.from_config import from_config as from_config
    from chordcache.train.grouped import group as group
    from chordcache.train.loader import ClipLoader as ClipLoader
    from chordcache.train.loader import make_loader as make_loader
    from chordcache.train.samplers.clip_samplers import RandomClipSampler as RandomClipSampler
    from chordcache.train.samplers.clip_samplers import RegularClipSampler as RegularClipSampler
    from chordcache.train.samplers.distributed import ChordSampler as ChordSampler
    from chordcache.verifying.leaks import leaks as leaks
    from chordcache.verifying.passport import passport as passport
    from chordcache.verifying.repair import collect_garbage as collect_garbage
    from chordcache.verifying.repair import repair as repair
    from chordcache.verifying.verify import verify as verify

__version__ = "0.1.0"

_LAZY = {
    "BatchAugment": "chordcache.train.augment",
    "BuildOptions": "chordcache.building.build_options",
    "Cache": "chordcache.read.cache",
    "CaptionTokenizer": "chordcache.train.captions",
    "ChordSampler": "chordcache.train.samplers.distributed",
    "ChordVideoDataset": "chordcache.train.dataset",
    "ClipLoader": "chordcache.train.loader",
    "MP4Source": "chordcache.sources.media_file",
    "RandomClipSampler": "chordcache.train.samplers.clip_samplers",
    "RegularClipSampler": "chordcache.train.samplers.clip_samplers",
    "Video": "chordcache.read.video",
    "bench_loader": "chordcache.tools.bench.loader_waits",
    "build": "chordcache.building.build",
    "collate": "chordcache.train.collate",
    "collect_garbage": "chordcache.verifying.repair",
    "concat": "chordcache.train.combined",
    "crops": "chordcache.read.crops",
    "dry_run": "chordcache.building.dry_run",
    "export": "chordcache.formats.export",
    "from_config": "chordcache.train.from_config",
    "group": "chordcache.train.grouped",
    "leaks": "chordcache.verifying.leaks",
    "make_loader": "chordcache.train.loader",
    "merge": "chordcache.building.merge",
    "open_cache": "chordcache.read.cache",
    "passport": "chordcache.verifying.passport",
    "read_index": "chordcache.index.index_files",
    "repair": "chordcache.verifying.repair",
    "report": "chordcache.look.report.make",
    "samplers": "chordcache.train.samplers",
    "scan": "chordcache.index.scan",
    "show": "chordcache.look.draw_sheet",
    "subset": "chordcache.train.combined",
    "verify": "chordcache.verifying.verify",
    "videos": "chordcache.train.videos",
}
"""Public name to its module. It has the same names as the imports under TYPE_CHECKING. A test compares the two."""

__all__ = sorted([*_LAZY, "__version__", *(name for name in globals() if name.endswith("Error"))])

_EXTRAS = {"torch": ("PyTorch", "train"), "tokenizers": ("tokenizers", "text")}
"""Optional module to its display name, and the extra that installs it."""


def _load(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'chordcache' has no attribute '{name}'{did_you_mean(name, __all__)}")
    try:
        module = importlib.import_module(_LAZY[name])
    except ModuleNotFoundError as error:
        package, extra = _EXTRAS.get((error.name or "").partition(".")[0], (None, None))
        if package is None:
            raise
        message = f"{name} needs {package}: pip install 'chordcache[{extra}]'"
        raise ModuleNotFoundError(message, name=error.name) from None
    value = globals()[name] = getattr(module, name, module)  # ``samplers``, ``videos`` and ``crops`` are modules
    return value


if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__ = _load


def __dir__() -> list[str]:
    return __all__


def _draw(function: str, shown: object) -> str:
    return str(getattr(importlib.import_module("chordcache.look.notebook"), function)(shown))


def _register_in_ipython() -> None:
    """Let IPython display caches and videos, if it runs in this process. What draws them is loaded with the first."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None:
        pages = shell.display_formatter.formatters["text/html"]
        pages.for_type_by_name("chordcache.read.cache", "Cache", functools.partial(_draw, "cache_html"))
        pages.for_type_by_name("chordcache.read.video", "Video", functools.partial(_draw, "video_html"))


_register_in_ipython()
