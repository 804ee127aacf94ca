"""Augmentation of a whole batch on its device: kornia's augmentations, then normalization."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from kornia.augmentation import RandomCutMixV2, RandomMixUpV2
from kornia.augmentation.auto import AutoAugment, RandAugment, TrivialAugment
from kornia.augmentation.auto.base import PolicyAugmentBase
from kornia.augmentation.container.params import ParamItem
from kornia.enhance import normalize
from torch.nn.functional import one_hot

from chordcache.errors import UsageError
from chordcache.features.registry import read_sides
from chordcache.read.arguments import check_share

_POLICIES: Mapping[str, Callable[[], PolicyAugmentBase]] = {
    "auto": AutoAugment,
    "rand": lambda: RandAugment(n=2, m=9),
    "trivial": TrivialAugment,
}
"""Policy of kornia by name, with the parameters of its paper"""

_KEYS = ["input", "class"]

_MIXES: Mapping[str, Callable[[float], RandomMixUpV2 | RandomCutMixV2]] = {
    "cutmix": lambda p: RandomCutMixV2(p=p, data_keys=_KEYS, use_correct_lambda=True),
    "mixup": lambda p: RandomMixUpV2(p=p, data_keys=_KEYS),
}
"""Function by name that makes kornia's module from a probability"""

_SIDES = [side for name, side in read_sides().items() if name != "frames"]
_MOVES_WITH_FRAMES = tuple(next(iter(side.padding)) for side in _SIDES if side.is_spatial)
_MIXES_WITH_FRAMES = tuple(next(iter(side.padding)) for side in _SIDES)
"""Names of a feature's first array in a batch"""

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class BatchAugment:
    """Augmentation that changes the frames of a batch on their device, mixes labels, and makes normalized floats.

    All frames of a clip are changed in the same way, and each clip in a different way. Random numbers come from torch's
    global generator on the CPU, as in all of kornia. ``torch.manual_seed`` repeats them.

    Parameters
    ----------
    policy : {"trivial", "auto", "rand"}, optional
        TrivialAugment, AutoAugment (ImageNet's policy) or RandAugment (n=2, m=9).
    mix : {"mixup", "cutmix"}, optional
        Mix each clip with another one of the batch, and their labels in proportion.
    mix_p : float
        Probability with which a batch is mixed.
    num_classes : int, optional
        Number of labels. Needed for ``mix``.
    mean, std : tuple of float
        Mean and standard deviation of red, green and blue on a scale of 0 to 1. By default those of ImageNet.

    Raises
    ------
    UsageError
        If an argument is wrong.

    Notes
    -----
    Source: kornia's ``TrivialAugment``, ``AutoAugment``, ``RandAugment``, ``RandomMixUpV2``, ``RandomCutMixV2`` and
    ``normalize``, whose papers its documentation names. Equalize and auto-contrast use each frame separately.

    Examples
    --------
    >>> augment = BatchAugment(policy="trivial", mix="cutmix", num_classes=400)
    >>> batch = {"frames": torch.zeros(2, 16, 3, 32, 32, dtype=torch.uint8), "label": torch.tensor([7, 399])}
    >>> {name: (tuple(value.shape), value.dtype) for name, value in augment(batch).items()}
    {'frames': ((2, 16, 3, 32, 32), torch.float32), 'label': ((2, 400), torch.float32)}
    """

    def __init__(
        self,
        *,
        policy: str | None = None,
        mix: str | None = None,
        mix_p: float = 1.0,
        num_classes: int | None = None,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
    ) -> None:
        for name, value, valid in (("policy", policy, _POLICIES), ("mix", mix, _MIXES)):
            if value is not None and value not in valid:
                raise UsageError(f"{name}: got {value!r}, expected one of {', '.join(valid)}, or None")
        check_share(mix_p=mix_p)
        if mix is not None and (num_classes is None or num_classes < 1):
            raise UsageError(f"num_classes: got {num_classes!r}, expected the number of labels, since mix={mix!r}")
        if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
            raise UsageError(f"mean and std: got {mean!r} and {std!r}, expected three colors each, std above 0")
        self._policy = None if policy is None else _POLICIES[policy]()
        self._mix = None if mix is None else _MIXES[mix](mix_p)
        self._num_classes = num_classes or 0
        self._mean, self._std = tuple(mean), tuple(std)

    @torch.no_grad()
    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Augment one batch.

        Parameters
        ----------
        batch : mapping
            ``frames`` [shape=(B, T, 3, H, W), dtype=uint8, 0 to 255] on any device. With ``mix`` also ``label``
            [shape=(B,), dtype=int64, -1 for none] on the same device.

        Returns
        -------
        dict
            The batch with ``frames`` [same shape, dtype=float32, normalized] and, with ``mix``, ``label``
            [shape=(B, num_classes), dtype=float32], as ``cross_entropy`` takes it. Rows add up to 1, minus the share
            of clips without a label.

        Raises
        ------
        UsageError
            If ``frames`` has another shape or dtype, if a label is not below ``num_classes``, or if the batch has
            features that would have to change with the frames.
        """
        self._check(batch)
        out = dict(batch)
        frames = batch["frames"].to(torch.float32) / 255
        if self._policy is not None:
            frames = torch.stack([_varied(self._policy, clip) for clip in frames])
        if self._mix is not None:
            frames, out["label"] = self._mixed(self._mix, frames, batch["label"])
        mean, std = (torch.tensor(values, device=frames.device) for values in (self._mean, self._std))
        out["frames"] = normalize(frames.flatten(0, 1), mean, std).view(frames.shape)
        return out

    def _check(self, batch: Mapping[str, Any]) -> None:
        frames = batch["frames"]
        if frames.dtype != torch.uint8 or frames.ndim != 5 or frames.shape[2] != 3:
            raise UsageError(
                f"frames: got {frames.dtype} of shape {tuple(frames.shape)}, expected uint8 of shape (B, T, 3, H, W)"
            )
        follows = _MIXES_WITH_FRAMES if self._mix else _MOVES_WITH_FRAMES if self._policy else ()
        left_behind = [name for name in follows if name in batch]
        if left_behind:
            raise UsageError(
                f"batch: got {', '.join(left_behind)} beside frames, expected frames alone: policy and mix change only "
                "them. Leave the others out, or use a crop such as RandomResizedCrop, which moves all features."
            )
        # On a GPU this check would wait for all of its queued work. There, one_hot's own assertion fails instead
        if self._mix is not None and not batch["label"].is_cuda and int(batch["label"].max()) >= self._num_classes:
            raise UsageError(
                f"num_classes: got {self._num_classes}, expected more than {batch['label'].max()}, a label of the batch"
            )

    def _mixed(
        self, mix: RandomMixUpV2 | RandomCutMixV2, frames: torch.Tensor, label: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # The frames of a clip become channels of one picture, so that each clip has one partner, one share and one box
        mixed, triples = mix(frames.flatten(1, 2), label)
        own, other, share = triples.view(-1, 3).unbind(1)
        # CutMix returns the share that a clip keeps, MixUp the share that it gets. If unmixed, both labels are equal
        share = (1 - share if isinstance(mix, RandomCutMixV2) else share)[:, None]
        return mixed.view(frames.shape), (1 - share) * self._soft(own) + share * self._soft(other)

    def _soft(self, label: torch.Tensor) -> torch.Tensor:
        """Return one-hot labels [shape=(B, num_classes), dtype=float32], zero where there is no label."""
        known = label >= 0
        hot = one_hot(label.clamp(min=0).long(), self._num_classes)
        return hot.to(torch.float32) * known[:, None]


def _varied(policy: PolicyAugmentBase, clip: torch.Tensor) -> torch.Tensor:
    """Apply a policy to a clip [shape=(T, 3, H, W)] as if it were one picture."""
    drawn = policy.forward_parameters(torch.Size((1, *clip.shape[1:])))
    varied: torch.Tensor = policy(clip, params=_repeated(drawn, len(clip)))
    return varied


def _repeated(items: Sequence[ParamItem], num: int) -> list[ParamItem]:
    """Repeat a picture's parameters ``num`` times, like kornia's VideoSequential, which does not accept policies."""
    repeated = []
    for item in items:
        if isinstance(item.data, list):
            repeated.append(ParamItem(item.name, _repeated(item.data, num)))
        elif item.data is not None:
            of_one = item.data.items()
            data = {name: value.expand(num, *value.shape[1:]) if len(value) == 1 else value for name, value in of_one}
            repeated.append(ParamItem(item.name, data))
    return repeated
