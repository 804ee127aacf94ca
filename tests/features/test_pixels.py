"""The pixels of image networks: to the last bit those of the image processor of the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import chordcache as cc
from chordcache.features.networks.pixels import Preprocessing, preprocessing_of

CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
ON = {"do_normalize": True, "do_rescale": True, "do_resize": True, "rescale_factor": 0.00392156862745098}

PROCESSORS: dict[str, dict[str, Any]] = {
    "the first CLIP": {
        "crop_size": 48, "do_center_crop": True, "do_normalize": True, "do_resize": True, "resample": 3, "size": 48,
        "feature_extractor_type": "CLIPFeatureExtractor", **CLIP,
    },
    "a later CLIP": {
        "crop_size": {"height": 40, "width": 44}, "do_center_crop": True, "do_convert_rgb": True, "resample": 3,
        "image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 50}, **ON, **CLIP,
    },
    "SigLIP": {
        "image_processor_type": "SiglipImageProcessor", "processor_class": "SiglipProcessor", "resample": 3,
        "size": {"height": 32, "width": 48}, **ON, **HALF,
    },
    "SigLIP 2": {
        "do_convert_rgb": None, "image_processor_type": "SiglipImageProcessor", "resample": 2,
        "size": {"height": 56, "width": 56}, **ON, **HALF,
    },
    "DINOv2": {
        "crop_size": {"height": 28, "width": 28}, "do_center_crop": True, "do_convert_rgb": True, "resample": 3,
        "image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 37}, **ON,
        "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225],
    },
    "of torchvision, with what it also saves": {
        "crop_size": {"height": 32, "width": 32}, "data_format": "channels_first", "default_to_square": False,
        "device": None, "disable_grouping": None, "do_center_crop": True, "do_pad": None, "pad_size": None,
        "image_processor_type": "CLIPImageProcessorFast", "input_data_format": None, "return_tensors": None,
        "resample": 3, "size": {"shortest_edge": 32}, **ON, **CLIP,
    },
    "larger than the picture": {
        "crop_size": {"height": 47, "width": 90}, "image_processor_type": "CLIPImageProcessor", "resample": 1,
        "size": {"shortest_edge": 31}, **ON, **CLIP,
    },
    "without scaling": {
        "crop_size": 16, "do_resize": False, "image_processor_type": "BitImageProcessor", "do_normalize": True, **CLIP,
    },
    "without normalizing": {
        "do_normalize": False, "do_rescale": True, "image_processor_type": "SiglipImageProcessor", "resample": 0,
        "size": {"height": 20, "width": 30},
    },
    "without rescaling": {
        "do_rescale": False, "image_processor_type": "SiglipImageProcessor", "resample": 4,
        "size": {"height": 20, "width": 30}, "image_mean": [127.5, 120, 110], "image_std": [60, 70, 80.5],
    },
}  # fmt: skip


def parsed(folder: Path, settings: Any, file: str = "preprocessor_config.json") -> Preprocessing:
    (folder / file).write_text(json.dumps(settings))
    return preprocessing_of("features.embed.model", str(folder))


@pytest.mark.parametrize("name", PROCESSORS)
def test_pixels_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    steps = parsed(tmp_path, PROCESSORS[name])
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    random = np.random.default_rng(0)
    for height, width in ((48, 64), (64, 48), (33, 35), (20, 91), (256, 456)):
        picture = random.integers(0, 256, (height, width, 3), np.uint8)
        expected = processor(picture, return_tensors="np", input_data_format="channels_last")["pixel_values"]
        cut = steps.crop(picture)
        assert cut.dtype == np.uint8
        pixels = steps.normalize(torch.from_numpy(np.stack([cut])))
        assert pixels.dtype == torch.float32
        assert np.array_equal(pixels.numpy(), expected)


def test_settings_in_the_file_of_the_whole_processor_come_first(tmp_path: Path) -> None:
    """As transformers 5 saves them, beside a file of an earlier version."""
    together = {"image_processor": PROCESSORS["SigLIP 2"], "processor_class": "SiglipProcessor"}
    parsed(tmp_path, together, "processor_config.json")
    assert parsed(tmp_path, PROCESSORS["SigLIP"]).size == (56, 56)
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    assert (processor.size.height, processor.size.width) == (56, 56)
    parsed(tmp_path, {"processor_class": "SiglipProcessor"}, "processor_config.json")
    assert parsed(tmp_path, PROCESSORS["SigLIP"]).size == (32, 48)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"do_pad": True}, r"got do_pad: True, which is not supported, expected only the settings of Bit"),
        ({"rotate": 90}, r"got rotate: 90, which is not supported"),
        ({"default_to_square": True}, r"got default_to_square: True, which"),
        ({"image_processor_type": "ViTImageProcessor"}, r"got 'ViTImageProcessor', expected one of: BitImage"),
        ({"image_processor_type": None}, r"got 'None', expected one of: BitImage"),
        ({"do_center_crop": False}, r"got pixels whose size depends on the video, expected do_center_crop: true"),
        ({"do_center_crop": "no"}, r"do_center_crop: got 'no', expected one of True, False"),
        ({"crop_size": None}, r"crop_size: got None, expected a number from 1 to 4096"),
        ({"crop_size": {"shortest_edge": 32}}, r"crop_size: got {'shortest_edge': 32}, expected height and width"),
        ({"size": {"longest_edge": 9}}, r"size: got {'longest_edge': 9}, expected height and width"),
        ({"size": {"shortest_edge": 10**6}}, r"size: got 1000000, expected a number from 1 to 4096"),
        ({"size": None}, r"size: got None, expected a number"),
        ({"resample": None}, r"resample: got None, expected a number from 0 to 5"),
        ({"image_mean": None}, r"image_mean: got None, expected three numbers"),
        ({"image_mean": [0.5, float("nan"), 0.5]}, r"image_mean: got nan, expected a number"),
        ({"image_std": [0.5, 0, 0.5]}, r"image_std: got 0, expected a number"),
        ({"rescale_factor": "1/255"}, r"rescale_factor: got '1/255', expected a number"),
    ],
)  # fmt: skip
def test_settings_that_are_not_known_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(cc.UsageError, match=f"^features.embed.model: image processor of '{tmp_path}': {message}"):
        parsed(tmp_path, {**PROCESSORS["DINOv2"], **change})


@pytest.mark.parametrize("content", ["", "[1]", "{", None])
def test_a_file_that_is_not_a_processor(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "preprocessor_config.json").write_text(content)
    with pytest.raises(
        cc.UsageError, match=rf"^features.embed.model: got '{tmp_path}', expected .*preprocessor_config.json"
    ):
        preprocessing_of("features.embed.model", str(tmp_path))
