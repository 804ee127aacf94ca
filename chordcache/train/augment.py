"""Augmentation of a whole batch on its device: a policy of the user's, MixUp and CutMix, then normalization."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from chordcache.arguments import check_at_least, names_arguments
from chordcache.errors import UsageError
from chordcache.features.built_in import read_sides
from chordcache.read.clips import cached_features
from chordcache.train.boxes import BOX_TYPES, is_boxes
from chordcache.train.mixing import MIXED, WITHOUT_MEANING, check_motion, mixed
from chordcache.train.samplers.clip_request import ClipRequest, RandomStream

Policy = Callable[[torch.Tensor], torch.Tensor]
"""Function of a clip [shape=(T, 3, H, W), dtype=uint8], such as torchvision's ``transforms.v2.AutoAugment()``"""

_FEATURE_OF = {array: name for name, side in read_sides().items() for array in side.padding}
"""Array of a batch to its feature"""

_OF_NO_FEATURE = ("pts_seconds", "present", "caption_ids", "caption_mask", "labels")
"""Tensors of a batch, of two axes or more, that do not belong to a feature"""

_NO_FIELDS: Mapping[str, str] = MappingProxyType({})

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@names_arguments
class BatchAugment:
    """Augmentation that changes the frames of a batch on their device, mixes labels, and makes normalized floats.

    The result only depends on the batch and the seed. The policy of a clip is drawn from the seed and from the clip's
    ``sample_id``, so from its epoch and its index. A mix is drawn from the seed and from the ``sample_id`` of the first
    clip of the batch. A run that is resumed therefore sees the same augmented batches, with any loader and any number
    of workers. With batches of another size or another number of ranks, each clip keeps its policy but gets another
    partner. torch's global generator is neither used nor changed.

    The policy is called for each clip. Features beside frames are
    accepted where the change has a meaning:

    ==========  ======================================  ======================================================
    setting     changes                                 refuses
    ==========  ======================================  ======================================================
    ``policy``  frames                                  flow, motion and pose, unless ``geometric=False``:
                                                        a policy that moves pixels does not move them
    "mixup"     frames, mel, waveform, labels           flow, motion, pose: a mean of two describes neither
    "cutmix"    frames, flow, motion, labels            mel and waveform, which have no place in the picture;
                                                        pose, which is that of a whole body
    ==========  ======================================  ======================================================

    Boxes, which are not a feature, are accepted where pose is. ``labels`` are mixed as ``label`` is. Both mixes refuse
    features of plug-ins, for which the right way is unknown. Everything else in the batch, such as captions, stays
    that of the clip itself.

    Parameters
    ----------
    policy : callable, optional
        Function of a clip [shape=(T, 3, H, W), dtype=uint8] that returns one of the same shape and dtype, such as
        ``AutoAugment()`` of ``torchvision.transforms.v2``, which changes all frames of a clip in the same way. torch's
        global generator on the CPU is seeded for each clip, and put back afterwards. Do not draw from it in other
        threads meanwhile.
    geometric : bool
        False says that the policy does not move pixels, so that flow, motion and pose stay valid.
    mix : {"mixup", "cutmix"}, optional
        Mix each clip with another one of the batch, and their labels in proportion.
    num_classes : int, optional
        Number of labels. Needed for ``mix``.
    features : iterable of str, optional
        Features of the dataset. If a setting refuses one of them, the error then comes now. By default it comes with
        the first batch.
    fields : mapping of str to str, optional
        ``dataset.fields``. If a setting refuses boxes among them, the error then comes now, as for ``features``. Lists
        of numbers among them are then not mistaken for features of plug-ins.
    seed : int
        Seed of the augmentation alone.
    mean, std : tuple of float
        Mean and standard deviation of red, green and blue on a scale of 0 to 1. By default those of ImageNet.

    Raises
    ------
    UsageError
        If an argument is wrong, or a setting refuses one of ``features`` or ``fields``.

    Notes
    -----
    MixUp (Zhang et al. 2018, alpha=1) draws one share for each clip, uniform in [0, 1). A value of the result is
    ``(1 - share) * own + share * partner``. Mel is mixed in dB. A waveform of int16 is rounded.

    CutMix (Yun et al. 2019, alpha=1) draws one box for each clip, with the shape of the picture and sides rounded down
    to whole pixels, at each place inside of the picture with the same probability. The share of the partner's label is
    the box's part of the area of the picture in the batch, padding included. A cell of flow or motion is the partner's
    if its center lies in the box: at ``top <= y < bottom`` and ``left <= x < right``.

    Examples
    --------
    >>> augment = BatchAugment(policy=lambda clip: clip.flip(-1), mix="cutmix", num_classes=400)
    >>> batch = {"frames": torch.zeros(2, 16, 3, 32, 32, dtype=torch.uint8), "label": torch.tensor([7, 399])}
    >>> batch["sample_id"] = ["0:12", "0:5"]  # as the dataset returns it: epoch 0, samples 12 and 5
    >>> augmented = augment(batch)
    >>> {name: (tuple(augmented[name].shape), augmented[name].dtype) for name in ("frames", "label")}
    {'frames': ((2, 16, 3, 32, 32), torch.float32), 'label': ((2, 400), torch.float32)}
    """

    def __init__(
        self,
        *,
        policy: Policy | None = None,
        geometric: bool = True,
        mix: str | None = None,
        num_classes: int | None = None,
        features: Iterable[str] = (),
        fields: Mapping[str, str] = _NO_FIELDS,
        seed: int = 0,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
    ) -> None:
        if policy is not None and not callable(policy):
            raise UsageError(
                f"policy: got {policy!r}, expected a function of a clip, or None. Take AutoAugment() of "
                "torchvision.transforms.v2."
            )
        if mix is not None and mix not in MIXED:
            raise UsageError(f"mix: got {mix!r}, expected one of {', '.join(MIXED)}, or None")
        check_at_least(0, seed=seed)
        if isinstance(features, str):
            raise UsageError(f"features: got {features!r}, expected a sequence of names such as ({features!r},)")
        if mix is not None and (num_classes is None or num_classes < 1):
            raise UsageError(f"num_classes: got {num_classes!r}, expected the number of labels, since mix={mix!r}")
        if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
            raise UsageError(f"mean and std: got {mean!r} and {std!r}, expected three colors each, std above 0")
        self._moves_pixels = policy is not None and geometric
        self._mix = mix
        self._check_values("features", cached_features(tuple(features))[0])
        self._fields = frozenset(fields)
        self._check_values("fields", boxes=[name for name, kind in fields.items() if kind in BOX_TYPES])
        self._policy = policy
        self._num_classes = num_classes or 0
        self._seed = seed
        self._mean, self._std = (torch.tensor(values, dtype=torch.float32, device="cpu") for values in (mean, std))

    @torch.no_grad()
    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Augment one batch, as ``collate`` makes it, on any device.

        ``frames`` [shape=(B, T, 3, H, W), dtype=uint8, 0 to 255] become normalized float32 of the same shape. With
        ``mix``, ``label`` [shape=(B,), dtype=int64, -1 for none] becomes [shape=(B, num_classes), dtype=float32], as
        ``cross_entropy`` takes it. Rows add up to 1, minus the share of clips without a label. In ``lengths``, a mixed
        array then has the larger size of both clips, and ``present`` is True where both clips have the feature.

        Raises
        ------
        UsageError
            If ``frames`` has another shape or dtype, if a label is not below ``num_classes``, if ``sample_id`` is
            missing with ``policy`` or ``mix``, or if the batch has an array that a setting refuses.
        """
        self._check(batch)
        out = dict(batch)
        requests = self._requests(batch) if self._policy is not None or self._mix is not None else []
        frames = batch["frames"] if self._policy is None else _varied(self._policy, batch["frames"], requests)
        frames = frames.to(torch.float32) / 255
        if self._mix is not None:
            out["frames"] = frames
            random = requests[0].generator(RandomStream.MIX)
            out |= mixed(out, self._mix, num_classes=self._num_classes, random=random)
            frames = out["frames"]
        mean, std = (values.view(3, 1, 1).to(frames.device, non_blocking=True) for values in (self._mean, self._std))
        out["frames"] = frames.sub(mean).div_(std)
        return out

    def _check(self, batch: Mapping[str, Any]) -> None:
        if "frames" not in batch:
            raise UsageError(f"batch: got {', '.join(batch)}, expected also frames. Add 'frames' to features.")
        frames = batch["frames"]
        if isinstance(frames, Mapping):
            what = f"got a dict of {', '.join(frames)}, expected the tensor of one stream"
            raise UsageError(f"frames: {what}. Write augment({{**batch, 'frames': batch['frames'][name]}}).")
        if frames.dtype != torch.uint8 or frames.ndim != 5 or frames.shape[2] != 3:
            raise UsageError(
                f"frames: got {frames.dtype} of shape {tuple(frames.shape)}, expected uint8 of shape (B, T, 3, H, W)"
            )
        named = [(name, value) for name, value in batch.items() if name not in {*self._fields, *_OF_NO_FEATURE}]
        arrays = [name for name, value in named if isinstance(value, torch.Tensor) and value.ndim > 1]
        boxes = [name for name, value in batch.items() if is_boxes(value)]
        self._check_values("batch", [_FEATURE_OF.get(name, name) for name in arrays], boxes)
        if self._mix == "cutmix" and "motion" in batch:
            check_motion(batch)
        # On a GPU this check would wait for all of its queued work. There, one_hot's own assertion fails instead
        if self._mix is not None and not batch["label"].is_cuda and int(batch["label"].max()) >= self._num_classes:
            raise UsageError(
                f"num_classes: got {self._num_classes}, expected more than {batch['label'].max()}, a label of the batch"
            )

    def _check_values(self, what: str, features: Iterable[str] = (), boxes: Sequence[str] = ()) -> None:
        """Raise ``UsageError`` for the first feature, or field of boxes, that a setting has no meaning for."""
        sides = read_sides()
        for name in (*boxes, *features):
            got = f"{what}: got {'boxes in ' if name in boxes else ''}'{name}'"
            if self._moves_pixels and (name in boxes or (name in sides and sides[name].is_spatial)):
                raise UsageError(
                    f"{got} with a policy that moves pixels, expected nothing with places. The policy changes frames "
                    f"only: {name} would not fit them. Pass geometric=False if it does not move pixels. A crop such as "
                    "RandomResizedCrop moves all features and boxes."
                )
            if self._mix is not None and name not in MIXED[self._mix]:
                reason = WITHOUT_MEANING[self._mix].get(name, "How to mix the feature of a plug-in is unknown")
                if name in boxes:
                    reason = "A mixed picture shows things of two clips"
                raise UsageError(
                    f"{got} with mix='{self._mix}', expected only {', '.join(MIXED[self._mix])}. {reason}. Leave "
                    f"'{name}' out, or choose another mix."
                )

    def _requests(self, batch: Mapping[str, Any]) -> list[ClipRequest]:
        """Return the keys of the random numbers of each clip."""
        ids, num_clips = batch.get("sample_id", ()), len(batch["frames"])
        try:
            pairs = [tuple(map(int, sample_id.split(":"))) for sample_id in ids]
            requests = [ClipRequest(seed=self._seed, epoch=epoch, index=index) for epoch, index in pairs]
        except (AttributeError, TypeError, ValueError):
            requests = []
        if len(requests) != num_clips:
            raise UsageError(
                f"batch: got sample_id={ids!r}, expected a list of {num_clips} as ChordVideoDataset returns them. "
                "Random numbers are drawn from it: keep it in transforms and collate functions."
            )
        return requests


def _varied(policy: Policy, frames: torch.Tensor, requests: Sequence[ClipRequest]) -> torch.Tensor:
    """Apply a policy to each clip of frames [shape=(B, T, 3, H, W), dtype=uint8]."""
    out = torch.empty_like(frames)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):  # else a policy would draw on torch's default device
        for request, clip, place in zip(requests, frames, out, strict=True):
            torch.default_generator.manual_seed(int(request.generator(RandomStream.AUGMENT).integers(2**63)))
            changed = policy(clip)
            if changed.dtype != clip.dtype or changed.shape != clip.shape:
                raise UsageError(
                    f"policy: got {changed.dtype} of shape {tuple(changed.shape)}, expected {clip.dtype} of shape "
                    f"{tuple(clip.shape)}, as it was given. Normalize by mean= and std=."
                )
            place.copy_(changed)
    return out
