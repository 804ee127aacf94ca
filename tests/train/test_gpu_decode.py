"""The decode of JPEGs on a device: everything but the GPU itself, with a decoder of the CPU in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from helpers.ffmpeg import copy_start

import chordcache as cc
from chordcache.config.config import config_from_json
from chordcache.errors import DamageError, UsageError
from chordcache.features.read_side import EncodedFrames
from chordcache.media.cropping import CropBox
from chordcache.read.crops import CenterCrop, Pad, Resize
from chordcache.train.gpu_decode import FrameDecoder, _cropped

pytestmark = pytest.mark.usefixtures("inline")

SAMPLER = cc.RegularClipSampler(num_frames=4, stride=2)


def decode_jpegs(jpegs: Sequence[bytes]) -> list[Any]:
    """Decode as a GPU would, into channels first."""
    return [torch.from_numpy(simplejpeg.decode_jpeg(jpeg).transpose(2, 0, 1).copy()) for jpeg in jpegs]


ON_CPU = FrameDecoder(torch.device("cpu"), decode_jpegs)


@pytest.fixture(scope="module", params=["jpeg", "yuv420"])
def cache(clips: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    frames = {"short_side": 96, "codec": request.param}
    config = config_from_json({"frames": frames, "features": dict.fromkeys(("flow", "motion", "mel"))})
    for name in ("street/bikes", "people/carphone_pristine", "people/carphone_distorted"):
        copy_start(clips / f"{name}.mp4", 1, folder / "videos" / f"{name}.mp4")
    cc.build(cc.scan([folder / "videos"], jobs=1), folder / "cache", config=config, jobs=1)
    return folder / "cache"


def decoded(dataset: cc.ChordVideoDataset, number: int) -> Any:
    sample = dataset.read_samples([(0, number)], [EncodedFrames])[0]
    assert isinstance(sample["frames"], EncodedFrames)
    (frames,) = ON_CPU.decode_clips([sample["frames"]])
    return frames


@pytest.mark.parametrize(
    "crop",
    [
        None,
        CenterCrop((64, 64)),
        cc.crops.HorizontalFlip(1.0, CenterCrop((96, 80))),
        cc.crops.RandomResizedCrop((48, 48)),
        Resize(short_side=120),
        Pad((112, 112)),
    ],
    ids=repr,
)
def test_samples_are_those_of_the_cpu(cache: Path, crop: Any) -> None:
    dataset = cc.ChordVideoDataset(cache, clip_sampler=SAMPLER, **({"crop": crop} if crop else {"size": None}))
    for number in range(len(dataset)):
        expected, frames = dataset[(0, number)]["frames"], decoded(dataset, number)
        assert frames.shape == expected.shape
        assert frames.dtype == torch.uint8
        error = torch.mean((frames.float() - expected.float()) ** 2)
        assert 10 * torch.log10(255**2 / error.clamp(min=1e-9)) >= 40
        if crop is None and cc.open_cache(cache)[0].feature("frames").params["codec"] == "jpeg":
            assert torch.equal(frames, expected)  # planes are converted by OpenCV, which rounds to limited range


def test_a_loader_makes_the_same_batches(cache: Path) -> None:
    dataset = cc.ChordVideoDataset(cache, clip_sampler=SAMPLER, size=(64, 64), clips_per_video=3)
    loaders = [cc.ClipLoader(dataset, batch_size=4, num_threads=2) for _ in range(2)]
    loaders[1]._decode = ON_CPU
    for expected, batch in zip(*loaders, strict=True):
        assert batch.keys() == expected.keys()
        assert batch["frames"].shape == expected["frames"].shape
        assert batch["frames"].stride() == expected["frames"].stride()  # channels last: convolutions are fast with it
        assert (batch["frames"].float() - expected["frames"].float()).abs().mean() < 2
        assert batch["video"] == expected["video"]
        assert torch.equal(batch["label"], expected["label"])


def test_clips_of_several_shapes(cache: Path) -> None:
    dataset = cc.ChordVideoDataset(cache, clip_sampler=SAMPLER, crop=cc.crops.RandomResizedCrop((48, 48)))
    other = cc.ChordVideoDataset(cache, clip_sampler=cc.RegularClipSampler(6, stride=2), crop=CenterCrop((64, 64)))
    encoded = [source.read_samples([(0, 0), (0, 1)], [EncodedFrames] * 2) for source in (dataset, other)]
    samples = [sample["frames"] for pair in zip(*encoded, strict=True) for sample in pair]
    together = ON_CPU.decode_clips([*samples, *samples[::-1]])
    alone = [ON_CPU.decode_clips([sample])[0] for sample in samples]
    assert all(map(torch.equal, together, alone + alone[::-1]))


@pytest.mark.parametrize("sizes", [(128, 112), (97, 224), (64, 9), (10, 10)])
def test_scaling_is_that_of_torch(sizes: tuple[int, int]) -> None:
    source, target = sizes
    picture = torch.randint(0, 256, (1, 3, source, source + 7), dtype=torch.uint8)
    box = CropBox(0, 0, source, source + 7, (target, target + 5))
    expected = torch.nn.functional.interpolate(picture.float(), box.size, mode="bilinear", antialias=True)
    assert (_cropped(picture, box).permute(0, 3, 1, 2) - expected).abs().max() <= 0.51


def noise(number: int, width: int, height: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(number)
    sizes = ((height, width), (height // 2, width // 2), (height // 2, width // 2))
    return tuple(random.integers(60, 200, size, dtype=np.uint8) for size in sizes)


def test_without_a_gpu(cache: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    dataset = cc.ChordVideoDataset(cache, clip_sampler=SAMPLER)
    for device in (None, "cpu", "cuda"):
        with pytest.raises(
            UsageError, match=r"decode: got 'cuda' with device '\w+', expected a GPU that torch can use"
        ):
            cc.ClipLoader(dataset, batch_size=2, device=device, decode="cuda")


def test_other_codecs_are_refused(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    make_video(tmp_path / "videos/a.mp4")
    config = config_from_json({"frames": {"codec": "mpeg4"}, "features": dict.fromkeys(("flow", "motion", "mel"))})
    cc.build(cc.scan([tmp_path / "videos"], jobs=1), tmp_path / "cache", config=config, jobs=1)
    dataset = cc.ChordVideoDataset(tmp_path / "cache", clip_sampler=SAMPLER, size=None)
    with pytest.raises(UsageError, match="got codec mpeg4, expected jpeg or yuv420"):
        dataset.read_samples([(0, 0)], [EncodedFrames])[0]
    dataset = cc.ChordVideoDataset(tmp_path / "cache", clip_sampler=SAMPLER, size=None, transform=lambda frames: frames)
    with pytest.raises(UsageError, match="got codec mpeg4|transform: got one"):
        dataset.read_samples([(0, 0)], [EncodedFrames])[0]


def test_damage_is_found_before_a_gpu_sees_it(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    make_video(tmp_path / "videos/a.mp4", size=(640, 480), planes=noise)  # LMDB keeps small records in its tree
    cc.build(cc.scan([tmp_path / "videos"], jobs=1), tmp_path / "cache", jobs=1)
    dataset = cc.ChordVideoDataset(tmp_path / "cache", clip_sampler=SAMPLER, size=None)
    jpeg = dataset.read_samples([(0, 0)], [EncodedFrames])[0]["frames"].stored[2]
    (path,) = (tmp_path / "cache/lmdb").rglob("*.lmdb")
    data = bytearray(path.read_bytes())
    data[data.index(jpeg) + len(jpeg) // 2] ^= 8
    dataset = cc.ChordVideoDataset(tmp_path / "cache", clip_sampler=SAMPLER, size=None)
    aside = path.with_name("aside")
    aside.write_bytes(data)
    aside.replace(path)
    with pytest.raises(DamageError, match=r"record \d+ is not what was written"):
        dataset.read_samples([(0, 0)], [EncodedFrames])[0]
    assert np.frombuffer(jpeg[:2], ">u2")[0] == 0xFFD8
