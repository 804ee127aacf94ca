"""Train with Lightning Fabric and a ClipLoader, and resume after the batch of the last checkpoint.

python examples/with_fabric.py cache run.ckpt
"""

from __future__ import annotations

import os
import sys

import lightning
import torch
from torch import nn

import chordcache as cc


def train(cache: str, checkpoint: str, num_epochs: int = 2, max_steps: int | None = None, devices: int = 2) -> None:
    """Train until the last epoch, or for ``max_steps`` batches, as a job whose time is over."""
    fabric = lightning.Fabric(accelerator="cpu", devices=devices, strategy="ddp")
    fabric.launch()
    dataset = cc.ChordVideoDataset(
        cache, clip_sampler=cc.RandomClipSampler(num_frames=2, stride=1), size=(16, 16), clips_per_video=3
    )
    loader = cc.ClipLoader(dataset, batch_size=4, num_threads=1, device=fabric.device)  # without setup_dataloaders
    net = nn.Linear(3, 1)
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=1e-3))
    if os.path.exists(checkpoint):
        rest = fabric.load(checkpoint, {"model": model, "optimizer": optimizer})
        loader.load_state_dict(rest["loader"])
    num_steps = 0
    for epoch in range(loader.epoch, num_epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            frames = batch["frames"].float() / 255
            loss = model(frames.mean((1, 3, 4))).square().mean()
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
            print(f"epoch {epoch} loss {loss.item():.6f} pixels {frames.sum():.6f} samples", *batch["sample_id"])
            fabric.save(checkpoint, {"model": model, "optimizer": optimizer, "loader": loader.state_dict()})
            num_steps += 1
            if num_steps == max_steps:
                return


if __name__ == "__main__":
    train(*sys.argv[1:3])
