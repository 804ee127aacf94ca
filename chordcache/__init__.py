"""A cache of video frames that is made offline and feeds PyTorch.

These are the names that most programs use. The others are imported from their folders: more crops from
``chordcache.read.crops``, more sources of frames from ``chordcache.read.sources``, the base class of plug-ins from
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

if TYPE_CHECKING:
    from chordcache.engine.limits import Limits
    from chordcache.index.files import Index, read_index
    from chordcache.index.scan import scan
    from chordcache.pipeline.build import build
    from chordcache.pipeline.dry_run import dry_run
    from chordcache.pipeline.merge import merge
    from chordcache.pipeline.options import BuildOptions
    from chordcache.pipeline.repair import collect_garbage, repair
    from chordcache.pipeline.verify import verify
    from chordcache.read.augment import BatchAugment
    from chordcache.read.cache import Cache, open_cache
    from chordcache.read.collate import collate
    from chordcache.read.combined import concat, subset
    from chordcache.read.crops import CenterCrop, HorizontalFlip, RandomResizedCrop, Resize
    from chordcache.read.dataset import ChordVideoDataset
    from chordcache.read.draw_sheet import show
    from chordcache.read.from_config import make_dataset
    from chordcache.read.loader import ClipLoader, make_loader
    from chordcache.read.sampling import samplers
    from chordcache.read.sampling.budget_batches import BudgetBatchSampler
    from chordcache.read.sampling.clip_samplers import RandomClipSampler, RegularClipSampler
    from chordcache.read.sampling.distributed import ChordSampler
    from chordcache.read.sources.file import MP4Source
    from chordcache.read.summary import summarize
    from chordcache.read.text import CaptionTokenizer
    from chordcache.read.video import Video
    from chordcache.records import RunSummary, VideoRecord
    from chordcache.tools.report import report

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
    "RunSummary",
    "StoppedError",
    "TooManyFailuresError",
    "UnreadableError",
    "UsageError",
    "Video",
    "VideoRecord",
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
]

_LAZY = {
    "BatchAugment": "chordcache.read.augment",
    "BudgetBatchSampler": "chordcache.read.sampling.budget_batches",
    "BuildOptions": "chordcache.pipeline.options",
    "Cache": "chordcache.read.cache",
    "CaptionTokenizer": "chordcache.read.text",
    "CenterCrop": "chordcache.read.crops",
    "ChordSampler": "chordcache.read.sampling.distributed",
    "ChordVideoDataset": "chordcache.read.dataset",
    "ClipLoader": "chordcache.read.loader",
    "HorizontalFlip": "chordcache.read.crops",
    "Index": "chordcache.index.files",
    "Limits": "chordcache.engine.limits",
    "MP4Source": "chordcache.read.sources.file",
    "RandomClipSampler": "chordcache.read.sampling.clip_samplers",
    "RandomResizedCrop": "chordcache.read.crops",
    "RegularClipSampler": "chordcache.read.sampling.clip_samplers",
    "Resize": "chordcache.read.crops",
    "RunSummary": "chordcache.records",
    "Video": "chordcache.read.video",
    "VideoRecord": "chordcache.records",
    "build": "chordcache.pipeline.build",
    "collate": "chordcache.read.collate",
    "collect_garbage": "chordcache.pipeline.repair",
    "concat": "chordcache.read.combined",
    "dry_run": "chordcache.pipeline.dry_run",
    "make_dataset": "chordcache.read.from_config",
    "make_loader": "chordcache.read.loader",
    "merge": "chordcache.pipeline.merge",
    "open_cache": "chordcache.read.cache",
    "read_index": "chordcache.index.files",
    "repair": "chordcache.pipeline.repair",
    "report": "chordcache.tools.report",
    "samplers": "chordcache.read.sampling.samplers",
    "scan": "chordcache.index.scan",
    "show": "chordcache.read.draw_sheet",
    "subset": "chordcache.read.combined",
    "summarize": "chordcache.read.summary",
    "verify": "chordcache.pipeline.verify",
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
    value = globals()[name] = getattr(module, name, module)  # ``samplers`` is a module
    return value


if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__ = _load


def __dir__() -> list[str]:
    return __all__


def _draw(function: str, shown: object) -> str:
    return str(getattr(importlib.import_module("chordcache.read.notebook"), function)(shown))


def _register_in_ipython() -> None:
    """Let IPython display caches and videos, if it runs in this process. What draws them is loaded with the first."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None:
        pages = shell.display_formatter.formatters["text/html"]
        pages.for_type_by_name("chordcache.read.cache", "Cache", functools.partial(_draw, "cache_html"))
        pages.for_type_by_name("chordcache.read.video", "Video", functools.partial(_draw, "video_html"))


_register_in_ipython()
