"""Augmented batches: a clip as one picture, mixed features and labels, the same result after a kill."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.ffmpeg import copy_start
from torch.utils.data import DataLoader

import chordcache as cc
from chordcache.errors import UsageError

pytestmark = pytest.mark.usefixtures("inline")


def gray_or_dark(clip: torch.Tensor) -> torch.Tensor:
    """All frames darker by a random factor, and gray in half of the calls."""
    dark = (clip * torch.empty(()).uniform_(0.2, 0.9)).to(torch.uint8)
    return dark[:, :1].expand_as(dark) if torch.rand(()) < 0.5 else dark


def shifted(clip: torch.Tensor) -> torch.Tensor:
    """All frames shifted by a random number of columns, around the border."""
    return clip.roll(int(torch.randint(1, clip.shape[-1], ())), -1)


POLICIES = {"colors": gray_or_dark, "geometry": shifted}
PLAIN = {"mean": (0, 0, 0), "std": (1, 1, 1)}
NUM_CLASSES = 5


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """So small are the pictures that threads only wait for each other."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, clips: Path) -> Path:
    """Three real videos."""
    folder = tmp_path_factory.mktemp("augment")
    for number, source in enumerate(("animation/bigbuckbunny", "street/bikes", "people/carphone_pristine")):
        copy_start(clips / f"{source}.mp4", 1, folder / "videos" / str(number) / "a.mp4")
    config = folder / "config.yaml"
    config.write_text("frames: {short_side: 64}\n")
    index = cc.scan([folder / "videos"], labels="dir")
    assert cc.build(index, folder / "cache", config=config, jobs=1).num_done == 3

    return folder / "cache"


def dataset_of(cache: Path, **settings: Any) -> cc.ChordVideoDataset:
    sampler = cc.RandomClipSampler(num_frames=3, stride=4)
    return cc.ChordVideoDataset(cache, **{"clip_sampler": sampler, "size": (40, 52), **settings})


@pytest.fixture(scope="module")
def batch(cache: Path) -> dict[str, Any]:
    """Four clips of three real videos."""
    sampler = cc.RegularClipSampler(num_frames=3, stride=4)
    dataset = dataset_of(cache, clips_per_video=2, clip_sampler=sampler)
    dataset.set_epoch(0)
    clips = next(iter(DataLoader(dataset, batch_size=4)))
    assert len(clips["label"].unique()) > 1
    assert clips["sample_id"] == ["0:0", "0:1", "0:2", "0:3"]
    return clips


def floats(batch: dict[str, Any]) -> torch.Tensor:
    return batch["frames"].float() / 255


def in_epoch(epoch: int, batch: dict[str, Any]) -> dict[str, Any]:
    """Return the batch as if it were of another epoch, so that other random numbers are drawn."""
    return {**batch, "sample_id": [f"{epoch}:{index}" for index in range(len(batch["frames"]))]}


def generator_of(stream: int, *, seed: int = 0, epoch: int, index: int) -> np.random.Generator:
    key, counter = np.array([seed, epoch], np.uint64), np.array([0, 0, stream, index], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def test_normalization_alone(batch: dict[str, Any]) -> None:
    out = cc.BatchAugment(mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))(batch)
    expected = batch["frames"].numpy().astype(np.float64) / 255
    expected = (expected - np.reshape((0.1, 0.2, 0.3), (3, 1, 1))) / np.reshape((0.5, 0.6, 0.7), (3, 1, 1))
    np.testing.assert_allclose(out["frames"].numpy(), expected, atol=1e-5)
    assert out["frames"].dtype == torch.float32
    assert batch["frames"].dtype == torch.uint8  # what came in is left alone
    for name in batch.keys() - {"frames"}:
        assert out[name] is batch[name]


@pytest.mark.parametrize("name", POLICIES)
def test_the_policy_is_called_for_each_clip(batch: dict[str, Any], name: str) -> None:
    policy = POLICIES[name]
    augment = cc.BatchAugment(policy=policy, seed=6, **PLAIN)
    num_changed = 0
    for epoch in range(8):
        augmented = augment(in_epoch(epoch, batch))["frames"]
        for index, (clip, result) in enumerate(zip(batch["frames"], augmented, strict=True)):
            torch.manual_seed(int(generator_of(6, seed=6, epoch=epoch, index=index).integers(2**63)))
            torch.testing.assert_close(result, policy(clip) / 255, rtol=0, atol=1e-6)
            num_changed += not torch.equal(result, clip / 255)
    assert num_changed > 15


@pytest.mark.parametrize(
    "policy",
    [lambda clip: clip / 255, lambda clip: clip[:, :, :9], lambda clip: clip[:1]],
    ids=["floats", "cut", "few"],
)
def test_a_policy_that_returns_another_clip(batch: dict[str, Any], policy: Any) -> None:
    with pytest.raises(
        UsageError, match=r"^policy: got torch\..* of shape .*, expected torch.uint8 of shape \(3, 3, 40, 52\)"
    ):
        cc.BatchAugment(policy=policy)(batch)


def test_color_changes_frames_only(batch: dict[str, Any]) -> None:
    others = {"flows": torch.ones(4, 2, 2, 40, 52), "audio": torch.ones(4, 80, 9), "pose": torch.ones(4, 3, 33, 4)}
    others |= {"motion": torch.ones(4, 3, 2, 3, 4), "motion_covered": torch.ones(4, 3, 3, 4, dtype=torch.bool)}
    augment = cc.BatchAugment(
        policy=gray_or_dark, geometric=False, features=("frames", "flow", "mel", "motion", "pose"), **PLAIN
    )
    out = augment({**batch, **others})
    for name, value in others.items():
        assert out[name] is value
    assert not torch.equal(out["frames"], floats(batch))


def soft(label: torch.Tensor, num_classes: int = NUM_CLASSES) -> np.ndarray:
    return np.array([[float(number == own) for number in range(num_classes)] for own in label.tolist()])


def partners_of(random: np.random.Generator, num_clips: int) -> list[int]:
    draws = random.random(num_clips).tolist()
    return sorted(range(num_clips), key=draws.__getitem__)


def test_mixup_mixes_frames_sound_and_labels_by_one_share(batch: dict[str, Any]) -> None:
    audio = torch.randn(4, 80, 20) * 10 - 50
    augment = cc.BatchAugment(mix="mixup", num_classes=NUM_CLASSES, features=("frames", "mel"), seed=2, **PLAIN)
    all_shares = []
    for epoch in range(6):
        out = augment({**in_epoch(epoch, batch), "audio": audio})
        random = generator_of(7, seed=2, epoch=epoch, index=0)
        partners = partners_of(random, 4)
        shares = random.random(4, np.float32).astype(np.float64)
        for name, own in (("frames", floats(batch).numpy()), ("audio", audio.numpy()), ("label", soft(batch["label"]))):
            share = shares.reshape(4, *[1] * (own.ndim - 1))
            np.testing.assert_allclose(out[name].numpy(), (1 - share) * own + share * own[partners], atol=1e-4)
            assert out[name].dtype == torch.float32
        all_shares += shares.tolist()
    assert max(all_shares) > 0.7
    assert min(all_shares) < 0.3


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16])
@pytest.mark.parametrize("channels", [(), (2,)])
def test_mixup_mixes_samples_of_sound(batch: dict[str, Any], dtype: torch.dtype, channels: tuple[int, ...]) -> None:
    waveform = (torch.rand(4, *channels, 500) * 65_535 - 32_768).to(dtype)
    augment = cc.BatchAugment(mix="mixup", num_classes=NUM_CLASSES, features=("frames", "waveform"), seed=2, **PLAIN)
    for epoch in range(3):
        out = augment({**in_epoch(epoch, batch), "waveform": waveform})["waveform"]
        random = generator_of(7, seed=2, epoch=epoch, index=0)
        partners = partners_of(random, 4)
        share = random.random(4, np.float32).astype(np.float64).reshape(4, *[1] * (waveform.ndim - 1))
        own = waveform.double().numpy()
        assert out.dtype == dtype
        half = 0.5 if dtype == torch.int16 else 0
        np.testing.assert_allclose(out.numpy(), (1 - share) * own + share * own[partners], atol=half + 0.01)


def test_cutmix_cuts_the_same_box_from_frames_flow_and_motion() -> None:
    """Pixel by pixel and cell by cell, all values of all clips different."""
    height, width = 40, 52  # 3 x 4 cells of 16 pixels, the last of both axes narrower
    frames = torch.randint(0, 256, (5, 3, 3, height, width), dtype=torch.uint8)
    grids = {"flows": (2, 2, height, width), "motion": (3, 2, 3, 4), "motion_covered": (3, 3, 4)}
    arrays = {name: torch.randn(5, *shape) for name, shape in grids.items()}
    arrays["motion_covered"] = arrays["motion_covered"] > 0
    label = torch.tensor([0, 1, 2, 3, 4])
    augment = cc.BatchAugment(mix="cutmix", num_classes=5, features=("frames", "flow", "motion"), **PLAIN)
    areas = []
    num_cells = 0
    for epoch in range(12):
        given = {"frames": frames, **arrays, "label": label}
        out = augment(in_epoch(epoch, given))
        random = generator_of(7, epoch=epoch, index=0)
        partners = partners_of(random, 5)
        scales = np.sqrt(random.random(5))
        sides = [[int(scale * height) for scale in scales], [int(scale * width) for scale in scales]]
        starts = random.integers([[height - side + 1 for side in sides[0]], [width - side + 1 for side in sides[1]]])
        for clip, partner in enumerate(partners):
            top, left = starts[0][clip], starts[1][clip]
            bottom, right = top + sides[0][clip], left + sides[1][clip]
            area = sides[0][clip] * sides[1][clip] / (height * width)
            areas.append(area)
            expected = (1 - area) * np.eye(5)[clip] + area * np.eye(5)[partner]
            np.testing.assert_allclose(out["label"][clip].numpy(), expected, atol=1e-6)
            is_inside = np.array(
                [[top <= y < bottom and left <= x < right for x in range(width)] for y in range(height)]
            )
            for name, values in (("frames", floats(given).numpy()), ("flows", arrays["flows"].numpy())):
                expected = np.where(is_inside, values[partner], values[clip])
                np.testing.assert_array_equal(out[name][clip].numpy(), expected)
            middles = [8, 24, 36], [8, 24, 40, 50]  # of [0, 16), [16, 32), [32, 40), and of [48, 52)
            is_inside = np.array([[top <= y < bottom and left <= x < right for x in middles[1]] for y in middles[0]])
            num_cells += is_inside.sum()
            for name in ("motion", "motion_covered"):
                expected = np.where(is_inside, arrays[name][partner].numpy(), arrays[name][clip].numpy())
                np.testing.assert_array_equal(out[name][clip].numpy(), expected)
    assert max(areas) > 0.8
    assert min(areas) < 0.2
    assert 0 < num_cells < 60 * 12


def test_cutmix_of_flow_at_its_own_size() -> None:
    """Flow of half the size, as without a crop: a cell is the partner's if its center lies in the box."""
    frames = torch.stack([torch.full((2, 3, 48, 64), value, dtype=torch.uint8) for value in (0, 100, 200)])
    flows = torch.stack([torch.full((1, 2, 24, 32), float(value)) for value in (0, 100, 200)])
    augment = cc.BatchAugment(mix="cutmix", num_classes=3, **PLAIN)
    num_odd = 0
    for epoch in range(20):
        out = augment(in_epoch(epoch, {"frames": frames, "flows": flows, "label": torch.arange(3)}))
        shown = (out["frames"][:, 0, 0] * 255).round()
        # The center of cell r is at 2 r + 1, so that the cell and pixel 2 r + 1 are in the same boxes
        torch.testing.assert_close(out["flows"][:, 0, 0], shown[:, 1::2, 1::2])
        num_odd += int((shown[:, 1::2, 1::2] != shown[:, ::2, ::2]).any())
    assert num_odd > 3


def test_the_label_of_a_clip_without_a_label_is_none(batch: dict[str, Any]) -> None:
    labels = torch.tensor([-1, -1, -1, 2])
    label = cc.BatchAugment(mix="mixup", num_classes=NUM_CLASSES)({**batch, "label": labels})["label"]
    assert not label[:, [0, 1, 3, 4]].any()
    assert 0 < label[:, 2].sum() < 4


def test_lengths_and_presence_of_mixed_clips(batch: dict[str, Any]) -> None:
    lengths = {"audio": torch.tensor([[80, 20], [80, 3], [80, 9], [80, 14]]), "pts_seconds": torch.full((4, 1), 3)}
    present = torch.tensor([[True, True], [True, False], [True, True], [True, True]])
    given = {**batch, "audio": torch.zeros(4, 80, 20), "lengths": lengths, "present": present}
    of_epochs = [partners_of(generator_of(7, epoch=epoch, index=0), 4) for epoch in range(20)]
    epoch, partners = next((epoch, drawn) for epoch, drawn in enumerate(of_epochs) if drawn[1] != 1)
    out = cc.BatchAugment(mix="mixup", num_classes=NUM_CLASSES)(in_epoch(epoch, given))
    assert out["lengths"]["audio"][:, 1].tolist() == [
        max(int(lengths["audio"][clip, 1]), int(lengths["audio"][partner, 1])) for clip, partner in enumerate(partners)
    ]
    assert out["lengths"]["pts_seconds"] is lengths["pts_seconds"]
    assert out["present"][:, 1].tolist() == [1 not in (clip, partner) for clip, partner in enumerate(partners)]
    assert present[0, 1]
    assert lengths["audio"][:, 1].tolist() == [20, 3, 9, 14]


EVERYTHING = {"policy": shifted, "mix": "mixup", "num_classes": NUM_CLASSES}


def test_the_global_generator_is_neither_used_nor_changed(batch: dict[str, Any]) -> None:
    for policy in POLICIES.values():
        for mix in ("mixup", "cutmix"):
            augment = cc.BatchAugment(**{**EVERYTHING, "policy": policy, "mix": mix})
            results = []
            for seed in range(3):
                torch.manual_seed(seed)
                np.random.seed(seed)
                torch.rand(seed)
                before = torch.get_rng_state()
                results.append(augment(batch))
                assert torch.equal(torch.get_rng_state(), before)
            for result in results[1:]:
                assert torch.equal(result["frames"], results[0]["frames"])
                assert torch.equal(result["label"], results[0]["label"])


def test_seeds_epochs_and_batches_differ(batch: dict[str, Any]) -> None:
    still = {**batch, "frames": batch["frames"][:1].expand(4, -1, -1, -1, -1), "label": torch.arange(4)}
    for settings in ({"policy": shifted}, {"mix": "mixup", "num_classes": NUM_CLASSES}):
        outs = [
            cc.BatchAugment(**settings, seed=seed)({**still, "sample_id": [f"{epoch}:{first + i}" for i in range(4)]})
            for seed in range(2)
            for epoch in range(3)
            for first in (0, 4, 8)
        ]
        assert len({out["frames"].numpy().tobytes() + out["label"].numpy().tobytes() for out in outs}) == len(outs)


def test_torchs_default_device_does_not_matter(batch: dict[str, Any]) -> None:
    for policy in POLICIES.values():
        expected = cc.BatchAugment(policy=policy)(batch)["frames"]
        with torch.device("meta"):
            assert torch.equal(cc.BatchAugment(policy=policy)(batch)["frames"], expected)


BATCH_SIZE, NUM_EPOCHS = 2, 2

LOADERS = ("ClipLoader", "make_loader", "make_loader with workers", "DataLoader", "DataLoader with workers")


class Training:
    """A run with every kind of random number of the package. The state of its sampler is its checkpoint."""

    def __init__(self, cache: Path, kind: str, *, state: str | None = None) -> None:
        dataset = dataset_of(cache, clips_per_video=3, crop=cc.crops.RandomResizedCrop((32, 40)), size=(224, 224))
        self.sampler = cc.ChordSampler(dataset, seed=4, batch_size=BATCH_SIZE)
        num_workers = 2 if "workers" in kind else 0
        self.loader: Any
        if kind == "ClipLoader":
            self.loader = cc.ClipLoader(dataset, BATCH_SIZE, sampler=self.sampler, num_threads=2)
        elif kind.startswith("make_loader"):
            self.loader = cc.make_loader(dataset, BATCH_SIZE, num_workers, sampler=self.sampler)
        else:
            self.loader = DataLoader(dataset, BATCH_SIZE, sampler=self.sampler, num_workers=num_workers)
        self.augment = cc.BatchAugment(
            policy=shifted, mix="mixup", num_classes=len(dataset.classes), features=("frames",), seed=8
        )
        if state is not None:
            self.sampler.load_state_dict(json.loads(state))

    def steps(self) -> Iterator[tuple[bytes, str]]:
        """Yield what is learned from, and the checkpoint, after each batch."""
        for epoch in range(self.sampler.epoch, NUM_EPOCHS):
            self.sampler.set_epoch(epoch)
            for number, batch in enumerate(self.loader, start=1):
                augmented = self.augment(batch)
                content = augmented["frames"].contiguous().numpy().tobytes() + augmented["label"].numpy().tobytes()
                yield content, json.dumps(self.sampler.state_dict(num_batches_consumed=number))


def test_every_loader_trains_on_the_same(cache: Path) -> None:
    runs = [[content for content, _ in Training(cache, kind).steps()] for kind in LOADERS]
    assert len(runs[0]) == len(set(runs[0])) == 10
    for run in runs[1:]:
        assert run == runs[0]


def test_stopped_and_resumed_after_each_batch(cache: Path) -> None:
    """Ten places, in the middle and at the end of epochs, each resumed with new objects and another global seed."""
    torch.manual_seed(1)
    reference = list(Training(cache, "ClipLoader").steps())
    for num_done, (_, state) in enumerate(reference, start=1):
        torch.manual_seed(100 + num_done)
        kind = ("ClipLoader", "make_loader", "DataLoader")[num_done % 3]
        resumed = [content for content, _ in Training(cache, kind, state=state).steps()]
        assert resumed == [content for content, _ in reference[num_done:]]


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"policy": "rough"}, "^policy: got 'rough', expected a function of a clip, or None"),
        ({"mix": "blend"}, "^mix: got 'blend', expected one of mixup, cutmix, or None$"),
        ({"mix": "mixup"}, "^num_classes: got None, expected the number of labels, since mix='mixup'$"),
        ({"mix": "mixup", "num_classes": 0}, "^num_classes: got 0"),
        ({"seed": -1}, "^seed: got -1, expected an integer of at least 0$"),
        ({"features": "flow"}, r"^features: got 'flow', expected a sequence of names such as \('flow',\)$"),
        ({"std": (1, 1, 0)}, "^mean and std: got .*, expected three colors each, std above 0$"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        cc.BatchAugment(**settings)


ARRAYS = {
    "flow": ("flows", 5),
    "mel": ("audio", 3),
    "waveform": ("waveform", 2),
    "motion": ("motion", 5),
    "pose": ("pose", 4),
    "mine": ("mine", 3),
}
"""Feature to its array in a batch and the number of axes"""


@pytest.mark.parametrize(
    ("settings", "refused", "match"),
    [
        *(
            ({"policy": shifted}, name, "a policy that moves pixels, .* Pass geometric=False")
            for name in ("flow", "motion", "pose")
        ),
        ({"mix": "mixup"}, "flow", "mix='mixup', expected only frames, mel, waveform. The mean of the flows"),
        ({"mix": "mixup"}, "motion", "mix='mixup', expected only frames, mel, waveform. The mean of the motion"),
        ({"mix": "mixup"}, "pose", "mix='mixup', expected only frames, mel, waveform. The mean of the landmarks"),
        ({"mix": "mixup"}, "mine", "mix='mixup', expected only frames, mel, waveform. How to mix the feature of"),
        ({"mix": "cutmix"}, "mel", "mix='cutmix', expected only frames, flow, motion. Sound has no place"),
        ({"mix": "cutmix"}, "waveform", "mix='cutmix', expected only frames, flow, motion. Sound has no place"),
        ({"mix": "cutmix"}, "pose", "mix='cutmix', expected only frames, flow, motion. Landmarks are those"),
        ({"mix": "cutmix"}, "mine", "mix='cutmix', expected only frames, flow, motion. How to mix the feature of"),
    ],
)
def test_features_without_meaning(batch: dict[str, Any], settings: dict[str, Any], refused: str, match: str) -> None:
    settings = {**settings, "num_classes": NUM_CLASSES}
    with pytest.raises(UsageError, match=f"^features: got '{refused}' with {match}"):
        cc.BatchAugment(**settings, features=("frames", refused))
    name, ndim = ARRAYS[refused]
    with pytest.raises(UsageError, match=f"^batch: got '{refused}' with {match}"):
        cc.BatchAugment(**settings)({**batch, name: torch.zeros(4, *[2] * (ndim - 1))})


@pytest.mark.parametrize(
    ("settings", "change", "match"),
    [
        ({}, lambda b: {"frames": b["frames"].float()}, "^frames: got torch.float32 of .*, expected uint8 of shape"),
        ({}, lambda b: {"frames": b["frames"][0]}, r"^frames: got .* of shape \(3, 3, 40, 52\), expected uint8"),
        (
            {"mix": "mixup", "num_classes": 2},
            lambda b: {"label": torch.tensor([0, 1, 2, 0])},
            "^num_classes: got 2, expected more than 2, a label of the batch$",
        ),
        (
            {"mix": "cutmix", "num_classes": 5},
            lambda b: {"motion": torch.zeros(4, 3, 2, 4, 4)},
            r"^batch: got motion on a grid of \(4, 4\) for frames of \(40, 52\), expected \(3, 4\). Without a crop",
        ),
        ({"policy": shifted}, lambda b: {"sample_id": None}, "^batch: got sample_id=None, expected a list of 4 as"),
        ({"policy": shifted}, lambda b: {"sample_id": ["0:1"]}, "^batch: got sample_id=.'0:1'., expected a list of 4"),
        ({"policy": shifted}, lambda b: {"sample_id": ["a"] * 4}, "^batch: got sample_id=.*, expected a list of 4"),
    ],
)
def test_wrong_batches(batch: dict[str, Any], settings: dict[str, Any], change: Callable[..., Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        cc.BatchAugment(**settings)({**batch, **change(batch)})


def test_batches_without_what_is_needed(batch: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="^batch: got label, expected also frames. Add 'frames' to features.$"):
        cc.BatchAugment()({"label": batch["label"]})
    with pytest.raises(UsageError, match=r"^batch: got sample_id=\(\), expected a list of 4"):
        cc.BatchAugment(policy=gray_or_dark)({"frames": batch["frames"]})
