"""Latents: equal to what diffusers computes, of each picture or clip by clip, and read with the frames they cover."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import yaml
from helpers import processes
from helpers.faulty_extractor import ENVIRONMENT
from helpers.networks import LATENT_CHANNELS, PIXELS, VAES, load_vae, make_vae

import chordcache as cc
from chordcache.engine.choice import Engine
from chordcache.features.networks.latents import LatentsExtractor
from chordcache.media.cropping import CropBox
from chordcache.read.crops import CenterCrop
from chordcache.records import RunSummary
from chordcache.train.samplers.budget_batches import BudgetBatchSampler

NUM_FRAMES = {"one": 1, "three": 3, "nine": 9, "twenty": 20}

CLIP_FRAMES = 9


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """Videos of several lengths and two sizes. One of them needs padding."""
    folder = tmp_path_factory.mktemp("latents")
    for name, num_frames in NUM_FRAMES.items():
        size = (64, 48) if name in ("nine", "one") else (44, 36)
        make_video(folder / f"videos/{name}.mp4", num_frames=num_frames, size=size)
    cc.scan([folder / "videos"], output=folder / "index.json", jobs=1)
    return folder / "index.json"


@pytest.fixture(scope="module", params=list(VAES))
def vae(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vae(request.param, tmp_path_factory.mktemp("models") / request.param)


@pytest.fixture(scope="module")
def wan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vae("AutoencoderKLWan", tmp_path_factory.mktemp("models") / "AutoencoderKLWan")


@pytest.fixture(scope="module")
def built(index: Path, vae: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of the latents of a VAE. Do not write into it."""
    cache = tmp_path_factory.mktemp("built") / "cache"
    assert build(index, cache, vae, batch_size=3).num_done == len(NUM_FRAMES)
    return cache


INLINE = Engine("inline")


def build(index: Path, cache: Path, model: Path | str, *, jobs: int | Engine = INLINE, **params: Any) -> RunSummary:
    """Build latents, and the frames that they are made of, bit for bit."""
    cache.parent.mkdir(exist_ok=True, parents=True)
    latents = {"model": str(model), "dtype": "float32", "clip_frames": CLIP_FRAMES, **params}
    config = {"frames": {"codec": "raw", "short_side": None}, "features": {"latents": latents}}
    cache.with_suffix(".yaml").write_text(yaml.dump(config))
    return cc.build(
        index, cache, tiers=["lmdb", "npz"], features=["frames", "latents"], config=cache.with_suffix(".yaml"),
        jobs=jobs,
    )  # fmt: skip


def by_name(cache: cc.Cache) -> dict[str, Any]:
    return {Path(video.path).stem: video for video in cache}


def encoded(network: Any, pictures: np.ndarray) -> np.ndarray:
    """Return the latents [shape=(t, C, h, w)] of pictures by diffusers: of each, or of all as one clip."""
    pixels = torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 127.5 - 1
    with torch.no_grad():
        if type(network).__name__ == "AutoencoderKL":
            return np.concatenate([network.encode(picture[None]).latent_dist.mean.numpy() for picture in pixels])
        latents = network.encode(pixels.permute(1, 0, 2, 3)[None]).latent_dist.mean
    return np.asarray(latents[0].permute(1, 0, 2, 3))


def direct(folder: Path, frames: np.ndarray) -> np.ndarray:
    """Return the latents of a video by diffusers, with what a user does about sizes that the VAE cannot take."""
    network, pixels = load_vae(folder), PIXELS
    height, width = frames.shape[1:3]
    frames = np.pad(frames, ((0, 0), (0, -height % pixels), (0, -width % pixels), (0, 0)), mode="edge")
    if folder.name == "AutoencoderKL":
        return encoded(network, frames)
    clips = [frames[start : start + CLIP_FRAMES] for start in range(0, len(frames), CLIP_FRAMES)]
    clips = [np.concatenate([clip, np.repeat(clip[-1:], -(len(clip) - 1) % 4, axis=0)]) for clip in clips]
    return np.concatenate([encoded(network, clip) for clip in clips])


def check(path: Path, vae: Path) -> None:
    """Compare with diffusers, and the settings that normalize latents with those of the model."""
    config = json.loads((vae / "config.json").read_text())
    with cc.open_cache(path) as cache:
        for name, video in by_name(cache).items():
            latents = cache.read(video, "latents")
            expected = direct(vae, cache.read(video, "frames"))
            assert latents.dtype == np.float32
            assert latents.shape == expected.shape
            assert np.abs(latents - expected).max() <= 1e-5
            if vae.name == "AutoencoderKL":
                assert len(latents) == NUM_FRAMES[name]
            params = video.feature("latents").params
            assert params["compression"] == [1 if vae.name == "AutoencoderKL" else 4, PIXELS]
            names = ("scaling_factor", "shift_factor", "latents_mean", "latents_std")
            assert params["normalization"] == {name: config[name] for name in names if config.get(name) is not None}
            assert params["normalization"]
    assert not cc.verify(path, level="deep", source=True, jobs=1).damage


def test_latents_are_those_of_diffusers(built: Path, vae: Path) -> None:
    check(built, vae)


def test_processes_compute_frames_of_several_videos_in_one_batch(index: Path, wan: Path, tmp_path: Path) -> None:
    assert build(index, tmp_path / "cache", wan, jobs=2, batch_size=3).num_done == len(NUM_FRAMES)
    check(tmp_path / "cache", wan)


def test_the_rows_of_a_clip(built: Path, vae: Path) -> None:
    """Frames 7 to 12 of 20: with clips of 9 frames, they are in the last row of clip 0 and the first two of clip 1."""
    with cc.open_cache(built) as cache:
        video = by_name(cache)["twenty"]
        rows = cache.read(video, "latents")
        expected = rows[7:13] if vae.name == "AutoencoderKL" else rows[2:5]
        assert np.array_equal(cache.read(video, "latents", 7, 13), expected)
        assert np.array_equal(cache.read(video, "latents", indices=[12, 7]), expected[[-1, 0]] if len(
            expected) == 6 else rows[[2, 4]])  # fmt: skip
        assert np.array_equal(cache.read(video, "latents", 19, 20), rows[-1:])


def test_a_dataset_of_latents_opens_no_frame(built: Path, tmp_path: Path) -> None:
    shutil.copytree(built, tmp_path / "cache", ignore=shutil.ignore_patterns("lmdb"))
    sampler = cc.RegularClipSampler(num_frames=5, stride=1)
    dataset = cc.ChordVideoDataset(tmp_path / "cache", clip_sampler=sampler, features=("latents",))
    batch = cc.collate([dataset[number] for number in range(len(dataset))])
    assert "frames" not in batch
    assert batch["latents"].shape[0] == len(NUM_FRAMES)
    assert batch["latents"].shape[2] == LATENT_CHANNELS
    assert batch["lengths"]["latents"].shape == (len(NUM_FRAMES), 4)


def test_the_sampler_of_latent_clips(built: Path, vae: Path) -> None:
    """The video of 20 frames has two clips of 9 and a rest, and shorter videos are one clip."""
    dataset = cc.ChordVideoDataset(
        built, clip_sampler={"name": "latent_clips"}, features=("latents",), clips_per_video=12
    )
    if vae.name == "AutoencoderKL":
        with pytest.raises(cc.UsageError, match="have a row for each frame, expected latents of clips"):
            dataset[0]
        return
    clips: dict[str, set[tuple[int, int]]] = {}
    with cc.open_cache(built) as cache:
        names = {video.key: name for name, video in by_name(cache).items()}
        for number in range(len(dataset)):
            sample = dataset[0, number]
            video = cache[sample["video"]]
            numbers = np.searchsorted(video.pts_seconds, np.asarray(sample["pts_seconds"]))
            start, stop = int(numbers[0]), int(numbers[-1]) + 1
            assert np.array_equal(np.asarray(sample["latents"]), cache.read(video, "latents", start, stop))
            assert len(sample["latents"]) == 1 + (stop - start + 2) // 4
            clips.setdefault(names[video.key], set()).add((start, stop))
    assert clips == {"one": {(0, 1)}, "three": {(0, 3)}, "nine": {(0, 9)}, "twenty": {(0, 9), (9, 18)}}


def test_batches_of_a_budget_of_latent_tokens(built: Path, vae: Path) -> None:
    """Each batch has the cost that its tensor has, and the largest fits the budget, also through ``concat``."""
    sampler = cc.RegularClipSampler(num_frames=7, stride=1, pad="loop")
    dataset = cc.ChordVideoDataset(built, clip_sampler=sampler, features=("latents",), clips_per_video=3)
    for variant in (dataset, cc.concat([dataset, dataset])):
        for index_ in range(len(variant)):
            assert variant.latents_shape((0, index_)) == tuple(variant[0, index_]["latents"].shape)
        batches = list(BudgetBatchSampler(variant, max_latent_tokens=100, patch=(1, 2, 2)))
        assert sorted(number for batch in batches for _, number in batch) == list(range(len(variant)))
        costs = []
        for batch in batches:
            b, t, _, h, w = cc.collate([variant[sample] for sample in batch])["latents"].shape
            costs.append(b * t * -(-h // 2) * -(-w // 2))
        assert 50 < max(costs) <= 100
    assert dataset.latents_shape((0, 0))[0] < 7 or vae.name == "AutoencoderKL"
    with pytest.raises(cc.UsageError, match="^max_latent_tokens: got 5, expected at least"):
        BudgetBatchSampler(dataset, max_latent_tokens=5)
    with pytest.raises(cc.UsageError, match="^features: got .*, expected a dataset with the feature latents"):
        BudgetBatchSampler(cc.ChordVideoDataset(built), max_latent_tokens=500)


def test_crops_are_cut_in_units_of_latents(built: Path) -> None:
    def latents(**crop: Any) -> torch.Tensor:
        dataset = cc.ChordVideoDataset(
            built,
            clip_sampler=cc.RegularClipSampler(num_frames=9, stride=1),
            features=("latents",),
            videos=lambda video: video.num_frames == 9,
            **crop,
        )
        tensor: torch.Tensor = dataset[0]["latents"]
        return tensor

    whole = latents(size=None)
    assert torch.equal(whole, latents())
    assert torch.equal(whole, latents(size=(48, 64)))
    assert whole.shape[-2:] == (48 // PIXELS, 64 // PIXELS)

    class Corner:
        def choose(self, height: int, width: int, random: np.random.Generator) -> CropBox:
            return CropBox(16, 24, 24, 32, size=(24, 32))

    cut = latents(crop=Corner())
    assert torch.equal(cut, whole[..., 16 // PIXELS : 40 // PIXELS, 24 // PIXELS : 56 // PIXELS])
    for crop in ({"size": (24, 32)}, {"size": (46, 64)}, {"crop": cc.crops.HorizontalFlip(1.0, CenterCrop((48, 64)))}):
        with pytest.raises(cc.UsageError, match=rf"^size: got CropBox.*at multiples of {PIXELS} pixels"):
            latents(**crop)


def test_videos_that_do_not_fit_are_refused_if_the_config_says_so(index: Path, wan: Path, tmp_path: Path) -> None:
    build(index, tmp_path / "cache", wan, fit="refuse", dtype="float16")
    with cc.open_cache(tmp_path / "cache") as cache:
        assert cache.read(by_name(cache)["nine"], "latents").dtype == np.float16
    failures = processes.quarantine(tmp_path / "cache")
    assert failures.keys() == {"three.mp4", "twenty.mp4"}
    for failure in failures.values():
        assert failure["stage"] == "latents"
        assert f"pictures have 44x36 pixels, expected multiples of {PIXELS}; take" in failure["message"]


def test_clips_that_do_not_fit_are_refused_if_the_config_says_so(
    wan: Path, tmp_path: Path, make_video: Callable[..., Path]
) -> None:
    make_video(tmp_path / "videos/a.mp4", num_frames=12, size=(64, 48))
    cc.scan([tmp_path / "videos"], output=tmp_path / "index.json", jobs=1)
    build(tmp_path / "index.json", tmp_path / "cache", wan, fit="refuse")
    (failure,) = processes.quarantine(tmp_path / "cache").values()
    assert "the last clip has 3 frames, expected 1 plus a multiple of 4; take" in failure["message"]


def test_models_that_cannot_be_used(index: Path, wan: Path, tmp_path: Path) -> None:
    def folder(name: str, **changes: Any) -> Path:
        (tmp_path / name).mkdir()
        config = {**json.loads((wan / "config.json").read_text()), **changes}
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        return tmp_path / name

    for model, params, message in (
        (tmp_path / "nowhere", {}, r"expected a folder with the config\.json of a model \(FileNotFoundError\)"),
        (
            folder("allegro", _class_name="AutoencoderKLAllegro"),
            {},
            "of type 'AutoencoderKLAllegro', expected one of: Au",
        ),
        (folder("none", _class_name=None), {}, "of type 'None', expected one of: Au"),
        (folder("odd", scale_factor_spatial="8"), {}, "expected whole numbers from 1 to 64"),
        (wan, {"clip_frames": 16}, "clip_frames: got 16, expected 1 plus a multiple of 4, such as 17"),
        (wan, {"fit": "crop"}, "fit: got 'crop', expected one of pad, refuse"),
        (wan, {"device": "gpu"}, "device: got 'gpu', expected auto, cpu, cuda or cuda:N"),
        (wan, {"batch_size": 0}, "batch_size: got 0, expected a number from 1"),
        (folder("no_weights"), {}, "features.latents: its network cannot be loaded: OSError"),
    ):
        with pytest.raises(cc.UsageError, match=message):
            build(index, tmp_path / "caches" / model.name, model, **params)
    assert not processes.quarantine(tmp_path / "caches/no_weights")


def test_a_model_that_was_moved_is_the_same_and_one_that_was_changed_is_not(
    index: Path, wan: Path, tmp_path: Path
) -> None:
    build(index, tmp_path / "cache", wan)
    shutil.copytree(wan, tmp_path / "moved")
    (tmp_path / "moved/README.md").write_text("A copy.")
    assert build(index, tmp_path / "cache", tmp_path / "moved").num_up_to_date == len(NUM_FRAMES)
    with pytest.raises(cc.UsageError, match="got other files in '.*moved' than where the build was started"):
        LatentsExtractor.setup("cpu", model=str(tmp_path / "moved"), files="0" * 16, compression=[4, 8])


def test_weights_of_another_dtype_are_computed_in_float32(index: Path, wan: Path, tmp_path: Path) -> None:
    half = load_vae(wan).half()
    half.save_pretrained(tmp_path / "AutoencoderKLWan")
    build(index, tmp_path / "cache", tmp_path / "AutoencoderKLWan")
    check(tmp_path / "cache", tmp_path / "AutoencoderKLWan")


def test_weights_that_are_absent_or_of_another_shape(index: Path, wan: Path, tmp_path: Path) -> None:
    """diffusers fills them with random numbers."""
    weights = safetensors.torch.load_file(wan / "diffusion_pytorch_model.safetensors")
    name = "quant_conv.bias"
    for folder, changed in (
        ("absent", {key: value for key, value in weights.items() if key != name}),
        ("other", {**weights, name: torch.zeros(2)}),
    ):
        shutil.copytree(wan, tmp_path / folder)
        safetensors.torch.save_file(changed, tmp_path / folder / "diffusion_pytorch_model.safetensors")
        with pytest.raises(cc.UsageError, match=rf"model: got '.*', where 1 of the weights of .* such as {name}\."):
            build(index, tmp_path / "caches" / folder, tmp_path / folder)


@pytest.mark.parametrize(("factor", "dtype", "message"), [
    (float("nan"), "float32", "the network returned values that are not finite"),
    (1e9, "float16", "do not fit into float16; use float32"),
])  # fmt: skip
def test_a_network_that_returns_what_cannot_be_stored(
    index: Path, wan: Path, tmp_path: Path, factor: float, dtype: str, message: str
) -> None:
    network = load_vae(wan)
    with torch.no_grad():
        network.quant_conv.weight.mul_(factor)
    network.save_pretrained(tmp_path / "broken")
    build(index, tmp_path / "cache", tmp_path / "broken", dtype=dtype)
    failures = processes.quarantine(tmp_path / "cache")
    assert len(failures) == len(NUM_FRAMES)
    assert all(failure["cause"] == "extractor" and message in failure["message"] for failure in failures.values())


def test_the_example_of_the_docs(index: Path, tmp_path: Path, run_cli: Callable[..., Any]) -> None:
    docs = Path(__file__).resolve().parents[2] / "docs/latents.md"
    for name, text in re.findall(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", docs.read_text(), re.DOTALL):
        (tmp_path / name).write_text(text)
    cache = tmp_path / "cache"
    options = ("-c", tmp_path / "sharpness.yaml", "--tier", "npz", "--features", "sharpness")
    done = run_cli("build", index, "-o", cache, *options, env={"PYTHONPATH": f"{tmp_path}:{ENVIRONMENT['PYTHONPATH']}"})
    assert done.returncode == 0, done.stderr
    raw = {"frames": {"codec": "raw", "short_side": None}}
    (tmp_path / "raw.yaml").write_text(yaml.dump(raw))
    cc.build(index, tmp_path / "raw", tiers=["lmdb"], config=tmp_path / "raw.yaml", jobs=INLINE)
    with cc.open_cache(cache) as opened, cc.open_cache(tmp_path / "raw") as frames:
        for video in opened:
            sharpness = opened.read(video, "sharpness")
            gray = frames.read(video.key).astype(np.float64) @ (0.299, 0.587, 0.114)
            edges = 4 * gray[:, 1:-1, 1:-1] - gray[:, :-2, 1:-1] - gray[:, 2:, 1:-1]
            edges -= gray[:, 1:-1, :-2] + gray[:, 1:-1, 2:]
            assert sharpness.shape == (video.num_frames,)
            assert np.abs(sharpness - np.abs(edges).mean((1, 2))).max() <= 2  # of gray levels, which RGB rounds
