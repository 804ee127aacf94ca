"""Train with torch's DistributedDataParallel and a ClipLoader, and resume after the batch of the last checkpoint.

torchrun --nproc-per-node 2 examples/with_ddp.py cache run.pt
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import chordcache as cc


def train(cache: str, checkpoint: str, num_epochs: int = 2, max_steps: int | None = None) -> None:
    """Train until the last epoch, or for ``max_steps`` batches, as a job whose time is over."""
    dataset = cc.ChordVideoDataset(
        cache, clip_sampler=cc.RandomClipSampler(num_frames=2, stride=1), size=(16, 16), clips_per_video=3
    )
    loader = cc.ClipLoader(dataset, batch_size=4, num_threads=1)  # splits the samples across ranks
    net = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    if os.path.exists(checkpoint):
        state = torch.load(checkpoint, weights_only=True)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
    model = DistributedDataParallel(net)
    num_steps = 0
    for epoch in range(loader.epoch, num_epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            frames = batch["frames"].float() / 255
            loss = model(frames.mean((1, 3, 4))).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"epoch {epoch} loss {loss.item():.6f} pixels {frames.sum():.6f} samples", *batch["sample_id"])
            distributed.barrier()  # all ranks have used the batches that the state counts
            if distributed.get_rank() == 0:
                state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
                torch.save(state, f"{checkpoint}.partial")
                Path(f"{checkpoint}.partial").replace(checkpoint)
            num_steps += 1
            if num_steps == max_steps:
                return


if __name__ == "__main__":
    distributed.init_process_group("gloo")
    train(*sys.argv[1:3])
    distributed.destroy_process_group()
