"""Outcome of every item of datasets, in DataLoaders of every kind. Only this module loads torch."""

from __future__ import annotations

import hashlib
import multiprocessing
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import chordcache as cc

TIMEOUT_SECONDS = 120
"""Without a batch for so long, a worker hangs."""


class Outcomes(Dataset[tuple[str, str]]):
    """("sample", its digest) or (class, message) of the error, for each item of some datasets."""

    def __init__(self, datasets: Sequence[cc.ChordVideoDataset]) -> None:
        for dataset in datasets:
            dataset.set_epoch(0)  # so that every pass returns the same samples
        self._items = [(dataset, position) for dataset in datasets for position in range(len(dataset))]

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, number: int) -> tuple[str, str]:
        dataset, position = self._items[number]
        try:
            return "sample", _digest(dataset[position])
        except cc.ChordcacheError as error:
            return type(error).__name__, str(error)


def _digest(sample: dict[str, Any]) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(sample.items()):
        data = value.numpy().tobytes() if isinstance(value, torch.Tensor) else str(value).encode()
        digest.update(f"{name} {len(data)} ".encode() + data)
    return digest.hexdigest()


def serve(
    datasets: Sequence[cc.ChordVideoDataset], method: str | None = None, num_workers: int = 0, num_epochs: int = 1
) -> list[list[tuple[str, str]]]:
    """Return the outcome of all items, epoch by epoch, in workers that live through all of them and end well."""
    if method == "forkserver":
        multiprocessing.set_forkserver_preload([__name__])  # or each worker loads torch by itself
    loader = DataLoader(
        Outcomes(datasets),
        batch_size=8,
        collate_fn=list,
        num_workers=num_workers,
        multiprocessing_context=method,
        persistent_workers=num_workers > 0,
        timeout=TIMEOUT_SECONDS if num_workers else 0,
    )
    epochs, workers = [], set()
    for _ in range(num_epochs):
        items = []
        for batch in loader:
            workers.update(multiprocessing.active_children())
            items += batch
        epochs.append(items)
    del loader
    for worker in workers:
        worker.join(TIMEOUT_SECONDS)
    assert [worker.exitcode for worker in workers] == [0] * num_workers
    return epochs
