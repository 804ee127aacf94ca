"""Make a VAE and a text encoder with random weights, to try latents and text without a download.

    python scripts/make_random_models.py DEST

DEST/vae is an AutoencoderKLWan, DEST/text_encoder a T5 encoder with the tokenizer of ByT5, whose tokens are bytes. They
have the architectures of published models, but nothing was trained: their latents and embeddings mean nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import diffusers
import torch
import transformers


def main() -> None:
    """Parse the command line and save both models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("destination", type=Path, metavar="DEST")
    parser.add_argument(
        "--vae-width",
        type=int,
        default=8,
        help="channels of the first layer of the VAE; 96 are those of Wan 2.1, so that the time to encode is its time",
    )
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    diffusers.AutoencoderKLWan(base_dim=args.vae_width).save_pretrained(args.destination / "vae")
    tokenizer = transformers.ByT5Tokenizer(model_max_length=128)
    config = transformers.T5Config(vocab_size=len(tokenizer), d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4)
    transformers.T5EncoderModel(config).save_pretrained(args.destination / "text_encoder")
    tokenizer.save_pretrained(args.destination / "text_encoder")
    print(f"{args.destination} has vae and text_encoder, with random weights: they were not trained")


if __name__ == "__main__":
    main()
