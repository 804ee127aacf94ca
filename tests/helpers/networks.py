"""Small networks of real architectures with random weights, saved as their makers publish them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import diffusers
import torch

LATENT_CHANNELS = 4

VAES: dict[str, Any] = {
    "AutoencoderKL": {
        "block_out_channels": (8, 8, 8, 8),
        "down_block_types": ("DownEncoderBlock2D",) * 4,
        "up_block_types": ("UpDecoderBlock2D",) * 4,
        "layers_per_block": 1,
        "norm_num_groups": 4,
        "latent_channels": LATENT_CHANNELS,
        "scaling_factor": 0.13025,
    },
    "AutoencoderKLCogVideoX": {
        "block_out_channels": (8, 8, 8, 8),
        "layers_per_block": 1,
        "norm_num_groups": 4,
        "latent_channels": LATENT_CHANNELS,
        "temporal_compression_ratio": 4,
    },
    "AutoencoderKLWan": {
        "base_dim": 8,
        "z_dim": LATENT_CHANNELS,
        "dim_mult": [1, 1, 1, 1],
        "num_res_blocks": 1,
        "temperal_downsample": [False, True, True],
        "latents_mean": [0.1, 0.2, 0.3, 0.4],
        "latents_std": [1.0, 2.0, 3.0, 4.0],
    },
}
"""Class of a VAE to the settings of a small one"""

NEWER_VAES: dict[str, Any] = {
    "AutoencoderKLHunyuanVideo": {
        "block_out_channels": (8, 8, 8, 8),
        "layers_per_block": 1,
        "norm_num_groups": 4,
        "latent_channels": LATENT_CHANNELS,
    },
    "AutoencoderKLLTXVideo": {
        "block_out_channels": (8, 8, 8, 8),
        "decoder_block_out_channels": (8, 8, 8, 8),
        "latent_channels": 6,
        "layers_per_block": (1, 1, 1, 1, 1),
        "decoder_layers_per_block": (1, 1, 1, 1, 1),
    },
    "AutoencoderKLMochi": {
        "encoder_block_out_channels": (32, 32, 32, 32),
        "decoder_block_out_channels": (32, 32, 32, 32),
        "latent_channels": 12,
        "layers_per_block": (1, 1, 1, 1, 1),
    },
}
"""The same for VAEs with the compression of published ones, which take longer"""

COMPRESSION = {
    "AutoencoderKL": (1, 8),
    "AutoencoderKLCogVideoX": (4, 8),
    "AutoencoderKLWan": (4, 8),
    "AutoencoderKLHunyuanVideo": (4, 8),
    "AutoencoderKLLTXVideo": (8, 32),
    "AutoencoderKLMochi": (6, 8),
}
"""Class of a VAE to its compression of time and space"""

PIXELS = 8
"""Number of rows and columns of pixels that become one in the latents of each of them"""


def make_vae(kind: str, folder: Path, **settings: Any) -> Path:
    """Save a small VAE, and return its folder."""
    torch.manual_seed(0)
    vae = getattr(diffusers, kind)(**{**VAES, **NEWER_VAES}[kind], **settings)
    if kind == "AutoencoderKLLTXVideo":  # the weights of published models have values of their own
        vae.latents_mean.copy_(torch.linspace(-0.5, 0.5, 6))
        vae.latents_std.copy_(torch.linspace(0.5, 2, 6))
    vae.save_pretrained(folder)
    return folder


def load_vae(folder: Path) -> Any:
    """Return the VAE of a folder."""
    kind = diffusers.AutoModel.load_config(folder)["_class_name"]
    return getattr(diffusers, kind).from_pretrained(folder, low_cpu_mem_usage=False).eval()
