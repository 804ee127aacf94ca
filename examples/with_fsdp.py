"""Train a sharded model (FSDP2) with make_loader, and resume after the batch of the last checkpoint.

torchrun --nproc-per-node 2 examples/with_fsdp.py cache run
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed import checkpoint as sharded
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import chordcache as cc


def train(cache: str, checkpoint: str, num_epochs: int = 2, max_steps: int | None = None) -> None:
    """Train until the last epoch, or for ``max_steps`` batches, as a job whose time is over."""
    dataset = cc.ChordVideoDataset(
        cache, clip_sampler=cc.RandomClipSampler(num_frames=2, stride=1), size=(16, 16), clips_per_video=3
    )
    loader = cc.make_loader(dataset, batch_size=4, num_workers=1)  # splits the samples across ranks
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    fully_shard(net, mesh=init_device_mesh("cpu", (distributed.get_world_size(),)))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    num_steps = num_saved = 0
    saved = [int(path.parent.name) for path in Path(checkpoint).glob("*/.metadata")]  # which is written last
    if saved:
        num_saved = max(saved)
        of_net, of_optimizer = get_state_dict(net, optimizer)
        state: dict[str, Any] = {"net": of_net, "optimizer": of_optimizer, "loader": loader.state_dict()}
        sharded.load(state, checkpoint_id=f"{checkpoint}/{num_saved}")  # replaces the values in the state
        set_state_dict(net, optimizer, model_state_dict=state["net"], optim_state_dict=state["optimizer"])
        loader.load_state_dict(state["loader"])
    for epoch in range(loader.epoch, num_epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            frames = batch["frames"].float() / 255
            loss = net(frames.mean((1, 3, 4))).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"epoch {epoch} loss {loss.item():.6f} pixels {frames.sum():.6f} samples", *batch["sample_id"])
            of_net, of_optimizer = get_state_dict(net, optimizer)
            state = {"net": of_net, "optimizer": of_optimizer, "loader": loader.state_dict()}
            num_steps += 1
            sharded.save(state, checkpoint_id=f"{checkpoint}/{num_saved + num_steps}")  # all ranks, each its shard
            if num_steps == max_steps:
                return


if __name__ == "__main__":
    distributed.init_process_group("gloo")
    train(*sys.argv[1:3])
    distributed.destroy_process_group()
