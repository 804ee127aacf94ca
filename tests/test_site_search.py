"""Words that people type into the search of the site lead to the right page. The search runs in a browser."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect, sync_playwright

DOCS = Path(__file__).resolve().parent.parent / "docs"

SEARCHES = {
    "first-hour": ["install", "quickstart", "tutorial", "getting started"],
    "which-videos": ["train test split", "split file", "on_miss", "videos not cached", "missing sound", "hmdb51"],
    "when": ["webdataset or litdata", "disk size", "how many gb", "is it worth it", "lance", "kinetics budget"],
    "examples": ["train_multimodal", "with_ddp"],
    "training": ["batch", "dataset", "train and validate"],
    "sampling": ["augmentation", "crop", "tsn", "fps", "mixup", "random clip", "resize"],
    "annotations": ["label", "bbox", "caption", "boxes", "tokenizer"],
    "mixing": ["class imbalance", "weighted sampling", "variable length", "concat"],
    "loaders": ["workers", "shm", "num_workers", "pin memory", "shuffle"],
    "ranks": ["multiple gpus", "resume", "resume training", "checkpoint", "ddp"],
    "frameworks": ["lightning", "accelerate", "fabric"],
    "training-config": ["training in one file", "from_config"],
    "sources": ["webcam", "rtsp", "read a single frame"],
    "waiting": ["slow", "gpu utilization", "profile", "bench_loader"],
    "clusters": ["slurm", "multiple machines", "ray", "dask"],
    "export": ["huggingface datasets", "convert to webdataset"],
    "object_stores": ["s3", "gcs", "credentials"],
    "coming-from": ["decord", "torchcodec", "pixels differ", "lerobot"],
    "lists": ["csv", "parquet", "segments", "tar", "ucf101"],
    "recipes/README": ["kinetics", "something-something"],
    "troubleshooting": ["out of memory", "oom", "__main__", "hang", "error message", "faq", "move", "upgrade"],
    "damaged-files": ["corrupt", "broken video"],
    "features": ["optical flow", "audio", "mel spectrogram"],
    "codecs": ["h264", "jpeg quality"],
    "command_line": ["delete", "exit code", "quarantine", "remove a video"],
}
"""Page to what is typed. The page is among the first three results"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A page of a browser, beside the site."""
    program = shutil.which("chromium-headless-shell")
    if program is None:
        pytest.skip("chromium-headless-shell is not installed")
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", "-d", site / "doctrees", DOCS, site / "html"]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONWARNINGS": "default"}, timeout=250)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        opened = browser.new_page()
        opened.goto((site / "html" / "search.html").as_uri())
        yield opened
        browser.close()


@pytest.mark.parametrize(("name", "words"), [(name, words) for name in SEARCHES for words in SEARCHES[name]])
def test_a_search_leads_to_its_page(page: Page, name: str, words: str) -> None:
    page.goto(page.url.partition("?")[0] + "?q=" + quote(words))
    expect(page.locator("#search-results h2")).to_have_text("Search Results")
    links = page.locator("#search-results ul.search li > a:first-of-type").evaluate_all(
        "links => links.map(link => link.getAttribute('href').split(/[?#]/)[0].replace('.html', ''))"
    )
    assert name in list(dict.fromkeys(links))[:3], links[:8]


def test_there_are_eighty_searches() -> None:
    assert sum(map(len, SEARCHES.values())) >= 80
