"""The section ``frames`` of a config: the pictures, and the record that is made of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from chordcache.amounts import shortened
from chordcache.config.checks import Section, check_choice, check_number, check_short_side
from chordcache.digests import fingerprint
from chordcache.errors import UsageError

CODEC_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "jpeg": ("quality",),
    "yuv420": (),
    "raw": (),
    "mpeg4": ("quantizer", "gop", "stride"),
    "h264": ("crf", "gop", "stride"),
}
"""Each codec of frames to the settings that it has"""


class Bucket(NamedTuple):
    """The one shape of some items: size and number of their frames."""

    height: int
    """[pixels] even"""
    width: int
    """[pixels] even"""
    num_frames: int

    def __str__(self) -> str:
        return f"{self.height}x{self.width}x{self.num_frames}"


@dataclass(frozen=True)
class PictureConfig(Section):
    """The settings of the pictures that all features are made from."""

    short_side: int | None = 256
    """[pixels] of the display picture, even. The picture is never enlarged. None keeps the source's size"""
    fps: float | None = None
    """[frames per second] at most. None keeps every frame"""
    hdr: str = "as_is"
    """"tonemap" converts PQ and HLG to BT.709. "as_is" keeps their code values"""
    stereo: str = "as_is"
    """"left" or "right" selects one eye of a stereo picture"""
    stereo_layout: str = "auto"
    """Position of the eyes: "side_by_side", "top_bottom", or "auto" to use the file's own statement"""
    buckets: tuple[Bucket, ...] | None = None
    """Shapes of items. Each item gets the nearest one that it fills. None keeps aspect ratio and all frames"""

    def __post_init__(self) -> None:
        check_short_side("frames.short_side", self.short_side)
        if self.buckets is not None:
            object.__setattr__(self, "buckets", _checked_buckets(self.buckets))
            if self.short_side != PictureConfig.short_side:
                raise UsageError(
                    f"frames.short_side: got {self.short_side} with frames.buckets, which have sizes of their own, "
                    "expected none. Remove frames.short_side."
                )
        if self.fps is not None:
            check_number("frames.fps", self.fps, (int, float), 0.001, 1000)
        check_choice("frames.hdr", self.hdr, ("as_is", "tonemap"))
        check_choice("frames.stereo", self.stereo, ("as_is", "left", "right"))
        check_choice("frames.stereo_layout", self.stereo_layout, ("auto", "side_by_side", "top_bottom"))

    def normalized(self) -> PictureConfig:
        """Return the config with one value for each meaning, so that equal pictures have equal settings."""
        return dataclasses.replace(
            self,
            fps=None if self.fps is None else float(self.fps),
            stereo_layout="auto" if self.stereo == "as_is" else self.stereo_layout,
            buckets=self.buckets and tuple(sorted(self.buckets)),
        )

    @property
    def fingerprint(self) -> str:
        """16 hex digits that change if another setting makes other pictures."""
        return fingerprint("picture", 1, self.normalized().params())

    def params(self) -> dict[str, Any]:
        """Return the settings as parameters of a feature, as plain data.

        Buckets are left out if there are none. Fingerprints without buckets are thus those of versions before buckets.
        """
        data = dataclasses.asdict(self)
        del data["buckets"]
        return data if self.buckets is None else {**data, "buckets": [list(bucket) for bucket in self.buckets]}


@dataclass(frozen=True)
class FramesConfig(PictureConfig):
    """The settings of cached frames: of the pictures, and of the record made of each."""

    ends: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "codec": tuple(name for names in CODEC_SETTINGS.values() for name in names),
        "buckets": ("short_side",),
    }
    codec: str = "jpeg"
    """"jpeg", "yuv420" for planes, "raw" for RGB24, or "mpeg4" or "h264" for chains of packets of a video codec"""
    quality: int = 90
    """JPEG quality, 1 to 100"""
    quantizer: int = 2
    """Quantizer of MPEG-4, 1 to 8. Lower is better. 2 is about as good as JPEG 90"""
    crf: int = 17
    """CRF of H.264, 0 to 40. Lower is better. 17 is about as good as JPEG 90"""
    gop: int = 8
    """[frames] Length of the chains of a video codec. A frame is decoded from the first of its chain on"""
    stride: int = 1
    """[frames] Distance of the frames of a chain. Clips of this stride are decoded fastest"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("frames.codec", self.codec, tuple(CODEC_SETTINGS))
        check_number("frames.quality", self.quality, int, 1, 100)
        check_number("frames.quantizer", self.quantizer, int, 1, 8)
        check_number("frames.crf", self.crf, int, 0, 40)
        check_number("frames.gop", self.gop, int, 1, 64)
        check_number("frames.stride", self.stride, int, 1, 16)
        valid = CODEC_SETTINGS[self.codec]
        for name in sorted({name for names in CODEC_SETTINGS.values() for name in names}.difference(valid)):
            if getattr(self, name) != getattr(FramesConfig, name):
                raise UsageError(
                    f"frames.{name}: got {getattr(self, name)} with codec {self.codec}, expected "
                    f"{'one of ' + ', '.join(valid) if valid else 'none of the settings of other codecs'}. "
                    f"Remove frames.{name}, or choose another frames.codec."
                )

    @classmethod
    def lasting(cls, before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings that last, also those that another codec has too."""
        common = CODEC_SETTINGS.get(str(changes.get("codec")), ())
        return super().lasting(before, changes) | {name: before[name] for name in common if name in before}

    @property
    def codec_settings(self) -> dict[str, int]:
        """Settings of the codec alone."""
        return {name: getattr(self, name) for name in CODEC_SETTINGS[self.codec]}


MAX_BUCKET_SIDE = 8192
"""[pixels] Largest height and width of a bucket"""

MAX_BUCKET_FRAMES = 100_000

MAX_BUCKETS = 1000


def _checked_buckets(buckets: Any) -> tuple[Bucket, ...]:
    """Return buckets from plain data. Raise ``UsageError`` if they are not valid."""
    if not isinstance(buckets, list | tuple) or not 1 <= len(buckets) <= MAX_BUCKETS:
        raise UsageError(
            f"frames.buckets: got {shortened(repr(buckets), 80)}, expected a list of 1 to {MAX_BUCKETS} buckets "
            "[height, width, num_frames], or null"
        )
    checked = []
    for number, values in enumerate(buckets):
        name = f"frames.buckets[{number}]"
        if not isinstance(values, list | tuple) or len(values) != len(Bucket._fields):
            raise UsageError(f"{name}: got {shortened(repr(values), 80)}, expected [height, width, num_frames]")
        bucket = Bucket(*values)
        for side in ("height", "width"):
            value = getattr(bucket, side)
            check_number(f"{name}: {side}", value, int, 16, MAX_BUCKET_SIDE)
            if value % 2:
                raise UsageError(f"{name}: {side}: got {value}, expected an even number")
        check_number(f"{name}: num_frames", bucket.num_frames, int, 1, MAX_BUCKET_FRAMES)
        if bucket in checked:
            raise UsageError(f"{name}: got {list(bucket)} a second time, expected each bucket once")
        checked.append(bucket)
    return tuple(checked)
