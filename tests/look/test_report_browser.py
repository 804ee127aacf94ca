"""The report page in a real browser: nothing is requested, nothing is logged, and every control works."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import pytest
from playwright.sync_api import Browser, expect, sync_playwright

import chordcache as cc
from chordcache.config.config import config_from_json
from chordcache.storage.cache_header import read_header, write_header

EVIL = "</script><script>window.hit=1</script><img src=x onerror=window.hit=1><b style=color:red>'\"`"
CONFIG = {"features": {"flow": {"method": "dis", "preset": "ultrafast"}}}
AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium-headless-shell")
    if program is None:
        pytest.skip("chromium-headless-shell is not installed")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def built(tmp_path_factory, make_video) -> Path:
    """A cache of seven videos, one of them with names that are markup, and of a file that is not a video."""
    folder = tmp_path_factory.mktemp("browser")
    for number, name in enumerate(("ant", "bee", "cat", "dog", "eel")):
        make_video(folder / "v" / f"{name}.mp4", num_frames=10 * (number + 1), audio=name == "cat")
    make_video(folder / "v" / "tall.mp4", num_frames=20, size=(48, 128))
    make_video(folder / "v" / f"{EVIL}.mp4", num_frames=5)
    (folder / "v" / "broken.mp4").write_bytes(b"\0\0\0\x18ftypisom" + bytes(4000))
    quoted = EVIL.replace('"', '""')
    lines = [f'"{quoted}.mp4","{quoted}","{quoted}","{quoted}"', "dog.mp4,pet,a dog that barks,1", "cat.mp4,pet,,2"]
    (folder / "labels.csv").write_text("\n".join([f'path,label,caption,"{quoted}"', *lines, ""]))
    index = cc.scan([folder / "v"], labels=folder / "labels.csv", level="content", jobs=1)
    cc.build(index, folder / "cache", tiers=["lmdb", "npz"], config=config_from_json(CONFIG), jobs=1)
    header = read_header(folder / "cache")
    write_header(folder / "cache", header.replace(versions={**header.versions, EVIL: EVIL}))
    return folder / "cache"


@pytest.fixture(scope="module")
def page_file(built) -> Path:
    cc.report(built, built.parent / "page.html")
    return built.parent / "page.html"


class Watched:
    """A page with everything that it requested and logged."""

    def __init__(self, page: Any, path: Path) -> None:
        self.page, self.path = page, path
        self.requests: list[str] = []
        self.refused: list[str] = []
        """Requests that the policy refused"""
        self.messages: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("requestfailed", lambda request: request.failure == "csp" and self.refused.append(request.url))
        page.on("console", lambda message: self.messages.append(message.text))
        page.on("pageerror", lambda error: self.messages.append(str(error)))
        page.on("dialog", lambda dialog: self.messages.append(dialog.message))

    def open(self, fragment: str = "") -> Watched:
        self.page.goto(self.path.as_uri() + fragment)
        self.page.wait_for_selector("body[data-ready]")
        return self

    def names(self) -> list[str]:
        """Names on the tiles, in their order."""
        return self.page.locator(".tile .name").all_inner_texts()

    def key(self, name: str) -> str:
        return self.page.locator(".tile", has_text=f"{name}.mp4").get_attribute("href")

    def shows(self, name: str) -> None:
        """Expect the page of one video, which opens when the browser has noticed the new hash."""
        expect(self.page.locator("dialog[open] h2")).to_have_text(name)

    def shows_the_grid(self) -> None:
        expect(self.page.locator("dialog[open]")).to_have_count(0)


@pytest.fixture
def visit(browser, page_file) -> Iterator[Callable[..., Watched]]:
    """``visit(fragment, path=..., width=1280, height=900, **options of the context)`` opens the page, offline."""
    contexts = []

    def visit(
        fragment: str = "", path: Path = page_file, width: int = 1280, height: int = 900, **options: Any
    ) -> Watched:
        contexts.append(browser.new_context(viewport={"width": width, "height": height}, offline=True, **options))
        return Watched(contexts[-1].new_page(), path).open(fragment)

    yield visit
    for context in contexts:
        context.close()


@contextmanager
def quiet(watched: Watched) -> Iterator[None]:
    """Expect that the page requests nothing but itself, and logs nothing."""
    yield
    assert [url for url in watched.requests if not url.startswith(("data:", watched.path.as_uri(), "blob:"))] == []
    assert watched.messages == []
    assert watched.page.evaluate("window.hit") is None


def test_nothing_is_requested_or_logged(visit):
    seen = visit()
    with quiet(seen):
        for name in ("cat", "tall"):
            seen.page.locator(".tile", has_text=f"{name}.mp4").click()
            seen.page.locator("dialog .axis").hover()
            seen.page.keyboard.press("Escape")
            seen.shows_the_grid()
        seen.page.locator("#problems").scroll_into_view_if_needed()
    expect(seen.page.locator(".tile .cell")).to_have_count(7)
    assert sum(url.startswith(seen.path.as_uri()) for url in seen.requests) == 1


def test_the_title_names_the_cache(visit, built):
    assert visit().page.title() == f"{built.parent.name}/cache: 7 videos · chordcache report"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 900), (390, 844)])
def test_axe_finds_nothing_serious(visit, scheme, size):
    seen = visit(width=size[0], height=size[1], color_scheme=scheme, bypass_csp=True)
    seen.page.evaluate(AXE)
    for is_open in (False, True):
        if is_open:
            seen.page.locator(".tile", has_text="cat.mp4").click()
            seen.shows("cat.mp4")
        result = seen.page.evaluate("axe.run().then(result => result.violations)")
        serious = [violation for violation in result if violation["impact"] in ("serious", "critical")]
        assert not serious, json.dumps(
            [(violation["id"], violation["nodes"][0]["html"]) for violation in serious], indent=1
        )


def test_a_phone_never_scrolls_sideways(visit):
    seen = visit(width=390, height=844, is_mobile=True, has_touch=True, device_scale_factor=2)
    width = "document.documentElement.scrollWidth - innerWidth"
    assert seen.page.evaluate(width) <= 0
    seen.page.locator(".tile", has_text="cat.mp4").tap()
    seen.shows("cat.mp4")
    assert seen.page.evaluate(width) <= 0
    assert seen.page.evaluate("document.querySelector('dialog').scrollWidth - innerWidth") <= 0


def test_search_finds_names_labels_and_captions(visit):
    seen = visit()
    for text, names in (
        ("BARKS", ["dog.mp4"]),
        ("pet", ["cat.mp4", "dog.mp4"]),
        ("pet barks", ["dog.mp4"]),
        ("ee", ["bee.mp4", "eel.mp4"]),
    ):
        seen.page.fill("#search", text)
        assert seen.names() == names
        assert seen.page.locator("#count").inner_text() == f"{len(names)} of 7 videos"
    seen.page.fill("#search", "zebra")
    assert seen.page.locator("#grid").inner_text() == "No video matches."


def test_orders(visit):
    seen = visit()
    assert len(seen.page.locator("#sort option").all()) >= 15
    assert seen.names()[-6:] == ["ant.mp4", "bee.mp4", "cat.mp4", "dog.mp4", "eel.mp4", "tall.mp4"]
    for value, first in (
        ("-seconds", "eel.mp4"),
        ("-sound", "cat.mp4"),
        ("-height", "tall.mp4"),
        ("-frames", "eel.mp4"),
    ):
        seen.page.select_option("#sort", value)
        assert seen.names()[0] == first
    fields = seen.page.locator("#sort option").evaluate_all("all => all.map(each => each.value)")
    for value in fields:
        seen.page.select_option("#sort", value)
        assert len(seen.names()) == 7


def test_dragging_over_a_histogram_filters(visit):
    seen = visit()
    chart = seen.page.locator(".hist", has=seen.page.locator("h3", has_text="Duration"))
    area = chart.locator(".u-over").bounding_box()
    middle = area["y"] + area["height"] / 2
    seen.page.mouse.move(area["x"] + area["width"] * 0.7, middle)
    seen.page.mouse.down()
    seen.page.mouse.move(area["x"] + area["width"] - 1, middle, steps=4)
    seen.page.mouse.up()
    assert seen.names() == ["dog.mp4", "eel.mp4"]
    seen.page.locator(".chip").click()
    assert len(seen.names()) == 7
    chart.focus()
    seen.page.keyboard.press("ArrowLeft")
    assert seen.names() == ["eel.mp4"]
    seen.page.keyboard.press("Delete")
    assert len(seen.names()) == 7


def test_values_beyond_the_axis_are_counted_and_can_be_chosen(visit, make_video, tmp_path):
    for number in range(12):
        make_video(tmp_path / "v" / f"{number:02}.mp4", num_frames=200 if number == 0 else 5 + number)
    cc.scan([tmp_path / "v"], output=tmp_path / "index.json", jobs=1)
    cc.report(tmp_path / "index.json", tmp_path / "r.html")
    seen = visit(path=tmp_path / "r.html")
    chart = seen.page.locator(".hist", has=seen.page.locator("h3", has_text="Duration"))
    expect(chart.locator(".beyond")).to_have_text("1 beyond 0.65")
    chart.focus()
    seen.page.keyboard.press("ArrowLeft")
    assert seen.names() == ["00.mp4"]


def test_a_hash_opens_a_video_and_keys_move(visit):
    key = visit().key("cat")
    seen = visit(key)
    seen.shows("cat.mp4")
    tracks = seen.page.locator("dialog .gutter b").all_inner_texts()
    assert [track for track in tracks if track] == [
        *("frames", "keyframes", "codec motion", "luma change", "sound", "mel", "flow")
    ]
    assert key[1:] in seen.page.locator("dialog code").inner_text()
    seen.page.keyboard.press("ArrowRight")
    seen.shows("dog.mp4")
    seen.page.keyboard.press("ArrowLeft")
    seen.page.keyboard.press("ArrowLeft")
    seen.shows("bee.mp4")
    assert seen.page.url.endswith(seen.page.evaluate("location.hash"))
    seen.page.keyboard.press("Escape")
    seen.shows_the_grid()
    seen.page.wait_for_url("**#videos")  # wait_for_function may call eval, which the page forbids
    seen.page.evaluate(f"location.hash = {key!r}")
    seen.shows("cat.mp4")
    seen.page.go_back()
    seen.shows_the_grid()


def test_the_keyboard_alone_reaches_a_video(visit):
    seen = visit()
    seen.page.locator("#save").focus()
    seen.page.keyboard.press("Tab")
    seen.page.keyboard.press("Tab")
    seen.page.keyboard.press("Enter")
    seen.shows("ant.mp4")
    seen.page.keyboard.press("Escape")
    seen.shows_the_grid()
    assert seen.page.evaluate("document.activeElement.hash").startswith("#ant-")


def test_a_selection_becomes_a_split_file_that_a_dataset_takes(visit, built, tmp_path):
    seen = visit(permissions=["clipboard-read", "clipboard-write"])
    seen.page.fill("#search", "pet")
    with seen.page.expect_download() as download:
        seen.page.click("#save")
    download.value.save_as(tmp_path / "split.txt")
    dataset = cc.ChordVideoDataset(built, videos=tmp_path / "split.txt")
    with cc.open_cache(built) as cache:
        keys = [video.key for video in cache if video.label == "pet"]
    assert [line for line in (tmp_path / "split.txt").read_text().splitlines() if line[0] != "#"] == keys
    assert len(dataset) == 2
    seen.page.click("#copy")
    expect(seen.page.locator("#said")).to_have_text("Copied to the clipboard.")
    assert seen.page.evaluate("navigator.clipboard.readText()").split() == keys


def test_hostile_texts_are_shown_as_text(visit):
    seen = visit()
    with quiet(seen):
        seen.page.fill("#search", "onerror")
        assert seen.names() == [f"{EVIL}.mp4"]
        tile = seen.page.locator(".tile")
        assert tile.locator(".caption").inner_text() == EVIL
        assert EVIL in tile.locator(".facts").inner_text()
        tile.click()
        seen.shows(f"{EVIL}.mp4")
        assert seen.page.locator("dialog dd", has_text="onerror").count() >= 2  # label, column
        assert seen.page.locator("dialog dt", has_text="onerror").count() == 1  # name of the column
        seen.page.keyboard.press("Escape")
        seen.shows_the_grid()
        assert EVIL in seen.page.locator("#settings").inner_text().replace('\\"', '"')
        assert seen.page.locator("body img, main script").count() == 0


def test_without_escaping_the_policy_refuses_every_injection(visit, built, tmp_path, monkeypatch):
    def environment(**options: Any) -> jinja2.Environment:
        return jinja2.Environment(**{**options, "autoescape": False})

    monkeypatch.setattr("chordcache.look.report.make.Environment", environment)
    cc.report(built, tmp_path / "evil.html")
    assert "<script>window.hit=1</script>" in (tmp_path / "evil.html").read_text()
    seen = visit(path=tmp_path / "evil.html")
    seen.page.wait_for_load_state("load")
    assert seen.page.evaluate("window.hit") is None
    assert seen.page.locator("main img").count() > 0  # the markup is there
    refused = [message for message in seen.messages if "Content Security Policy" in message]
    for kind in ("script", "img-src", "style"):
        assert any(kind in message for message in refused), refused
    others = [url for url in seen.requests if not url.startswith((seen.path.as_uri(), "data:"))]
    assert others == seen.refused
    assert others
