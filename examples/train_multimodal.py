"""Train on frames, flow, sound and captions at once, in one process or several, and go on after a kill.

    chordcache scan videos/ --labels labels.csv            # path,label,caption
    chordcache build --tier lmdb --tier npz
    torchrun --nproc-per-node 2 examples/train_multimodal.py cache tokenizer.json --checkpoint run.pt

Without torchrun it is one process. A run whose checkpoint is there goes on after the batch that it was saved at; the
number of processes may be another one then. Runs on the CPU, so that it runs anywhere.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from pathlib import Path

import tokenizers
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import chordcache as cc

NUM_FRAMES, STRIDE, SIZE = 8, 2, (112, 112)
INPUTS = ("frames", "flows", "audio", "caption_ids", "caption_mask")


def pooled_convolutions(num_channels: int, width: int) -> nn.Sequential:
    """(B, C, T, H, W) to (B, width)."""
    return nn.Sequential(
        nn.Conv3d(num_channels, 16, kernel_size=(1, 5, 5), stride=(1, 4, 4), padding=(0, 2, 2)),
        nn.ReLU(),
        nn.Conv3d(16, width, kernel_size=3, stride=(1, 2, 2), padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
    )


class MultimodalNet(nn.Module):
    """A small encoder for each input; a linear layer takes what they make, side by side."""

    def __init__(self, num_tokens: int, num_classes: int, width: int = 32) -> None:
        super().__init__()
        self.frames = pooled_convolutions(3, width)
        self.flows = pooled_convolutions(2, width)
        self.audio = pooled_convolutions(1, width)
        self.words = nn.Embedding(num_tokens, width)
        self.scores = nn.Linear(4 * width, num_classes)

    def forward(
        self,
        frames: torch.Tensor,
        flows: torch.Tensor,
        audio: torch.Tensor,
        caption_ids: torch.Tensor,
        caption_mask: torch.Tensor,
    ) -> torch.Tensor:
        """Turn a batch, as ``cc.collate`` makes it, into scores (B, num_classes)."""
        words = self.words(caption_ids) * caption_mask.unsqueeze(-1)
        inputs = [
            self.frames(frames.transpose(1, 2).float() / 127.5 - 1),
            self.flows(flows.transpose(1, 2) / 10),  # mostly within 10 pixels
            self.audio(audio[:, None, None] / 100 + 1),  # -100 dB, which is silence and padding, becomes 0
            words.sum(1) / caption_mask.sum(1, keepdim=True).clamp(min=1),
        ]
        return self.scores(torch.cat(inputs, dim=1))


def make_loader(args: argparse.Namespace) -> tuple[cc.ClipLoader, int]:
    """Open the cache; also say how many classes there are."""
    cache = cc.open_cache(args.cache)
    dataset = cc.ChordVideoDataset(
        cache,
        clip_sampler=cc.RandomClipSampler(num_frames=NUM_FRAMES, stride=STRIDE),
        features=("frames", "flow", "mel"),
        crop=cc.crops.HorizontalFlip(0.5, cc.crops.RandomResizedCrop(SIZE, scale=(0.5, 1.0))),
        missing="zeros",  # a silent video, or one of a single frame
        videos=lambda video: video.label is not None,
        seed=args.seed,
    )
    loader = cc.ClipLoader(
        dataset,
        args.batch_size,
        sampler=cc.ChordSampler(dataset, seed=args.seed, batch_size=args.batch_size),  # asks torch for the ranks
        num_threads=args.threads,
        collate=functools.partial(cc.collate, tokenizer=cc.CaptionTokenizer(args.tokenizer)),
    )
    return loader, len(dataset.classes)


class Run:
    """The content of a checkpoint: the model, its optimizer, and where in which epoch the loader is."""

    def __init__(self, args: argparse.Namespace, rank: int) -> None:
        self.rank, self.checkpoint = rank, args.checkpoint
        self.loader, num_classes = make_loader(args)
        num_tokens = tokenizers.Tokenizer.from_file(args.tokenizer).get_vocab_size()
        self.net = MultimodalNet(num_tokens, num_classes)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)

    def load(self) -> None:
        """Go on where the checkpoint is, if there is one."""
        if self.checkpoint is not None and self.checkpoint.exists():
            state = torch.load(self.checkpoint, weights_only=True)
            self.net.load_state_dict(state["net"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.loader.load_state_dict(state["loader"])

    def save(self) -> None:
        """Write the checkpoint, whole or not at all. The loader's state is the same on every rank: one writes it."""
        if self.checkpoint is None:
            return
        if distributed.is_initialized():
            distributed.barrier()  # what the state calls consumed, all ranks have consumed
        if self.rank != 0:
            return
        state = {
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "loader": self.loader.state_dict(),
        }
        partial = self.checkpoint.with_name(f"{self.checkpoint.name}.partial")
        torch.save(state, partial)
        os.replace(partial, self.checkpoint)

    def train(self, num_epochs: int, save_every: int) -> None:
        """Run the epochs that are left. Each rank prints what it learned from."""
        # It waits for all ranks, so that none writes a checkpoint that another has yet to read
        model = DistributedDataParallel(self.net) if distributed.is_initialized() else self.net
        num_batches = 0
        for epoch in range(self.loader.epoch, num_epochs):
            self.loader.set_epoch(epoch)
            for batch in self.loader:
                loss = nn.functional.cross_entropy(model(*(batch[name] for name in INPUTS)), batch["label"])
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                videos = " ".join(batch["video"])
                print(f"epoch {epoch} rank {self.rank} loss {loss.item():.3f} videos {videos}", flush=True)
                num_batches += 1
                if num_batches % save_every == 0:
                    self.save()
        self.save()


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", help="a folder that 'chordcache build' made, with labels, flow and mel")
    parser.add_argument("tokenizer", help="a tokenizer.json of Hugging Face's tokenizers")
    parser.add_argument("--checkpoint", type=Path, help="where the run is kept, and goes on from")
    parser.add_argument("--save-every", type=int, default=10, metavar="BATCHES")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=4, help="of each process")
    parser.add_argument("--threads", type=int, default=2, help="of each process, to read")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if min(args.save_every, args.epochs) < 1:
        parser.error("--save-every and --epochs must be at least 1")
    return args


def main() -> None:
    """Parse the command line and train."""
    args = parse_arguments()
    is_distributed = "RANK" in os.environ  # which torchrun sets
    if is_distributed:
        distributed.init_process_group("gloo")
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    try:
        run = Run(args, distributed.get_rank() if is_distributed else 0)
        run.load()
    except cc.ChordcacheError as error:
        print(f"train_multimodal: error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    run.train(args.epochs, args.save_every)
    if is_distributed:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
