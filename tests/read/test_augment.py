"""Batches augmented by kornia: a clip as one picture, labels with their frames, normalization last."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.ffmpeg import copy_start

torch = pytest.importorskip("torch")
kornia = pytest.importorskip("kornia")
from kornia.augmentation import RandomCutMixV2, RandomMixUpV2  # noqa: E402
from kornia.augmentation.auto import AutoAugment, RandAugment, TrivialAugment  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

import chordcache as cc  # noqa: E402
from chordcache.errors import UsageError  # noqa: E402

POLICIES = {"auto": AutoAugment, "rand": lambda: RandAugment(n=2, m=9), "trivial": TrivialAugment}
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
def batch(tmp_path_factory: pytest.TempPathFactory, clips: Path) -> dict[str, Any]:
    """Four clips of three real videos."""
    folder = tmp_path_factory.mktemp("augment")
    for number, source in enumerate(("animation/bigbuckbunny", "street/bikes", "people/carphone_pristine")):
        copy_start(clips / f"{source}.mp4", 1, folder / "videos" / str(number) / "a.mp4")
    cc.build(cc.scan([folder / "videos"], labels="dir"), folder / "cache", tiers=["lmdb"], jobs=1)
    sampler = cc.RegularClipSampler(num_frames=3, stride=4)
    dataset = cc.ChordVideoDataset(folder / "cache", clip_sampler=sampler, size=(64, 48), clips_per_video=2)
    found = next(iter(DataLoader(dataset, batch_size=4)))
    assert len(found["label"].unique()) > 1
    return found


def floats(batch: dict[str, Any]) -> torch.Tensor:
    return batch["frames"].float() / 255


def test_normalization_alone(batch: dict[str, Any]) -> None:
    out = cc.BatchAugment(mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))(batch)
    expected = batch["frames"].numpy().astype(np.float64) / 255
    expected = (expected - np.reshape((0.1, 0.2, 0.3), (3, 1, 1))) / np.reshape((0.5, 0.6, 0.7), (3, 1, 1))
    np.testing.assert_allclose(out["frames"].numpy(), expected, atol=1e-5)
    assert out["frames"].dtype == torch.float32
    assert batch["frames"].dtype == torch.uint8  # what came in is left alone
    for name in batch.keys() - {"frames"}:
        assert out[name] is batch[name]


def test_frames_in_the_memory_order_of_pictures(batch: dict[str, Any]) -> None:
    permuted = batch["frames"].permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    for settings in ({}, {"policy": "trivial"}, {"mix": "mixup", "num_classes": NUM_CLASSES}):
        found = []
        for frames in (batch["frames"], permuted):
            torch.manual_seed(1)
            found.append(cc.BatchAugment(**settings)({**batch, "frames": frames})["frames"])
        torch.testing.assert_close(*found)


# Policies


@pytest.mark.parametrize("policy", POLICIES)
def test_each_clip_is_one_picture_to_the_policy(batch: dict[str, Any], policy: str) -> None:
    """Every frame as kornia makes it, called for that frame alone with the parameters drawn for its clip."""
    augment, own = cc.BatchAugment(policy=policy, **PLAIN), POLICIES[policy]()
    num_changed = 0
    for seed in range(8):
        torch.manual_seed(seed)
        found = augment(batch)["frames"]
        torch.manual_seed(seed)
        for clip, result in zip(floats(batch), found, strict=True):
            drawn = own.forward_parameters(torch.Size((1, *clip.shape[1:])))
            expected = torch.cat([own(frame[None], params=drawn) for frame in clip])
            torch.testing.assert_close(result, expected, rtol=0, atol=1e-6)
            num_changed += not torch.equal(result, clip)
    assert num_changed > 15


@pytest.mark.parametrize("policy", POLICIES)
def test_a_still_stays_a_still_and_clips_differ(batch: dict[str, Any], policy: str) -> None:
    still = batch["frames"][:1, :1].expand(4, 6, -1, -1, -1)
    torch.manual_seed(3)
    results = [cc.BatchAugment(policy=policy)({"frames": still})["frames"] for _ in range(10)]
    for result in results:
        torch.testing.assert_close(result, result[:, :1].expand_as(result), rtol=0, atol=1e-5)
    num_kinds = [len({clip.numpy().tobytes() for clip in result[:, 0]}) for result in results]
    assert max(num_kinds) == 4
    assert np.mean(num_kinds) > 2.5


def test_random_labels_cannot_be_learned(batch: dict[str, Any]) -> None:
    frames = cc.BatchAugment(policy="auto", mix="cutmix", num_classes=NUM_CLASSES)(batch)["frames"]
    assert not frames.requires_grad


# Mixing


def lambdas_of(mix: str, frames: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures after kornia; its labels [shape=(B, 3), own, other, the other's share]."""
    if mix == "mixup":
        return RandomMixUpV2(data_keys=["input", "class"])(frames, labels)
    mixed, triples = RandomCutMixV2(data_keys=["input", "class"], use_correct_lambda=True)(frames, labels)
    triples[..., 2] = 1 - triples[..., 2]
    return mixed, triples[0]


@pytest.mark.parametrize("mix", ["mixup", "cutmix"])
def test_mixed_as_kornia_mixes_pictures(batch: dict[str, Any], mix: str) -> None:
    """Each frame is mixed with the same frame of the partner, by the same share or box; labels by that share."""
    augment = cc.BatchAugment(mix=mix, num_classes=NUM_CLASSES, **PLAIN)
    shares = []
    for seed in range(6):
        torch.manual_seed(seed)
        out = augment(batch)
        for number in range(3):
            torch.manual_seed(seed)
            expected, triples = lambdas_of(mix, floats(batch)[:, number], batch["label"])
            torch.testing.assert_close(out["frames"][:, number], expected)
        assert out["label"].shape == (4, NUM_CLASSES)
        for row, (own, other, share) in zip(out["label"].tolist(), triples.tolist(), strict=True):
            soft = np.zeros(NUM_CLASSES)
            soft[int(own)] += 1 - share
            soft[int(other)] += share
            assert row == pytest.approx(soft, abs=1e-6)
            shares.append(share)
    assert max(shares) > 0.7
    assert min(shares) < 0.3
    assert out["label"].dtype == torch.float32


@pytest.mark.parametrize("mix", ["mixup", "cutmix"])
def test_labels_are_what_the_frames_show(mix: str) -> None:
    """Clips of one color each, whose label shows in the frames, with kornia left out."""
    levels = torch.tensor([0, 50, 100, 150, 200])
    frames = levels.to(torch.uint8).view(5, 1, 1, 1, 1).expand(5, 2, 3, 32, 32)
    augment = cc.BatchAugment(mix=mix, num_classes=5, **PLAIN)
    torch.manual_seed(0)
    for _ in range(10):
        out = augment({"frames": frames, "label": torch.arange(5)})
        found = (out["frames"] * 255).mean((1, 2, 3, 4))
        torch.testing.assert_close(found, out["label"] @ levels.float(), rtol=0, atol=0.5)
        torch.testing.assert_close(out["label"].sum(1), torch.ones(5))


def test_probability_of_mixing(batch: dict[str, Any]) -> None:
    for p in (0, 0.5, 1):
        for mix in ("mixup", "cutmix"):
            torch.manual_seed(1)
            augment = cc.BatchAugment(mix=mix, mix_p=p, num_classes=NUM_CLASSES, **PLAIN)
            outs = [augment(batch) for _ in range(40)]
            changed = [not torch.allclose(out["frames"], floats(batch)) for out in outs]
            # One batch in 24 has every clip as its own partner
            assert np.mean(changed) == pytest.approx(p, abs=0.2 if p == 0.5 else 0.15 * p)
            unchanged = [out["label"] for out, moved in zip(outs, changed, strict=True) if not moved]
            for label in unchanged[:3]:
                torch.testing.assert_close(label.sum(1), torch.ones(4))


def test_the_label_of_a_clip_without_a_label_is_none(batch: dict[str, Any]) -> None:
    labels = torch.tensor([-1, -1, -1, 2])
    torch.manual_seed(2)
    label = cc.BatchAugment(mix="mixup", num_classes=NUM_CLASSES)({**batch, "label": labels})["label"]
    assert not label[:, [0, 1, 3, 4]].any()
    assert 0 < label[:, 2].sum() < 4


def test_cross_entropy_takes_the_labels(batch: dict[str, Any]) -> None:
    label = cc.BatchAugment(mix="cutmix", num_classes=NUM_CLASSES)(batch)["label"]
    logits = torch.randn(4, NUM_CLASSES)
    expected = -(label * logits.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(torch.nn.functional.cross_entropy(logits, label), expected)


# Arguments


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"policy": "rough"}, "^policy: got 'rough', expected one of auto, rand, trivial, or None$"),
        ({"mix": "blend"}, "^mix: got 'blend', expected one of cutmix, mixup, or None$"),
        ({"mix": "mixup"}, "^num_classes: got None, expected the number of labels, since mix='mixup'$"),
        ({"mix": "mixup", "num_classes": 0}, "^num_classes: got 0"),
        ({"mix_p": 2}, r"^mix_p: got 2, expected a number in \[0, 1\]$"),
        ({"std": (1, 1, 0)}, "^mean and std: got .*, expected three colors each, std above 0$"),
        ({"mean": (1,)}, "^mean and std: got"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        cc.BatchAugment(**settings)


@pytest.mark.parametrize(
    ("settings", "change", "match"),
    [
        ({}, lambda b: {"frames": b["frames"].float()}, "^frames: got torch.float32 of .*, expected uint8 of shape"),
        ({}, lambda b: {"frames": b["frames"][0]}, r"^frames: got .* of shape \(3, 3, 64, 48\), expected uint8"),
        (
            {"policy": "auto"},
            lambda b: {"flows": torch.zeros(1), "pose": torch.zeros(1)},
            "^batch: got flows, pose beside frames, expected frames alone: .* Leave the others out, or use a crop",
        ),
        ({"mix": "mixup", "num_classes": 5}, lambda b: {"audio": torch.zeros(1)}, "^batch: got audio beside frames"),
        (
            {"mix": "mixup", "num_classes": 2},
            lambda b: {"label": torch.tensor([0, 1, 2, 0])},
            "^num_classes: got 2, expected more than 2, a label of the batch$",
        ),
    ],
)
def test_wrong_batches(batch: dict[str, Any], settings: dict[str, Any], change: Callable[..., Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        cc.BatchAugment(**settings)({**batch, **change(batch)})


def test_features_without_changes_are_kept(batch: dict[str, Any]) -> None:
    audio = torch.zeros(4, 80, 20)
    assert cc.BatchAugment(policy="auto")({**batch, "audio": audio})["audio"] is audio
    flows = torch.zeros(4, 2, 2, 8, 8)
    assert cc.BatchAugment()({**batch, "flows": flows})["flows"] is flows


def test_dataset_needs_no_kornia() -> None:
    code = (
        "import sys, chordcache\nchordcache.ChordVideoDataset, chordcache.collate\nassert 'kornia' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
