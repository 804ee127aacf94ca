"""Caches and videos in a notebook: pages of bounded size, every text of a file escaped, and short texts for people."""

from __future__ import annotations

import base64
import csv
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from helpers.html_pages import Page
from helpers.inline import HERE

import chordcache as cc
from chordcache.look import notebook
from chordcache.look.notebook import cache_html, video_html

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u202egpj\x1b[31m\u05e9\u05dc\u05d5\u05dd&amp;"
TAGS = {"div", "b", "bdi", "table", "tr", "th", "td", "figure", "figcaption", "img", "p", "br"}


def check(page: str) -> Page:
    assert len(page.encode()) <= notebook.MAX_BYTES
    parsed = Page(page)
    assert {tag for tag, _ in parsed.elements} <= TAGS
    assert {name for _, attributes in parsed.elements for name in attributes} <= {"style", "src", "alt"}
    assert not re.search("[\x00-\x1f\x7f\u202e]", page)
    return parsed


def pictures(page: Page) -> list[np.ndarray]:
    sources = [attributes["src"] for tag, attributes in page.elements if tag == "img"]
    assert all(source.startswith("data:image/webp;base64,") for source in sources)
    data = (np.frombuffer(base64.b64decode(source.partition(",")[2]), np.uint8) for source in sources)
    return [cv2.imdecode(image, cv2.IMREAD_COLOR) for image in data]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory, make_video) -> Path:
    """A cache whose names, labels, captions and columns are hostile or 100 kB long."""
    folder = tmp_path_factory.mktemp("hostile")
    name = HOSTILE.replace("/", "|") + ".mp4"
    make_video(folder / "videos" / name, num_frames=12, size=(320, 240), audio=True)
    make_video(folder / "videos" / "long.mp4", num_frames=12)
    rows = [
        {"path": name, "label": HOSTILE, "caption": HOSTILE, "<b>column</b>": HOSTILE},
        {"path": "long.mp4", "label": "x" * 5000, "caption": "y" * 100_000, "<b>column</b>": "z" * 100_000},
    ]
    with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    index = cc.scan([folder / "videos"], labels=folder / "labels.csv", jobs=HERE)
    assert cc.build(index, folder / "cache", tiers=["lmdb", "npz"], jobs=HERE).num_done == 2
    return folder / "cache"


def test_texts_of_files_are_shown_as_text(hostile):
    with cc.open_cache(hostile) as cache:
        pages = [check(cache_html(cache)), *(check(video_html(video)) for video in cache)]
        shown = next(page for page, video in zip(pages[1:], cache, strict=True) if video.label == HOSTILE)
    for page in (pages[0], shown):
        assert "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\\u202egpj\\x1b[31m" in page.text
    assert "extra <b>column</b>" in shown.text
    assert [len(pictures(page)) for page in pages] == [2, 1, 1]


def test_the_pictures_are_those_of_the_cache(hostile):
    with cc.open_cache(hostile) as cache:
        for video, poster in zip(cache, pictures(Page(cache_html(cache))), strict=True):
            frame = cache.read(video, "frames", indices=[video.num_frames // 2])[0]
            expected = cv2.resize(frame, (poster.shape[1], 96), interpolation=cv2.INTER_AREA)
            assert np.abs(expected.astype(int) - poster[..., ::-1]).mean() < 6
            (sheet,) = pictures(Page(video_html(video)))
            assert sheet.shape == cc.show(video).picture.shape


def test_long_texts_are_cut_and_say_so(hostile):
    with cc.open_cache(hostile) as cache:
        (video,) = (video for video in cache if video.path == "long.mp4")
        page = check(video_html(video))
    assert "(100,000 letters)" in page.text
    assert len(page.text) < 4000


def test_a_cache_of_many_labels_and_videos(tmp_path, make_video):
    for number in range(30):
        make_video(tmp_path / "videos" / f"{number:02}" / "a.mp4", num_frames=2, size=(32, 32))
    cc.build(cc.scan([tmp_path / "videos"], labels="dir", jobs=HERE), tmp_path / "cache", tiers=["lmdb"], jobs=HERE)
    with cc.open_cache(tmp_path / "cache") as cache:
        page = check(cache_html(cache))
    assert "... and 10 more" in page.text
    assert len(pictures(page)) == 8


def test_noise_stays_below_the_limit(tmp_path, make_video):
    def noise(number, width, height):
        rng = np.random.default_rng(number)
        return tuple(rng.integers(0, 255, (height // k, width // k), dtype=np.uint8) for k in (1, 2, 2))

    make_video(tmp_path / "videos" / "a.mp4", num_frames=12, size=(320, 320), planes=noise, options={"crf": "1"})
    cc.build(cc.scan([tmp_path / "videos"], jobs=HERE), tmp_path / "cache", tiers=["lmdb", "npz"], jobs=HERE)
    with cc.open_cache(tmp_path / "cache") as cache:
        check(cache_html(cache))
        assert len(pictures(check(video_html(cache[0])))) == 1


def test_damage_is_named_and_the_page_is_made(hostile, tmp_path):
    copy = Path(shutil.copytree(hostile, tmp_path / "cache"))
    for file in copy.glob("lmdb/*/*"):
        os.truncate(file, 100)
    with cc.open_cache(copy) as cache:
        assert "got 100 bytes" in check(cache_html(cache)).text
        assert "frames" in check(video_html(cache[0])).text
    shutil.copyfile(hostile / "chordcache.json", copy / "catalog.bin")
    assert "damaged" in check(cache_html(cache)).text


def test_without_opencv_the_facts_are_shown(hostile):
    code = (
        "import sys; sys.modules['cv2'] = None\nimport chordcache as cc\n"
        "from chordcache.look.notebook import cache_html, video_html\n"
        "cache = cc.open_cache(sys.argv[1]); print(cache_html(cache), video_html(cache[0]))"
    )
    result = subprocess.run([sys.executable, "-c", code, hostile], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("no OpenCV (cv2) is installed") == 3
    assert "<img" not in result.stdout


def test_ipython_displays_caches_and_videos(hostile):
    code = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\nimport chordcache as cc\n"
        "cache = cc.open_cache(sys.argv[1])\n"
        "for shown in cache, cache[0]: print(shell.display_formatter.format(shown)[0]['text/html'])\n"
        "assert 'text/html' not in shell.display_formatter.format(cache.path)[0]"
    )
    result = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}", hostile], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    with cc.open_cache(hostile) as cache:
        assert result.stdout == f"{cache_html(cache)}\n{video_html(cache[0])}\n"


def test_texts_for_people(hostile):
    torch = pytest.importorskip("torch")
    index = cc.scan([hostile.parent / "videos"], output=hostile.parent / "index.json", jobs=HERE)
    place = f"'{hostile.parent / 'index.json'}': 2 records, level packets, roots videos>"
    assert (repr(index), repr(cc.read_index(index.path))) == (f"<ScanResult {place}", f"<Index {place}")
    record = next(record for record in index if record.path == "long.mp4")
    assert repr(record) == "<VideoRecord root='videos', path='long.mp4', h264 64x48, 12 frames, 0.48 s>"
    with cc.open_cache(hostile) as cache:
        assert repr(cache) == f"<Cache '{hostile}': 2 videos>"
        dataset = cc.ChordVideoDataset(cache.path, clip_sampler=cc.RandomClipSampler(num_frames=4), size=(32, 32))
        loader = cc.ClipLoader(dataset, batch_size=2, num_threads=1, device=torch.device("cpu"))
        assert repr(loader) == f"<ClipLoader of {dataset!r}: 1 batch of 2 clips, 1 thread, epoch 0, device cpu>"
        assert len(repr(cache[0])) < 200
