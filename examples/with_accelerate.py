"""Train with accelerate and make_loader, and resume after the batch of the last checkpoint.

accelerate launch --cpu --num_processes 2 examples/with_accelerate.py cache run.pt
"""

from __future__ import annotations

import os
import sys

import accelerate
import torch
from torch import nn

import chordcache as cc


def train(cache: str, checkpoint: str, num_epochs: int = 2, max_steps: int | None = None) -> None:
    """Train until the last epoch, or for ``max_steps`` batches, as a job whose time is over."""
    accelerator = accelerate.Accelerator(cpu=True)
    dataset = cc.ChordVideoDataset(
        cache, clip_sampler=cc.RandomClipSampler(num_frames=2, stride=1), size=(16, 16), clips_per_video=3
    )
    net = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    full_loader = cc.make_loader(dataset, batch_size=4, num_workers=1)
    model, optimizer, loader = accelerator.prepare(net, optimizer, full_loader)  # splits batches across ranks
    sampler = full_loader.sampler  # counts samples, so that a run may resume with more or fewer ranks
    if os.path.exists(checkpoint):
        state = torch.load(checkpoint, weights_only=True)
        accelerator.unwrap_model(model).load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        sampler.load_state_dict(state["sampler"])
    num_steps = 0
    for epoch in range(sampler.next_epoch, num_epochs):
        loader.set_epoch(epoch)
        for num_consumed, batch in enumerate(loader, start=1):
            frames = batch["frames"].float() / 255
            loss = model(frames.mean((1, 3, 4))).square().mean()
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            print(f"epoch {epoch} loss {loss.item():.6f} pixels {frames.sum():.6f} samples", *batch["sample_id"])
            state = {"net": accelerator.unwrap_model(model).state_dict(), "optimizer": optimizer.state_dict()}
            accelerator.wait_for_everyone()
            accelerator.save({**state, "sampler": sampler.state_dict(num_consumed)}, checkpoint)
            num_steps += 1
            if num_steps == max_steps:
                return


if __name__ == "__main__":
    train(*sys.argv[1:3])
