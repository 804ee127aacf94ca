"""Collation of samples into a batch, also where they differ in length or size."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import default_collate

from chordcache.arguments import names_arguments
from chordcache.errors import UsageError
from chordcache.features.built_in import read_sides
from chordcache.train.batches import as_one
from chordcache.train.boxes import Boxes, is_boxes

if TYPE_CHECKING:  # an optional package
    from chordcache.train.captions import CaptionTokenizer

_PADDING = {name: value for side in read_sides().values() for name, value in side.padding.items()}
"""Padding of the arrays of built-in features. All others are padded with zero."""


@names_arguments
def collate(samples: Sequence[dict[str, Any]], *, tokenizer: CaptionTokenizer | None = None) -> dict[str, Any]:
    """Make a batch of samples, for any loader. Tensors of different shapes are padded at the end of each axis.

    Tensors that lie next to each other in one memory, as ``ChordVideoDataset.__getitems__`` decodes frames, are not
    copied. The batch is then a view of that memory.

    Parameters
    ----------
    samples : sequence of dict
        Samples of one dataset.
    tokenizer : CaptionTokenizer, optional
        Tokenizer that also makes token ids of the captions: ``functools.partial(collate, tokenizer=...)``.

    Returns
    -------
    dict
        The result of torch's default collate, with the tensors of each name padded to the largest. In addition:

        ====================  ==============================================================================
        ``lengths``           dict: name of each feature to the shapes that its samples had before
                              [shape=(B, number of axes), dtype=int64]; ``lengths["audio"][:, -1]`` counts rows of mel,
                              ``lengths["waveform"][:, -1]`` samples
        ``text_mask``         [shape=(B, L), dtype=bool] True for tokens of the feature ``text``, False for padding;
                              from the samples if they have it
        ``caption_ids``       [shape=(B, n), dtype=int64] the tokenizer's padding after the shorter ones; n is the
                              tokenizer's ``length``, or that of the longest
        ``caption_mask``      [shape=(B, n), dtype=bool] True for tokens, False for padding
        ====================  ==============================================================================

        Padding is black, no motion, silence, no person seen, and zero for all else. Lists of str stay one list for
        each sample. ``Boxes`` are those of all samples one after the other, and ``sample`` [shape=(N,), dtype=int64]
        has the position of each box's sample in the batch. Values by stream, as ``group`` makes them, stay so.

    Raises
    ------
    UsageError
        If ``samples`` is empty, or a feature has another number of axes in some of them.
    """
    if not samples:
        raise UsageError("samples: got none, expected at least one")
    batch: dict[str, Any] = {}
    lengths: dict[str, Any] = {}
    for name, first in samples[0].items():
        values = [sample[name] for sample in samples]
        if isinstance(first, torch.Tensor) and first.ndim:
            batch[name], lengths[name] = _stacked(name, values, _PADDING.get(name, 0))
            if name == "text" and "text_mask" not in samples[0]:  # features.text.padding: none
                batch["text_mask"] = torch.arange(batch[name].shape[-2]) < lengths[name][:, -2:-1]
        elif isinstance(first, (torch.Tensor, str)):
            batch[name] = default_collate(values)
        elif is_boxes(first):
            batch[name] = _joined_boxes(values)
        elif isinstance(first, dict):  # by stream, see ``chordcache.group``
            for stream in first:
                of_stream = collate([{name: value[stream]} for value in values])
                for key, shapes in of_stream.pop("lengths").items():
                    lengths.setdefault(key, {})[stream] = shapes
                for key, joined in of_stream.items():
                    batch.setdefault(key, {})[stream] = joined
        elif isinstance(first, list) and all(isinstance(text, str) for value in values for text in value):
            batch[name] = values
        else:
            batch[name] = default_collate(values)
    if tokenizer is not None:
        ids = [torch.from_numpy(np.array(tokenizer(sample["caption"]))) for sample in samples]
        stacked, lengths["caption_ids"] = _stacked("caption_ids", ids, tokenizer.pad_id)
        missing = (tokenizer.length or stacked.shape[1]) - stacked.shape[1]
        batch["caption_ids"] = torch.nn.functional.pad(stacked, (0, missing), value=tokenizer.pad_id)
        batch["caption_mask"] = torch.arange(batch["caption_ids"].shape[1]) < lengths["caption_ids"]
    return {**batch, "lengths": lengths}


def _stacked(name: str, values: list[torch.Tensor], nothing: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Stack tensors [shape=(B, ...)], and return their shapes too [shape=(B, ndim)]."""
    shapes = {tuple(value.shape) for value in values}
    if len(shapes) == 1:
        whole = as_one(values)
        return default_collate(values) if whole is None else whole, torch.tensor([*shapes]).repeat(len(values), 1)
    if len({len(shape) for shape in shapes}) > 1:
        got = " and ".join(sorted(map(str, shapes)))
        raise UsageError(f"batch: got '{name}' of shapes {got}, expected samples with the same number of dimensions")
    lengths = torch.tensor([value.shape for value in values])
    largest = lengths.amax(0)
    out = values[0].new_full((len(values), *largest.tolist()), nothing)
    for place, value in zip(out, values, strict=True):
        place[tuple(slice(length) for length in value.shape)] = value
    return out, lengths


def _joined_boxes(samples: list[Boxes]) -> Boxes:
    """Return the boxes of all samples, one after the other, and the position of the sample of each."""
    joined: Boxes = {}
    for name in samples[0]:
        values = [sample[name] for sample in samples]
        joined[name] = list(chain(*values)) if isinstance(values[0], list) else torch.cat(values)
    num_boxes = torch.tensor([len(sample["frame"]) for sample in samples])
    return {**joined, "sample": torch.repeat_interleave(torch.arange(len(samples)), num_boxes)}
