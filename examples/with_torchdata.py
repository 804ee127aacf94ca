"""Train with torchdata's StatefulDataLoader and batches of a budget, and resume after the batch of the last checkpoint.

torchrun --nproc-per-node 2 examples/with_torchdata.py cache run.pt
"""

from __future__ import annotations

import os
import sys

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torchdata.stateful_dataloader import StatefulDataLoader

import chordcache as cc
from chordcache.train.samplers.budget_batches import BudgetBatchSampler


def train(cache: str, checkpoint: str, num_epochs: int = 2, max_steps: int | None = None) -> None:
    """Train until the last epoch, or for ``max_steps`` batches, as a job whose time is over.

    Each rank has a checkpoint of its own, since a StatefulDataLoader has the state of its workers.
    """
    dataset = cc.ChordVideoDataset(
        cache, clip_sampler=cc.RandomClipSampler(num_frames=2, stride=1), size=(16, 16), clips_per_video=3
    )
    batches = BudgetBatchSampler(dataset, max_frames=8)  # splits the batches across ranks
    loader = StatefulDataLoader(dataset, batch_sampler=batches, collate_fn=cc.collate, num_workers=1)
    net = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    path = f"{checkpoint}-{distributed.get_rank()}"
    num_batches = num_steps = 0
    if os.path.exists(path):
        state = torch.load(path, weights_only=True)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        if state["num_ranks"] != distributed.get_world_size():
            raise ValueError(f"{path}: got another number of ranks. Resume with {state['num_ranks']} ranks.")
        loader.load_state_dict(state["loader"])
        num_batches = state["num_batches"]
    model = DistributedDataParallel(net)
    for epoch in range(num_batches // len(loader), num_epochs):
        for batch in loader:  # each pass is the next epoch, or the rest of a resumed one
            frames = batch["frames"].float() / 255
            loss = model(frames.mean((1, 3, 4))).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"epoch {epoch} loss {loss.item():.6f} pixels {frames.sum():.6f} samples", *batch["sample_id"])
            state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
            num_batches += 1
            torch.save({**state, "num_batches": num_batches, "num_ranks": distributed.get_world_size()}, path)
            num_steps += 1
            if num_steps == max_steps:
                return


if __name__ == "__main__":
    distributed.init_process_group("gloo")
    train(*sys.argv[1:3])
    distributed.destroy_process_group()
