"""Caches video frames offline and feeds them to PyTorch.

The public names. All but the exceptions are loaded when they are first used, so that ``import chordcache`` costs
nothing and a reader of caches never loads a decoder.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from chordcache.errors import (
    CacheWriteError,
    ChordcacheError,
    ConfigError,
    DamageError,
    FeatureAbsent,
    FormatVersionError,
    LockedError,
    MediaError,
    NoSpaceError,
    NotFound,
    Stopped,
    TooManyFailures,
    UsageError,
    WorkersDiedError,
)

if TYPE_CHECKING:
    from chordcache.cache import Cache, Video, open_cache
    from chordcache.extractors.base import Extractor, VideoInfo
    from chordcache.index import Index, read_index
    from chordcache.information import summarize
    from chordcache.picture import Frame
    from chordcache.pipeline import build
    from chordcache.policy import BuildPolicy
    from chordcache.read.augment import BatchAugment
    from chordcache.read.dataset import ChordVideoDataset
    from chordcache.read.decoded import MP4Source
    from chordcache.read.live import CameraSource, StreamSource
    from chordcache.read.mapped import MappedMP4Source
    from chordcache.read.ragged import collate
    from chordcache.read.samplers import RandomClipSampler, UniformSampler
    from chordcache.read.sources import CachedSource, VideoSource
    from chordcache.read.text import CaptionTokenizer
    from chordcache.read.time_transforms import FrameDrop, TemporalCrop, TimeWarp
    from chordcache.read.windows import CenterCrop, HorizontalFlip, Pad, RandomResizedCrop, Resize, Window
    from chordcache.records import Damage, RunSummary, VideoRecord
    from chordcache.repairing import collect_garbage, repair
    from chordcache.scanning import ScanReport, scan
    from chordcache.verification import exit_code, verify
    from chordcache.watchdog import Limits

__version__ = "0.1.0"

__all__ = [
    "BatchAugment",
    "BuildPolicy",
    "Cache",
    "CacheWriteError",
    "CachedSource",
    "CameraSource",
    "CaptionTokenizer",
    "CenterCrop",
    "ChordVideoDataset",
    "ChordcacheError",
    "ConfigError",
    "Damage",
    "DamageError",
    "Extractor",
    "FeatureAbsent",
    "FormatVersionError",
    "Frame",
    "FrameDrop",
    "HorizontalFlip",
    "Index",
    "Limits",
    "LockedError",
    "MP4Source",
    "MappedMP4Source",
    "MediaError",
    "NoSpaceError",
    "NotFound",
    "Pad",
    "RandomClipSampler",
    "RandomResizedCrop",
    "Resize",
    "RunSummary",
    "ScanReport",
    "Stopped",
    "StreamSource",
    "TemporalCrop",
    "TimeWarp",
    "TooManyFailures",
    "UniformSampler",
    "UsageError",
    "Video",
    "VideoInfo",
    "VideoRecord",
    "VideoSource",
    "Window",
    "WorkersDiedError",
    "__version__",
    "build",
    "collate",
    "collect_garbage",
    "exit_code",
    "open_cache",
    "read_index",
    "repair",
    "scan",
    "summarize",
    "verify",
]

_LAZY = {
    "BatchAugment": "chordcache.read.augment",
    "BuildPolicy": "chordcache.policy",
    "Cache": "chordcache.cache",
    "CaptionTokenizer": "chordcache.read.text",
    "CenterCrop": "chordcache.read.windows",
    "CachedSource": "chordcache.read.sources",
    "CameraSource": "chordcache.read.live",
    "ChordVideoDataset": "chordcache.read.dataset",
    "Damage": "chordcache.records",
    "Extractor": "chordcache.extractors.base",
    "Frame": "chordcache.picture",
    "FrameDrop": "chordcache.read.time_transforms",
    "HorizontalFlip": "chordcache.read.windows",
    "Index": "chordcache.index",
    "Limits": "chordcache.watchdog",
    "Pad": "chordcache.read.windows",
    "MP4Source": "chordcache.read.decoded",
    "MappedMP4Source": "chordcache.read.mapped",
    "RandomClipSampler": "chordcache.read.samplers",
    "RandomResizedCrop": "chordcache.read.windows",
    "Resize": "chordcache.read.windows",
    "RunSummary": "chordcache.records",
    "ScanReport": "chordcache.scanning",
    "TemporalCrop": "chordcache.read.time_transforms",
    "TimeWarp": "chordcache.read.time_transforms",
    "StreamSource": "chordcache.read.live",
    "UniformSampler": "chordcache.read.samplers",
    "Video": "chordcache.cache",
    "VideoInfo": "chordcache.extractors.base",
    "VideoRecord": "chordcache.records",
    "Window": "chordcache.read.windows",
    "VideoSource": "chordcache.read.sources",
    "build": "chordcache.pipeline",
    "collate": "chordcache.read.ragged",
    "collect_garbage": "chordcache.repairing",
    "exit_code": "chordcache.verification",
    "open_cache": "chordcache.cache",
    "read_index": "chordcache.index",
    "repair": "chordcache.repairing",
    "scan": "chordcache.scanning",
    "summarize": "chordcache.information",
    "verify": "chordcache.verification",
}
"""Public name: the module it comes from. The same as under TYPE_CHECKING, which a test compares."""

_EXTRAS = {"torch": ("PyTorch", "torch"), "kornia": ("kornia", "augment"), "tokenizers": ("tokenizers", "text")}
"""Module that need not be there: its name for people, and the extra that installs it."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'chordcache' has no attribute '{name}'")
    try:
        module = importlib.import_module(_LAZY[name])
    except ModuleNotFoundError as error:
        package, extra = _EXTRAS.get((error.name or "").partition(".")[0], (None, None))
        if package is None:
            raise
        message = f"{name} needs {package}: pip install 'chordcache[{extra}]'"
        raise ModuleNotFoundError(message, name=error.name) from None
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
