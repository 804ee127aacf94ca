"""Draw the pictures of the README and of the gallery from Big Buck Bunny, a clip of ``make demo``.

The report page is photographed in chromium-headless-shell.

    python scripts/draw_pictures.py .clips docs/images
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2
import numpy as np
from playwright.sync_api import sync_playwright

import chordcache as cc
from chordcache.config.config import config_from_json
from chordcache.look.pictures import flow_colors, flow_scale, mel_colors

FEATURES = ("frames", "flow", "mel")
SETTINGS = {"features": {"flow": {"method": "dis", "preset": "ultrafast", "dtype": "int8"}}}
"""Flow as in ``configs/flow.yaml``"""

SEGMENTS = """path,start_seconds,end_seconds,label
bigbuckbunny.mp4,0,0.6,wakes
bigbuckbunny.mp4,0.6,1.0,wakes
bigbuckbunny.mp4,1.0,1.5,stretches
bigbuckbunny.mp4,1.5,2.4,stretches
bigbuckbunny.mp4,2.4,2.9,stretches
bigbuckbunny.mp4,2.9,3.6,looks
bigbuckbunny.mp4,3.6,4.0,looks
bigbuckbunny.mp4,4.0,4.5,walks
bigbuckbunny.mp4,4.5,5.0,walks
bigbuckbunny.mp4,5.0,5.2,walks
"""


def build(listed: Path, cache: Path) -> None:
    """Build the features that the pictures show of a list or a folder."""
    index = cc.scan([listed], output=cache.with_suffix(".json"), level="content") if listed.is_dir() else listed
    cc.build(index, cache, features=FEATURES, config=config_from_json(SETTINGS))


def draw_batch(cache: Path) -> np.ndarray:
    """Return a batch of random clips as a picture: a clip in each row."""
    dataset = cc.ChordVideoDataset(
        cache,
        clip_sampler=cc.RandomClipSampler(num_frames=8, stride=3),
        crop=cc.crops.HorizontalFlip(0.5, cc.crops.RandomResizedCrop((128, 128), scale=(0.3, 1.0))),
        clips_per_video=3,
    )
    (batch,) = cc.ClipLoader(dataset, batch_size=3)
    frames = np.pad(batch["frames"].numpy(), [(0, 0), (0, 0), (0, 0), (0, 4), (0, 4)], constant_values=255)
    num_clips, num_frames, _, height, width = frames.shape
    return frames.transpose(0, 3, 1, 4, 2).reshape(num_clips * height, num_frames * width, 3)


def draw_flow_and_mel(cache: Path) -> np.ndarray:
    """Return frames, the flow from each to the next frame, and the mel spectrogram of the whole clip as a picture."""
    with cc.open_cache(cache) as opened:
        video = opened[0]
        numbers = np.linspace(0, video.num_frames - 2, 4).astype(int)
        frames = opened.read(video, "frames", indices=numbers)
        flow = opened.read(video, "flow", indices=numbers)
        mel = opened.read(video, "mel")
    colors = [flow_colors(picture, flow_scale(flow)) for picture in flow]
    rows = [np.hstack(list(frames)), np.hstack(colors)]
    sound = mel_colors(mel.T, rows[0].shape[1], 160)
    picture = np.vstack([*rows, sound])
    return cv2.resize(picture, None, fx=0.6, fy=0.6, interpolation=cv2.INTER_AREA)


def photograph_report(cache: Path, page: Path) -> np.ndarray:
    """Return the top of the report page as a browser shows it."""
    program = shutil.which("chromium-headless-shell")
    if program is None:
        sys.exit("draw_pictures: install chromium-headless-shell")
    cc.report(cache, page)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1200, "height": 1240})
        opened.goto(page.as_uri())
        opened.wait_for_selector(".tile .cell")
        data = np.frombuffer(opened.screenshot(), np.uint8)
        browser.close()
    return cv2.cvtColor(cv2.imdecode(data, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)


def main(clips: str, output: str) -> None:
    """Build the caches, and write the pictures."""
    with TemporaryDirectory() as name:
        folder = Path(name, "bunny")
        listed = folder / "clips" / "segments.csv"
        shutil.copytree(Path(clips, "animation"), listed.parent)
        build(listed.parent, folder / "whole")
        listed.write_text(SEGMENTS)
        build(listed, folder / "cache")
        with cc.open_cache(folder / "whole") as opened:
            sheet = cc.show(opened[0], num_frames=9).picture
        drawn = {
            "sheet": sheet,
            "batch": draw_batch(folder / "whole"),
            "flow-and-mel": draw_flow_and_mel(folder / "whole"),
            "report": photograph_report(folder / "cache", folder / "report.html"),
        }
    for name, picture in drawn.items():
        path = str(Path(output, f"{name}.webp"))
        cv2.imwrite(path, cv2.cvtColor(picture, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_WEBP_QUALITY, 85])


if __name__ == "__main__":
    main(*sys.argv[1:])
