"""Train with Lightning and make_loader, and resume after the batch of the last checkpoint.

python examples/with_lightning.py cache run
"""

from __future__ import annotations

import os
import sys
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

import chordcache as cc


class Model(lightning.LightningModule):
    """A tiny model of the mean color of clips."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 1)

    def training_step(self, batch: dict[str, Any], _: int) -> torch.Tensor:
        """Return the loss of a batch."""
        frames = batch["frames"].float() / 255
        loss: torch.Tensor = self.net(frames.mean((1, 3, 4))).square().mean()
        epoch = self.current_epoch
        print(f"epoch {epoch} loss {loss.item():.6f} pixels {frames.sum():.6f} samples", *batch["sample_id"])
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=1e-3)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store the number of ranks."""
        checkpoint["num_ranks"] = self.trainer.world_size

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse another number of ranks: Lightning counts batches of each rank, and would leave out samples."""
        if checkpoint["num_ranks"] != self.trainer.world_size:
            raise ValueError(f"got another number of ranks. Resume with {checkpoint['num_ranks']} ranks.")


def train(cache: str, checkpoint: str, num_epochs: int = 2, max_steps: int = -1, devices: int = 2) -> None:
    """Train until the last epoch, or until step ``max_steps``."""
    dataset = cc.ChordVideoDataset(
        cache, clip_sampler=cc.RandomClipSampler(num_frames=2, stride=1), size=(16, 16), clips_per_video=3
    )
    loader = cc.make_loader(dataset, batch_size=4, num_workers=1)  # Lightning stores its state, and chooses its epochs
    last = f"{checkpoint}/last.ckpt"
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy="ddp",
        max_epochs=num_epochs,
        max_steps=max_steps,
        callbacks=[ModelCheckpoint(checkpoint, "last", every_n_train_steps=1, enable_version_counter=False)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), loader, ckpt_path=last if os.path.exists(last) else None)


if __name__ == "__main__":
    train(*sys.argv[1:3])
