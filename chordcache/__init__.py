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
    from chordcache.read.budget import BudgetBatchSampler
    from chordcache.read.dataset import ChordVideoDataset
    from chordcache.read.decoded import MP4Source
    from chordcache.read.live import CameraSource, StreamSource
    from chordcache.read.loader import ClipLoader, make_loader
    from chordcache.read.mapped import MappedMP4Source
    from chordcache.read.order import ChordSampler
    from chordcache.read.ragged import collate
    from chordcache.read.sampler_config import make_sampler
    from chordcache.read.samplers import (
        AdaptiveSampler,
        DenseClips,
        KeyframeSampler,
        RandomClipSampler,
        SamplerSchedule,
        UniformSampler,
    )
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
    "AdaptiveSampler",
    "BatchAugment",
    "BudgetBatchSampler",
    "BuildPolicy",
    "Cache",
    "CacheWriteError",
    "CachedSource",
    "CameraSource",
    "CaptionTokenizer",
    "CenterCrop",
    "ChordSampler",
    "ChordVideoDataset",
    "ChordcacheError",
    "ClipLoader",
    "ConfigError",
    "Damage",
    "DamageError",
    "DenseClips",
    "Extractor",
    "FeatureAbsent",
    "FormatVersionError",
    "Frame",
    "FrameDrop",
    "HorizontalFlip",
    "Index",
    "KeyframeSampler",
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
    "SamplerSchedule",
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
    "make_loader",
    "make_sampler",
    "open_cache",
    "read_index",
    "repair",
    "scan",
    "summarize",
    "verify",
]

_LAZY = {
    "AdaptiveSampler": "chordcache.read.samplers",
    "BatchAugment": "chordcache.read.augment",
    "BudgetBatchSampler": "chordcache.read.budget",
    "BuildPolicy": "chordcache.policy",
    "Cache": "chordcache.cache",
    "CachedSource": "chordcache.read.sources",
    "CameraSource": "chordcache.read.live",
    "CaptionTokenizer": "chordcache.read.text",
    "CenterCrop": "chordcache.read.windows",
    "ChordSampler": "chordcache.read.order",
    "ChordVideoDataset": "chordcache.read.dataset",
    "ClipLoader": "chordcache.read.loader",
    "Damage": "chordcache.records",
    "DenseClips": "chordcache.read.samplers",
    "Extractor": "chordcache.extractors.base",
    "Frame": "chordcache.picture",
    "FrameDrop": "chordcache.read.time_transforms",
    "HorizontalFlip": "chordcache.read.windows",
    "Index": "chordcache.index",
    "KeyframeSampler": "chordcache.read.samplers",
    "Limits": "chordcache.watchdog",
    "MP4Source": "chordcache.read.decoded",
    "MappedMP4Source": "chordcache.read.mapped",
    "Pad": "chordcache.read.windows",
    "RandomClipSampler": "chordcache.read.samplers",
    "RandomResizedCrop": "chordcache.read.windows",
    "Resize": "chordcache.read.windows",
    "RunSummary": "chordcache.records",
    "SamplerSchedule": "chordcache.read.samplers",
    "ScanReport": "chordcache.scanning",
    "StreamSource": "chordcache.read.live",
    "TemporalCrop": "chordcache.read.time_transforms",
    "TimeWarp": "chordcache.read.time_transforms",
    "UniformSampler": "chordcache.read.samplers",
    "Video": "chordcache.cache",
    "VideoInfo": "chordcache.extractors.base",
    "VideoRecord": "chordcache.records",
    "VideoSource": "chordcache.read.sources",
    "Window": "chordcache.read.windows",
    "build": "chordcache.pipeline",
    "collate": "chordcache.read.ragged",
    "collect_garbage": "chordcache.repairing",
    "exit_code": "chordcache.verification",
    "make_loader": "chordcache.read.loader",
    "make_sampler": "chordcache.read.sampler_config",
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
