"""A cache of video frames that is made offline and feeds PyTorch.

These are the names that most programs use. The others are imported from their folders: more crops from
``chordcache.read.crops``, more sources of frames from ``chordcache.sources``, the base class of plug-ins from
``chordcache.features.base``, the classes of results from ``chordcache.records``.

All names but the exceptions are loaded when they are first used. So ``import chordcache`` is fast, and a program that
only reads caches never loads a decoder.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import TYPE_CHECKING, Any

from chordcache.arguments import did_you_mean
from chordcache.errors import (
    CacheWriteError,
    ChordcacheError,
    ConfigError,
    DamageError,
    FeatureAbsentError,
    FormatVersionError,
    LockedError,
    MediaError,
    NoSpaceError,
    NotFoundError,
    StoppedError,
    TooManyFailuresError,
    UnreadableError,
    UsageError,
    WorkersDiedError,
)
from chordcache.moved import name_moved_modules

if TYPE_CHECKING:
    from chordcache.building.build import build
    from chordcache.building.build_options import BuildOptions
    from chordcache.building.dry_run import dry_run
    from chordcache.building.merge import merge
    from chordcache.engine.limits import Limits
    from chordcache.index.index_files import Index, read_index
    from chordcache.index.scan import scan
    from chordcache.look.draw_sheet import show
    from chordcache.look.report import report
    from chordcache.look.summary import summarize
    from chordcache.read.cache import Cache, open_cache
    from chordcache.read.crops import CenterCrop, HorizontalFlip, RandomResizedCrop, Resize
    from chordcache.read.video import Video
    from chordcache.sources.media_file import MP4Source
    from chordcache.train import samplers, videos
    from chordcache.train.augment import BatchAugment
    from chordcache.train.captions import CaptionTokenizer
    from chordcache.train.collate import collate
    from chordcache.train.combined import concat, subset
    from chordcache.train.dataset import ChordVideoDataset
    from chordcache.train.from_config import make_dataset, make_loader
    from chordcache.train.loader import ClipLoader
    from chordcache.train.samplers.budget_batches import BudgetBatchSampler
    from chordcache.train.samplers.clip_samplers import RandomClipSampler, RegularClipSampler
    from chordcache.train.samplers.distributed import ChordSampler
    from chordcache.verifying.repair import collect_garbage, repair
    from chordcache.verifying.verify import verify

__version__ = "0.1.0"

__all__ = [
    "BatchAugment",
    "BudgetBatchSampler",
    "BuildOptions",
    "Cache",
    "CacheWriteError",
    "CaptionTokenizer",
    "CenterCrop",
    "ChordSampler",
    "ChordVideoDataset",
    "ChordcacheError",
    "ClipLoader",
    "ConfigError",
    "DamageError",
    "FeatureAbsentError",
    "FormatVersionError",
    "HorizontalFlip",
    "Index",
    "Limits",
    "LockedError",
    "MP4Source",
    "MediaError",
    "NoSpaceError",
    "NotFoundError",
    "RandomClipSampler",
    "RandomResizedCrop",
    "RegularClipSampler",
    "Resize",
    "StoppedError",
    "TooManyFailuresError",
    "UnreadableError",
    "UsageError",
    "Video",
    "WorkersDiedError",
    "__version__",
    "build",
    "collate",
    "collect_garbage",
    "concat",
    "dry_run",
    "make_dataset",
    "make_loader",
    "merge",
    "open_cache",
    "read_index",
    "repair",
    "report",
    "samplers",
    "scan",
    "show",
    "subset",
    "summarize",
    "verify",
    "videos",
]

_LAZY = {
    "BatchAugment": "chordcache.train.augment",
    "BudgetBatchSampler": "chordcache.train.samplers.budget_batches",
    "BuildOptions": "chordcache.building.build_options",
    "Cache": "chordcache.read.cache",
    "CaptionTokenizer": "chordcache.train.captions",
    "CenterCrop": "chordcache.read.crops",
    "ChordSampler": "chordcache.train.samplers.distributed",
    "ChordVideoDataset": "chordcache.train.dataset",
    "ClipLoader": "chordcache.train.loader",
    "HorizontalFlip": "chordcache.read.crops",
    "Index": "chordcache.index.index_files",
    "Limits": "chordcache.engine.limits",
    "MP4Source": "chordcache.sources.media_file",
    "RandomClipSampler": "chordcache.train.samplers.clip_samplers",
    "RandomResizedCrop": "chordcache.read.crops",
    "RegularClipSampler": "chordcache.train.samplers.clip_samplers",
    "Resize": "chordcache.read.crops",
    "Video": "chordcache.read.video",
    "build": "chordcache.building.build",
    "collate": "chordcache.train.collate",
    "collect_garbage": "chordcache.verifying.repair",
    "concat": "chordcache.train.combined",
    "dry_run": "chordcache.building.dry_run",
    "make_dataset": "chordcache.train.from_config",
    "make_loader": "chordcache.train.from_config",
    "merge": "chordcache.building.merge",
    "open_cache": "chordcache.read.cache",
    "read_index": "chordcache.index.index_files",
    "repair": "chordcache.verifying.repair",
    "report": "chordcache.look.report",
    "samplers": "chordcache.train.samplers",
    "scan": "chordcache.index.scan",
    "show": "chordcache.look.draw_sheet",
    "subset": "chordcache.train.combined",
    "summarize": "chordcache.look.summary",
    "verify": "chordcache.verifying.verify",
    "videos": "chordcache.train.videos",
}
"""Public name to its module. It has the same names as the imports under TYPE_CHECKING. A test compares the two."""

_EXTRAS = {"torch": ("PyTorch", "torch"), "kornia": ("kornia", "augment"), "tokenizers": ("tokenizers", "text")}
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
    value = globals()[name] = getattr(module, name, module)  # ``samplers`` and ``videos`` are modules
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
name_moved_modules()
