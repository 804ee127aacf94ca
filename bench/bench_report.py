"""The page of ``chordcache report``: size, CPU time, memory, and the browser's time, of caches of many videos.

    python bench/bench_report.py .clips --videos 1000 10000

The clips are cut into short parts with frames, flow, motion and mel, and hard links make many videos of them. The
browser is Debian's chromium-headless-shell, driven by Playwright. Its part is left out if one of them is missing.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import chordcache as cc
from chordcache.config.config import config_from_json
from chordcache.index.index_files import IndexWriter
from chordcache.storage import layout
from chordcache.storage.find_sidecars import write_catalog

STEP_SECONDS, PART_SECONDS = 0.4, 1.6

GENERATE = """
import json, resource, sys, time
import chordcache as cc
started = time.process_time()
result = cc.report(sys.argv[1], sys.argv[2])
cpu = time.process_time() - started
print(json.dumps([result.num_bytes, result.num_shown, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""
"""Bytes, number of tiles, CPU time [s], largest memory [MiB]"""

BROWSER = """
() => {
  const times = [];
  for (const text of ["c", "ca", "car", "car 1", "", "bunny"]) {
    const input = document.getElementById("search"), before = performance.now();
    input.value = text;
    input.dispatchEvent(new Event("input"));
    document.body.offsetHeight;  // with the layout
    times.push(performance.now() - before);
  }
  return Math.max(...times);
}
"""
"""The longest time of a keystroke in the search, with the layout of the tiles [ms]"""


def short_parts(clips: Path, folder: Path) -> Path:
    """Build a cache of overlapping parts of clips, with every feature that needs no extra package."""
    rows = []
    shutil.copytree(clips, folder / "clips")  # paths of a list lie below it
    for record in cc.scan([clips], labels="dir"):
        assert record.packets is not None
        start = 0.0
        while start + PART_SECONDS <= record.packets.duration_seconds:
            caption = f"part of {record.path} from {start:.1f} s, which is one of the clips"
            rows.append([f"clips/{record.path}", record.label, caption, start, start + PART_SECONDS])
            start += STEP_SECONDS
    with open(folder / "parts.csv", "w", newline="") as file:
        csv.writer(file).writerows([["path", "label", "caption", "start_seconds", "end_seconds"], *rows])
    config = config_from_json({"features": {"flow": {"method": "dis", "preset": "ultrafast"}}})
    cc.build(folder / "parts.csv", folder / "parts", tiers=["lmdb", "npz"], config=config, jobs=1)
    return folder / "parts"


def replicate(source: Path, cache: Path, num_videos: int) -> None:
    """Make a cache of many videos with the artefacts of few, by hard links."""
    cache.mkdir()
    shutil.copy(source / "chordcache.json", cache)
    with cc.open_cache(source) as opened:
        sidecars = [video.sidecar for video in opened]
    index = cc.read_index(source / "index.jsonl")
    records = {layout.key_of(record): record for record in index}
    with IndexWriter(cache / "index.jsonl", roots=index.roots, level=index.level) as writer:
        for number in range(num_videos):
            sidecar = sidecars[number % len(sidecars)]
            folder, name = os.path.split(sidecar.path)
            path = f"{folder}/{number // 1000:03d}/{number:06d}-{name}"
            key = layout.video_key(sidecar.root, path)
            files = {file.name: file.replace(name=layout.file_of_key(file.name, key)) for file in sidecar.files}
            for old, new in files.items():
                (cache / new.name).parent.mkdir(parents=True, exist_ok=True)
                os.link(source / old, cache / new.name)
            features = tuple(info.replace(file=info.file and files[info.file.name]) for info in sidecar.features)
            about = sidecar.about.replace(segment=None)
            copy = sidecar.replace(key=key, path=path, about=about, features=features)
            target = cache / layout.sidecar_file(key)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(copy.to_line() + "\n", encoding="ascii")
            writer.write(records[sidecar.key].replace(path=path, segment=None))
    write_catalog(cache)


def browser_times(page: Path) -> tuple[float, float] | None:
    """Return the time until the page is ready and the longest time of a keystroke [ms], or None without a browser."""
    program = shutil.which("chromium-headless-shell")
    if program is None or importlib.util.find_spec("playwright") is None:
        return None
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1280, "height": 900})
        opened.goto(page.as_uri())
        opened.wait_for_selector("body[data-ready]", timeout=60000)
        ready = opened.evaluate("performance.getEntriesByName('ready')[0].startTime")
        longest = opened.evaluate(BROWSER)
        browser.close()
    return ready, longest


def main() -> None:
    """Print a line for each number of videos."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clips", type=Path, help="a folder of videos")
    parser.add_argument("--videos", type=int, nargs="+", default=[100, 1000, 10000])
    options = parser.parse_args()
    print("| videos | page | tiles | CPU for each video | memory | ready | keystroke |")
    print("|---:|---:|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = short_parts(options.clips, folder)
        for num_videos in options.videos:
            cache, page = folder / f"cache-{num_videos}", folder / f"report-{num_videos}.html"
            replicate(source, cache, num_videos)
            command = [sys.executable, "-c", GENERATE, str(cache), str(page)]
            measured = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            num_bytes, num_tiles, cpu, memory = measured
            times = browser_times(page)
            shown = f"{times[0]:.0f} ms | {times[1]:.0f} ms" if times else "- | -"
            cpu_ms = 1000 * cpu / num_videos
            columns = f"{num_bytes / 1e6:.1f} MB | {num_tiles} | {cpu_ms:.1f} ms | {memory:.0f} MiB"
            print(f"| {num_videos:,} | {columns} | {shown} |")
            sys.stdout.flush()
            shutil.rmtree(cache)


if __name__ == "__main__":
    main()
