"""Train with the Trainer of transformers and a ClipLoader, and resume after the batch of the last checkpoint.

torchrun --nproc-per-node 2 examples/with_trainer.py cache run
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers.trainer_utils import get_last_checkpoint

import chordcache as cc


class Model(nn.Module):
    """A tiny model of the mean color of clips."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 1)

    def forward(self, frames: torch.Tensor, sample_id: list[str], **_: Any) -> dict[str, torch.Tensor]:
        """Return the loss of a batch."""
        frames = frames.float() / 255
        loss = self.net(frames.mean((1, 3, 4))).square().mean()
        epoch = sample_id[0].partition(":")[0]
        print(f"epoch {epoch} loss {loss.item():.6f} pixels {frames.sum():.6f} samples", *sample_id)
        return {"loss": loss}


class Trainer(transformers.Trainer):
    """A Trainer that reads clips."""

    def get_train_dataloader(self) -> Any:
        """Return a loader that splits the samples across ranks. The Trainer chooses its epochs."""
        return cc.ClipLoader(self.train_dataset, batch_size=4, num_threads=1, device=self.args.device)


def train(cache: str, checkpoint: str, num_epochs: int = 2, max_steps: int = -1) -> None:
    """Train until the last epoch, or until step ``max_steps``."""
    dataset = cc.ChordVideoDataset(
        cache, clip_sampler=cc.RandomClipSampler(num_frames=2, stride=1), size=(16, 16), clips_per_video=3
    )
    options = transformers.TrainingArguments(
        checkpoint,
        use_cpu=True,
        num_train_epochs=num_epochs,
        max_steps=max_steps,
        save_steps=1,
        save_total_limit=1,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        report_to=[],
        disable_tqdm=True,
    )
    last = get_last_checkpoint(checkpoint) if os.path.isdir(checkpoint) else None
    if last is not None and (num_ranks := len([*Path(last).glob("rng_state*.pth")])) != options.world_size:
        # The Trainer counts batches of each rank. It would leave out samples, and does not say so
        raise ValueError(f"{last}: got another number of ranks. Resume with {num_ranks} ranks.")
    Trainer(Model(), options, train_dataset=dataset).train(resume_from_checkpoint=last)


if __name__ == "__main__":
    train(*sys.argv[1:3])
