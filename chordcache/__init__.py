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
    from chordcache.read.batches import collate
    from chordcache.read.dataset import ChordVideoDataset
    from chordcache.read.loader import ClipLoader, make_loader
    from chordcache.read.order import ChordSampler
    from chordcache.read.sampler_config import make_sampler
    from chordcache.read.samplers import (
        AdaptiveSampler,
        DenseClips,
        KeyframeSampler,
        RandomClipSampler,
        SamplerSchedule,
        UniformSampler,
    )
    from chordcache.records import Damage, RunSummary, VideoRecord
    from chordcache.repairing import collect_garbage, repair
    from chordcache.scanning import ScanReport, scan
    from chordcache.verification import exit_code, verify
    from chordcache.watchdog import Limits

__version__ = "0.1.0"

__all__ = [
    "AdaptiveSampler",
    "BuildPolicy",
    "Cache",
    "CacheWriteError",
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
    "Index",
    "KeyframeSampler",
    "Limits",
    "LockedError",
    "MediaError",
    "NoSpaceError",
    "NotFound",
    "RandomClipSampler",
    "RunSummary",
    "SamplerSchedule",
    "ScanReport",
    "Stopped",
    "TooManyFailures",
    "UniformSampler",
    "UsageError",
    "Video",
    "VideoInfo",
    "VideoRecord",
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
    "Cache": "chordcache.cache",
    "ChordSampler": "chordcache.read.order",
    "ChordVideoDataset": "chordcache.read.dataset",
    "ClipLoader": "chordcache.read.loader",
    "Damage": "chordcache.records",
    "AdaptiveSampler": "chordcache.read.samplers",
    "BuildPolicy": "chordcache.policy",
    "DenseClips": "chordcache.read.samplers",
    "Extractor": "chordcache.extractors.base",
    "Frame": "chordcache.picture",
    "Index": "chordcache.index",
    "KeyframeSampler": "chordcache.read.samplers",
    "Limits": "chordcache.watchdog",
    "RandomClipSampler": "chordcache.read.samplers",
    "RunSummary": "chordcache.records",
    "SamplerSchedule": "chordcache.read.samplers",
    "ScanReport": "chordcache.scanning",
    "UniformSampler": "chordcache.read.samplers",
    "Video": "chordcache.cache",
    "VideoInfo": "chordcache.extractors.base",
    "VideoRecord": "chordcache.records",
    "build": "chordcache.pipeline",
    "collate": "chordcache.read.batches",
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


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'chordcache' has no attribute '{name}'")
    try:
        module = importlib.import_module(_LAZY[name])
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(f"{name} needs PyTorch: pip install 'chordcache[torch]'", name="torch") from None
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
