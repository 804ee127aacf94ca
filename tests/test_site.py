"""The site: its search leads to the right page, its reference has every name that people use, its links lead somewhere.

The search, and the check that the pages are accessible, run in a browser.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
from playwright.sync_api import Page, expect, sync_playwright

import chordcache as cc

DOCS = Path(__file__).resolve().parent.parent / "docs"

SEARCHES = {
    "notebook": ["jupyter", "ipynb"],
    "first-hour": ["install", "quickstart", "tutorial", "getting started"],
    "which-videos": ["train test split", "split file", "on_miss", "videos not cached", "missing sound", "hmdb51"],
    "splits": ["data leakage", "duplicates"],
    "passport": ["passport", "croissant", "compare caches"],
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

PAGES_OF_EACH_KIND = (
    *("index", "first-hour", "notebook", "gallery", "examples", "features", "which-videos"),
    *("reference/commands", "reference/settings", "reference/sample"),
    *("search", "genindex", "_modules/index", "_modules/chordcache/building/build"),
)
"""Pages that axe looks at: with pictures, code, tables, long signatures, and those that Sphinx makes"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the pages of the site."""
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "-q",
        "-b",
        "html",
        "-d",
        folder / "doctrees",
        DOCS,
        folder / "html",
    ]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONWARNINGS": "default"}, timeout=250)
    return folder / "html"


@pytest.fixture(scope="module")
def page(site: Path) -> Iterator[Page]:
    """A page of a browser, which shows the search of the site."""
    program = shutil.which("chromium-headless-shell")
    if program is None:
        pytest.skip("chromium-headless-shell is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        opened = browser.new_page()
        opened.goto((site / "search.html").as_uri())
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


# The reference


def names_that_guides_use() -> set[str]:
    """Return the full name of each object that a python block of a guide imports or takes from ``chordcache``."""
    names = set()
    for path in [DOCS.parent / "README.md", *DOCS.rglob("*.md"), *DOCS.glob("recipes/*.py")]:
        text = path.read_text(encoding="utf-8")
        for block in re.findall(r"```python\n(.*?)```", text, re.S) if path.suffix == ".md" else [text]:
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and str(node.module).startswith("chordcache."):
                    names |= {f"{node.module}.{alias.name}" for alias in node.names}
            used = re.findall(r"\bcc\.((?:(?:crops|samplers|videos)\.)?\w+)", block)
            names |= {f"chordcache.{name}" for name in used}
    return names


def test_the_reference_has_each_public_name_and_each_name_that_a_guide_uses(site: Path) -> None:
    """A name has its own anchor, or that of the shorter name by which the reference shows the same object."""
    inventory = zlib.decompress((site / "objects.inv").read_bytes().split(b"\n", 4)[4]).decode()
    places = dict(re.findall(r"^(\S+) py:\w+ \S+ (\S+)", inventory, re.M))
    names = {f"chordcache.{name}" for name in cc.__all__} | names_that_guides_use()
    assert len(names) > 50
    for name in names:
        page, _, anchor = places.get(name, "").replace("$", name).partition("#")
        assert page.startswith("reference/"), name
        assert f'id="{anchor}"' in (site / page).read_text(encoding="utf-8"), name


def test_signatures_have_no_address_and_no_private_name(site: Path) -> None:
    for path in site.glob("reference/*.html"):
        for signature in re.findall(r'<dt class="sig.*?</dt>', path.read_text(encoding="utf-8"), re.S):
            words = re.sub("<[^>]*>", "", signature)
            assert not re.search(r"&lt;| at 0x|=_", words), words


# Links, and people who do not see or point


def test_links_and_pictures_lead_somewhere(site: Path) -> None:
    pages = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    anchors = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in pages.items()}
    for path, text in pages.items():
        for link in set(re.findall(r'\b(?:href|src)="([^"]+)"', text)):
            if re.match(r"https?:|data:|mailto:", link):
                continue
            name, _, anchor = unquote(link).partition("#")
            target = (path.parent / name.partition("?")[0]).resolve() if name else path
            assert target.is_file(), (path.name, link)
            assert not anchor or target.suffix != ".html" or anchor in anchors[target], (path.name, link)


@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_nothing_serious(page: Page, site: Path, width: int) -> None:
    axe = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    page.set_viewport_size({"width": width, "height": 900})
    for name in PAGES_OF_EACH_KIND:
        page.goto((site / f"{name}.html").as_uri())
        page.evaluate(axe)
        result = page.evaluate("axe.run().then(result => result.violations)")
        serious = [violation for violation in result if violation["impact"] in ("serious", "critical")]
        assert not serious, (name, [(violation["id"], violation["nodes"][0]["html"]) for violation in serious])
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, name
