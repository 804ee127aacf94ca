"""Train a tiny diffusion transformer (DiT) on cached latents and text embeddings, and continue after a kill.

    chordcache build captions.csv -c latents.yaml --features frames,latents,text
    python examples/train_dit.py cache --checkpoint dit.pt            # two epochs
    python examples/train_dit.py cache --checkpoint dit.pt --resume   # continues after kill -9
    python examples/train_dit.py cache --compare models/vae           # measures what encoding on the fly would cost

The config has frames.buckets with sides of multiples of 16, and a VAE that compresses time, see docs/latents.md. Only
--compare reads frames. scripts/make_random_models.py makes models to try this without a download. It runs on a GPU, or
else on one thread. There, a run that was killed has the losses of one that was not, bit for bit.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import chordcache as cc
from chordcache.train.samplers.budget_batches import BudgetBatchSampler
from chordcache.train.samplers.content_samplers import LatentClipSampler

NUM_COMPARED = 5
"""Steps of each kind that --compare measures. One more before them warms up"""


def sinusoids(values: torch.Tensor, width: int) -> torch.Tensor:
    """(...) to (..., width): sines and cosines of each value."""
    frequencies = torch.exp(torch.arange(width // 2, device=values.device) * (-2 * math.log(10_000) / width))
    angles = values[..., None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class TinyDiT(nn.Module):
    """A diffusion transformer. Its tokens are 1 x 2 x 2 latents that attend to each other and to the text."""

    def __init__(self, num_channels: int, text_width: int, width: int = 96, depth: int = 4, num_heads: int = 4) -> None:
        super().__init__()
        self.width = width
        self.patches = nn.Linear(4 * num_channels, width)
        self.moment = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.text = nn.Linear(text_width, width)
        self.blocks = nn.ModuleList(
            nn.TransformerDecoderLayer(width, num_heads, 4 * width, dropout=0, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.velocity = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * num_channels))

    def forward(
        self, noisy: torch.Tensor, moment: torch.Tensor, text: torch.Tensor, text_mask: torch.Tensor
    ) -> torch.Tensor:
        """Return the velocity (B, t, C, h, w) of noisy latents, for moments (B,) of 0 to 1 and texts (B, L, D)."""
        batch, t, channels, h, w = noisy.shape
        patches = noisy.reshape(batch, t, channels, h // 2, 2, w // 2, 2).permute(0, 1, 3, 5, 2, 4, 6)
        places = torch.cartesian_prod(*(torch.arange(n, device=noisy.device) for n in (t, h // 2, w // 2)))
        tokens = self.patches(patches.flatten(4).flatten(1, 3)) + sinusoids(places, self.width // 3).flatten(1)
        tokens = tokens + self.moment(sinusoids(1000 * moment, self.width))[:, None]
        text = self.text(text)
        for block in self.blocks:
            tokens = block(tokens, text, memory_key_padding_mask=~text_mask)
        patches = self.velocity(tokens).reshape(batch, t, h // 2, w // 2, channels, 2, 2)
        return patches.permute(0, 1, 4, 2, 5, 3, 6).reshape(noisy.shape)


def mean_and_std(normalization: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the generator of a VAE normalizes latents by, as numbers or with the shape (C, 1, 1)."""
    if "latents_mean" in normalization:
        mean, std = normalization["latents_mean"], normalization["latents_std"]
        return torch.tensor(mean).reshape(-1, 1, 1), torch.tensor(std).reshape(-1, 1, 1)
    return torch.tensor(normalization.get("shift_factor", 0.0)), 1 / torch.tensor(normalization["scaling_factor"])


class Run:
    """The content of a checkpoint: the model, its optimizer, the random numbers of the noise, the loader's place."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        with cc.open_cache(args.cache) as cache:
            video = next(iter(cache))
            if video.bucket is None:
                raise cc.UsageError(f"cache: got {args.cache}, expected one with frames.buckets. Build such a cache.")
            params = video.feature("latents").params
            num_channels = cache.read(video, "latents", 0, 1).shape[1]
            text_width = cache.read(video, "text").shape[1]
        self.clip_frames = params["clip_frames"]
        self.mean, self.std = (statistic.to(self.device) for statistic in mean_and_std(params["normalization"]))
        self.loader = self.make_loader("latents", "text")
        torch.manual_seed(args.seed)
        self.net = TinyDiT(num_channels, text_width).to(self.device)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        self.random = torch.Generator().manual_seed(args.seed)
        self.num_steps = 0

    def make_loader(self, *features: str, prefetch: int = 2) -> cc.ClipLoader:
        """Load clips as the VAE encoded them. All clips of a batch are of one bucket, so that none is padded."""
        dataset = cc.ChordVideoDataset(
            self.args.cache,
            clip_sampler=LatentClipSampler(),
            features=features,
            size=None,
            clips_per_video=self.args.clips_per_video,
            seed=self.args.seed,
        )
        batches = BudgetBatchSampler(
            dataset,
            cc.ChordSampler(dataset, seed=self.args.seed),
            max_frames=self.args.batch_size * self.clip_frames,
        )
        return cc.ClipLoader(dataset, None, sampler=batches, device=self.device, num_threads=2, prefetch=prefetch)

    def load(self) -> None:
        """Continue where the checkpoint is."""
        state = torch.load(self.args.checkpoint, weights_only=True, map_location="cpu")
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.loader.load_state_dict(state["loader"])
        self.random.set_state(state["random"])
        self.num_steps = state["num_steps"]

    def save(self) -> None:
        """Write the checkpoint, whole or not at all."""
        state = {
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "loader": self.loader.state_dict(),
            "random": self.random.get_state(),
            "num_steps": self.num_steps,
        }
        partial = self.args.checkpoint.with_name(f"{self.args.checkpoint.name}.partial")
        torch.save(state, partial)
        os.replace(partial, self.args.checkpoint)

    def step(self, latents: torch.Tensor, batch: dict[str, Any]) -> float:
        """Learn from a batch, and return the loss of a rectified flow: a straight line from latents to noise."""
        latents = (latents.float() - self.mean) / self.std
        noise = torch.randn(latents.shape, generator=self.random).to(self.device)
        moment = torch.rand(len(latents), generator=self.random).to(self.device)
        noisy = torch.lerp(latents, noise, moment.reshape(-1, 1, 1, 1, 1))
        velocity = self.net(noisy, moment, batch["text"].float(), batch["text_mask"])
        loss = nn.functional.mse_loss(velocity, noise - latents)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.num_steps += 1
        return loss.item()

    def train(self) -> None:
        """Run the epochs that are left."""
        for epoch in range(self.loader.epoch, self.args.epochs):
            self.loader.set_epoch(epoch)
            for batch in self.loader:
                loss = self.step(batch["latents"], batch)
                print(f"epoch {epoch} step {self.num_steps} loss {loss:.9g}", flush=True)  # all digits of a float32
                if self.args.checkpoint and self.num_steps % self.args.save_every == 0:
                    self.save()
        if self.args.checkpoint:
            self.save()

    def compare(self) -> None:
        """Measure steps with cached latents, and in turn steps that encode the same clips. Print the medians.

        Each step reads its clips when it begins. Both read the embeddings of the captions from the cache.
        """
        import diffusers  # takes seconds, and training does not need it

        vae = diffusers.AutoModel.from_pretrained(self.args.compare, low_cpu_mem_usage=False).to(self.device).eval()
        with_latents = endless(self.make_loader("latents", "text", prefetch=0))
        with_frames = endless(self.make_loader("frames", "text", prefetch=0))
        of_cached, of_encoded, differences = [], [], []
        for _ in range(1 + NUM_COMPARED):
            start = time.perf_counter()
            batch = next(with_latents)
            cached = batch["latents"]
            self.step(cached, batch)
            middle = time.perf_counter()
            batch = next(with_frames)
            with torch.no_grad():
                pixels = batch["frames"].transpose(1, 2).float() / 127.5 - 1
                encoded = vae.encode(pixels.contiguous()).latent_dist.mode().transpose(1, 2)
            self.step(encoded, batch)
            of_encoded.append(1000 * (time.perf_counter() - middle))
            of_cached.append(1000 * (middle - start))
            differences.append((encoded - cached).abs().max().item())
        milliseconds = [statistics.median(times[1:]) for times in (of_cached, of_encoded)]
        print(f"with cached latents {milliseconds[0]:.0f} ms a step, encoding on the fly {milliseconds[1]:.0f} ms")
        print(
            f"ratio {milliseconds[1] / milliseconds[0]:.1f}; medians of {NUM_COMPARED} interleaved steps on "
            f"{self.device}; the latents differ by at most {max(differences):.2g}"
        )


def endless(loader: cc.ClipLoader) -> Iterator[dict[str, Any]]:
    """Yield the batches of one epoch after another."""
    while True:
        yield from loader


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", help="a folder that 'chordcache build' made, with latents and text")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=4, help="clips of the length that the VAE encoded")
    parser.add_argument("--clips-per-video", type=int, default=1, help="in each epoch")
    parser.add_argument("--checkpoint", type=Path, help="the file in which the run is kept")
    parser.add_argument("--save-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compare", metavar="VAE", help="the folder of the VAE: measure steps instead of training")
    args = parser.parse_args()
    if min(args.epochs, args.batch_size, args.save_every) < 1:
        parser.error("--epochs, --batch-size and --save-every must be at least 1")
    if args.resume and not (args.checkpoint and args.checkpoint.exists()):
        parser.error(f"--resume: got no checkpoint {args.checkpoint or ''}; run without --resume to begin one")
    if args.checkpoint and args.checkpoint.exists() and not args.resume:
        parser.error(f"--checkpoint: {args.checkpoint} exists; add --resume to continue it, or remove it")
    return args


def main() -> None:
    """Parse the command line, then train or compare."""
    args = parse_arguments()
    torch.set_num_threads(1)  # more do not help so small a model, and the last digits may depend on their number
    try:
        run = Run(args)
        if args.resume:
            run.load()
        run.compare() if args.compare else run.train()
    except cc.ChordcacheError as error:
        print(f"train_dit: error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None


if __name__ == "__main__":
    main()
