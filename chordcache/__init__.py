"""A cache of video frames that is made offline and feeds PyTorch.

These are the public names. All but the exceptions are loaded when they are first used. So ``import chordcache`` is
fast, and a program that only reads caches never loads a decoder.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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
    UsageError,
    WorkersDiedError,
)

if TYPE_CHECKING:
    from chordcache.engine.limits import Limits
    from chordcache.features.base import Extractor, VideoInfo
    from chordcache.index.files import Index, read_index
    from chordcache.index.scan import ScanResult, scan
    from chordcache.media.scaling import Frame
    from chordcache.pipeline.build import build, dry_run
    from chordcache.pipeline.options import BuildOptions
    from chordcache.pipeline.repair import collect_garbage, repair
    from chordcache.pipeline.verify import verify
    from chordcache.read.augment import BatchAugment
    from chordcache.read.cache import Cache, Video, open_cache
    from chordcache.read.collate import collate
    from chordcache.read.crops import CenterCrop, CropBox, HorizontalFlip, Pad, RandomResizedCrop, Resize
    from chordcache.read.dataset import ChordVideoDataset
    from chordcache.read.loader import ClipLoader, make_loader
    from chordcache.read.sampling.budget_batches import BudgetBatchSampler
    from chordcache.read.sampling.by_name import make_sampler
    from chordcache.read.sampling.clip_samplers import (
        AdaptiveSampler,
        DenseClips,
        KeyframeSampler,
        RandomClipSampler,
        SamplerSchedule,
        UniformSampler,
    )
    from chordcache.read.sampling.distributed import ChordSampler
    from chordcache.read.sampling.time_transforms import FrameDrop, TemporalCrop, TimeWarp
    from chordcache.read.sources.base import CachedSource, VideoSource
    from chordcache.read.sources.file import MP4Source
    from chordcache.read.sources.live import CameraSource, StreamSource
    from chordcache.read.sources.mapped_mp4 import MappedMP4Source
    from chordcache.read.summary import summarize
    from chordcache.read.text import CaptionTokenizer
    from chordcache.records import Damage, RunSummary, VerifyReport, VideoRecord

__version__ = "0.1.0"

__all__ = [
    "AdaptiveSampler",
    "BatchAugment",
    "BudgetBatchSampler",
    "BuildOptions",
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
    "CropBox",
    "Damage",
    "DamageError",
    "DenseClips",
    "Extractor",
    "FeatureAbsentError",
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
    "NotFoundError",
    "Pad",
    "RandomClipSampler",
    "RandomResizedCrop",
    "Resize",
    "RunSummary",
    "SamplerSchedule",
    "ScanResult",
    "StoppedError",
    "StreamSource",
    "TemporalCrop",
    "TimeWarp",
    "TooManyFailuresError",
    "UniformSampler",
    "UsageError",
    "VerifyReport",
    "Video",
    "VideoInfo",
    "VideoRecord",
    "VideoSource",
    "WorkersDiedError",
    "__version__",
    "build",
    "collate",
    "collect_garbage",
    "dry_run",
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
    "AdaptiveSampler": "chordcache.read.sampling.clip_samplers",
    "BatchAugment": "chordcache.read.augment",
    "BudgetBatchSampler": "chordcache.read.sampling.budget_batches",
    "BuildOptions": "chordcache.pipeline.options",
    "Cache": "chordcache.read.cache",
    "CachedSource": "chordcache.read.sources.base",
    "CameraSource": "chordcache.read.sources.live",
    "CaptionTokenizer": "chordcache.read.text",
    "CenterCrop": "chordcache.read.crops",
    "ChordSampler": "chordcache.read.sampling.distributed",
    "ChordVideoDataset": "chordcache.read.dataset",
    "ClipLoader": "chordcache.read.loader",
    "Damage": "chordcache.records",
    "DenseClips": "chordcache.read.sampling.clip_samplers",
    "Extractor": "chordcache.features.base",
    "Frame": "chordcache.media.scaling",
    "FrameDrop": "chordcache.read.sampling.time_transforms",
    "HorizontalFlip": "chordcache.read.crops",
    "Index": "chordcache.index.files",
    "KeyframeSampler": "chordcache.read.sampling.clip_samplers",
    "Limits": "chordcache.engine.limits",
    "MP4Source": "chordcache.read.sources.file",
    "MappedMP4Source": "chordcache.read.sources.mapped_mp4",
    "Pad": "chordcache.read.crops",
    "RandomClipSampler": "chordcache.read.sampling.clip_samplers",
    "RandomResizedCrop": "chordcache.read.crops",
    "Resize": "chordcache.read.crops",
    "RunSummary": "chordcache.records",
    "SamplerSchedule": "chordcache.read.sampling.clip_samplers",
    "ScanResult": "chordcache.index.scan",
    "StreamSource": "chordcache.read.sources.live",
    "TemporalCrop": "chordcache.read.sampling.time_transforms",
    "TimeWarp": "chordcache.read.sampling.time_transforms",
    "UniformSampler": "chordcache.read.sampling.clip_samplers",
    "VerifyReport": "chordcache.records",
    "Video": "chordcache.read.cache",
    "VideoInfo": "chordcache.features.base",
    "VideoRecord": "chordcache.records",
    "VideoSource": "chordcache.read.sources.base",
    "CropBox": "chordcache.read.crops",
    "build": "chordcache.pipeline.build",
    "collate": "chordcache.read.collate",
    "collect_garbage": "chordcache.pipeline.repair",
    "dry_run": "chordcache.pipeline.build",
    "make_loader": "chordcache.read.loader",
    "make_sampler": "chordcache.read.sampling.by_name",
    "open_cache": "chordcache.read.cache",
    "read_index": "chordcache.index.files",
    "repair": "chordcache.pipeline.repair",
    "scan": "chordcache.index.scan",
    "summarize": "chordcache.read.summary",
    "verify": "chordcache.pipeline.verify",
}
"""Public name to its module. It has the same names as the imports under TYPE_CHECKING. A test compares the two."""

_EXTRAS = {"torch": ("PyTorch", "torch"), "kornia": ("kornia", "augment"), "tokenizers": ("tokenizers", "text")}
"""Optional module to its display name, and the extra that installs it."""


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
