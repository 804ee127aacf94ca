"""The report page: its data agree with the cache, and nothing from a cache becomes markup."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from click.testing import CliRunner
from helpers.html_pages import Page
from helpers.inline import HERE

import chordcache as cc
from chordcache.cli import cli
from chordcache.config.config import config_from_json
from chordcache.index.index_files import IndexWriter
from chordcache.look.report import rows
from chordcache.look.report.rows import NUM_BINS, MeasureTable, for_script, readable
from chordcache.records import (
    Segment,
    VideoRecord,
)
from chordcache.storage.cache_header import read_header, write_header

ASSETS = Path(rows.__file__).parent
EVIL = "</script><script>window.hit=1</script><img src=x onerror=window.hit=1>'\"{{7*7}}"
CONFIG = {"features": {"flow": {"method": "dis", "preset": "ultrafast"}}}


@pytest.fixture(scope="module")
def corpus_of_five(tmp_path_factory, make_video) -> Path:
    """Videos of several kinds, one in folders whose names are markup, and one that is not a video."""
    folder = tmp_path_factory.mktemp("report") / "videos"
    make_video(folder / "a" / "sound.mp4", num_frames=50, audio=True)
    make_video(folder / "a" / "short.mp4", num_frames=3, gop=1, fps=10)
    make_video(folder / "b" / "tall.mp4", num_frames=30, size=(48, 128))
    make_video(folder / f"{EVIL}.mp4", num_frames=25)
    (folder / "b" / "broken.mp4").write_bytes(b"\0\0\0\x18ftypisom" + bytes(4000))
    (folder / "labels.csv").write_text(
        "path,label,caption,camera\n"
        f'"{EVIL.replace(chr(34), chr(34) * 2)}.mp4","{EVIL.replace(chr(34), chr(34) * 2)}",'
        f'"{EVIL.replace(chr(34), chr(34) * 2)}","{EVIL.replace(chr(34), chr(34) * 2)}"\n'
        f"a/sound.mp4,talk,{'very ' * 20_000}long,left\n"
        "b/tall.mp4,walk,\u05e9\u05dc\u05d5\u05dd \u202e reversed \x07 bell,right\n",
        encoding="utf-8",
    )
    return folder


@pytest.fixture(scope="module")
def built(corpus_of_five) -> Path:
    """A cache of these videos with every feature. Tests that change it make a copy."""
    cache = corpus_of_five.parent / "cache"
    index = cc.scan([corpus_of_five], labels=corpus_of_five / "labels.csv", level="content", jobs=HERE)
    cc.build(index, cache, tiers=["lmdb", "npz"], config=config_from_json(CONFIG), jobs=HERE)
    return cache


@pytest.fixture(scope="module")
def report(built) -> tuple[cc.ReportResult, Page]:
    result = cc.report(built, built.parent / "page.html")
    return result, Page(built.parent / "page.html")


@pytest.fixture
def copied(built, tmp_path) -> Path:
    shutil.copytree(built, tmp_path / "cache")
    return tmp_path / "cache"


def test_the_page_has_every_video_and_every_failure(built, report):
    result, page = report
    assert (result.num_videos, result.num_shown, result.num_failures, result.num_findings) == (4, 4, 1, 0)
    assert result.num_bytes == (built.parent / "page.html").stat().st_size
    with cc.open_cache(built) as cache:
        assert {row["key"] for row in page.videos.values()} == set(cache.keys())
        for video in cache:
            row = page.videos[readable(video.path, 400)]
            assert (row["frames"], row["seconds"]) == (video.num_frames, round(video.duration_seconds, 3))
            assert row["bytes"] == sum(info.file.num_bytes for info in video.sidecar.features if info.file)
            assert len(row["details"]["times"]) == min(6, row["details"]["layout"][2])
            assert 0 <= row["details"]["times"][0] <= row["details"]["times"][-1] < video.duration_seconds
    sound = page.videos["a/sound.mp4"]
    assert (sound["width"], sound["height"], sound["fps"], sound["labels"]) == (64, 48, 25.0, ["talk"])
    assert sound["details"]["columns"] == [["camera", "left"]]
    assert sound["details"]["keyframes"][:2] == [0.0, 0.48]
    assert "with sound" in sound["traits"]
    assert {"without mel", "without sound"} <= set(page.videos["b/tall.mp4"]["traits"])
    assert page.videos["b/tall.mp4"]["facts"]["absent"] == "mel in npz: no audio track"
    assert page.script("data")["command"] == f"chordcache show {built}"


def test_the_picture_has_frames_flow_and_mel_in_one_file(built, report):
    _, page = report
    for path, has_mel in (("a/sound.mp4", True), ("b/tall.mp4", False)):
        details = page.videos[path]["details"]
        width, height, cells, frames, flow, mel = details["layout"]
        data = np.frombuffer(base64.b64decode(details["picture"]), np.uint8)
        picture = cv2.imdecode(data, cv2.IMREAD_COLOR)
        assert picture.shape == (height * (frames + flow) + mel, width * cells, 3)
        assert (frames, flow, bool(mel)) == (1, 1, has_mel)
    assert height > width  # it is upright, as the video is
    with cc.open_cache(built) as cache:
        video = next(video for video in cache if video.path == path)
        number = int(np.searchsorted(video.pts_seconds - video.start_seconds, details["times"][2]))
        (frame,) = cache.read(video, "frames", indices=[number])
    cell = cv2.cvtColor(picture[:height, 2 * width : 3 * width], cv2.COLOR_BGR2RGB)
    small = cv2.resize(frame, (width, height), interpolation=cv2.INTER_AREA)
    inner = np.s_[:, width // 3 : 2 * width // 3]  # 48x128 is narrower than any cell
    assert abs(float(cell[inner].mean()) - float(small[inner].mean())) < 12


def test_each_kind_of_motion_has_its_own_curve_and_unit(report):
    _, page = report
    curves = {curve[0]: curve for curve in page.videos["a/sound.mp4"]["details"]["curves"]}
    assert set(curves) == {"motion", "luma", "sound"}
    points = np.frombuffer(base64.b64decode(curves["sound"][1]), np.uint8)
    level = curves["sound"][2] + points[:2] / 254 * (curves["sound"][3] - curves["sound"][2])
    assert level == pytest.approx(20 * np.log10(0.5 / np.sqrt(2)), abs=1)  # a sine at half of full scale
    assert len(base64.b64decode(curves["motion"][1])) == 50  # one for each frame
    histograms = {histogram["field"]: histogram for histogram in page.script("data")["histograms"]}
    assert (histograms["motion"]["unit"], histograms["luma"]["unit"]) == ("px", "gray levels")
    assert sum(histograms["luma"]["counts"]) == 4
    assert [row["luma"] for row in page.videos.values()] != [row["motion"] for row in page.videos.values()]


def test_one_long_video_does_not_flatten_a_histogram():
    table = MeasureTable()
    for number in range(100):
        table.add({"seconds": 5400.0 if number == 0 else 2 + number / 10, "fps": 24.0 + number % 3})
    seconds, fps = table.histograms()
    assert len(seconds["counts"]) == len(seconds["edges"]) - 1 == NUM_BINS + 1
    assert seconds["counts"][-1] == 1
    assert max(seconds["counts"]) <= 6
    assert seconds["edges"][-2:] == [pytest.approx(11.9 * 1.01), 5400]
    assert (len(fps["counts"]), sum(fps["counts"])) == (NUM_BINS, 100)


def test_settings_are_those_of_features_that_are_there(report):
    _, page = report
    settings = page.text.partition("of chordcache verify --quick")[2]
    assert '"method": "dis"' in settings
    assert '"latents"' not in settings
    assert '"hdf5"' not in settings


def test_segments_and_boxes_have_times_on_the_axis(tmp_path, make_video):
    make_video(tmp_path / "v.mp4", num_frames=50)
    boxes = [{"time_seconds": 0.5, "x1": 0.1, "y1": 0.1, "x2": 0.5, "y2": 0.5, "label": "wave"}] * 2
    records = [
        VideoRecord(
            root="r", path="v.mp4", segment=Segment(start_seconds=start, end_seconds=start + 1), extra={"boxes": boxes}
        )
        for start in (0, 0.6)
    ]
    with IndexWriter(
        tmp_path / "i.jsonl", roots={"r": str(tmp_path)}, level=None, columns={"boxes": "relative_boxes"}
    ) as writer:
        for record in records:
            writer.write(record)
    cc.build(tmp_path / "i.jsonl", tmp_path / "cache", jobs=HERE)
    cc.report(tmp_path / "cache", tmp_path / "r.html")
    page = Page(tmp_path / "r.html")
    starts = sorted(row[page.script("data")["fields"].index("start")] for row in page.script("rows"))
    assert starts == [0, 0.6]
    assert page.script("b0")[0]["marks"] == [[0.5, "2 wave"]]
    assert "segment" in page.script("data")["traits"]


def test_nothing_from_a_cache_becomes_an_element(copied, tmp_path):
    header = read_header(copied)
    write_header(copied, header.replace(versions={EVIL: EVIL}))
    cc.report(copied, tmp_path / "r.html")
    page = Page(tmp_path / "r.html")
    elements = {tag for tag, _ in page.elements}
    assert not elements & {"img", "iframe", "object", "embed", "link", "base"}
    assert [
        attributes
        for _, attributes in page.elements
        if any(name.startswith("on") or name == "style" for name in attributes)
    ] == []
    assert len(page.code) == 2
    assert EVIL in page.text  # the version, and options of filters
    row = page.videos[readable(f"{EVIL}.mp4")]
    assert row["labels"] == [EVIL]
    assert row["caption"] == EVIL
    assert row["details"]["columns"] == [["camera", EVIL]]


def test_the_policy_allows_only_the_scripts_and_styles_of_the_page(report):
    _, page = report
    policy = page.policy
    assert policy["default-src"] == ["'none'"]
    assert policy["img-src"] == ["data:"]

    def sources(texts):
        return [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in texts]

    assert policy["script-src"] == sources(page.code)
    assert policy["style-src"] == sources(page.inside["style"])


def test_captions_of_any_length_and_direction(report):
    _, page = report
    sound, tall = page.videos["a/sound.mp4"], page.videos["b/tall.mp4"]
    assert len(sound["caption"]) == 161
    assert len(sound["details"]["captions"][0]) == 2001
    assert tall["caption"].startswith("\u05e9\u05dc\u05d5\u05dd \\u202e")
    assert tall["caption"].endswith("\\x07 bell")


def test_the_json_of_scripts_cannot_end_them():
    assert (
        for_script(["</script>", "<!--", "&", "\u2028"]) == '["\\u003c/script\\u003e","\\u003c!--","\\u0026","\\u2028"]'
    )
    assert json.loads(for_script(EVIL)) == EVIL


def test_the_script_is_short_and_sets_no_markup():
    text = (ASSETS / "page.js").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 250
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
        'setAttribute("on',
    ):
        assert word not in text


def test_uplot_is_what_its_makers_published():
    for line in (ASSETS / "uplot" / "sha256sums.txt").read_text().splitlines():
        digest, name = line.split()
        assert hashlib.sha256((ASSETS / "uplot" / name).read_bytes()).hexdigest() == digest
    assert "MIT License" in (ASSETS / "uplot" / "LICENSE").read_text()


def test_a_damaged_artefact_is_named_on_its_tile_and_in_the_findings(copied, tmp_path):
    with cc.open_cache(copied) as cache:
        video = next(video for video in cache if video.path == "a/sound.mp4")
        frames, flow = video.feature("frames").file.name, video.feature("flow").file.name
    (copied / frames).unlink()
    with open(copied / flow, "r+b") as file:
        file.seek(1000)
        file.write(b"\xa5" * 300_000)  # of 49 rows of 12 kB
    result = cc.report(copied, tmp_path / "r.html")
    page = Page(tmp_path / "r.html")
    sound = page.videos["a/sound.mp4"]
    assert any(frames in text for text in sound["details"]["problems"])
    assert "damaged artefact" in sound["traits"]
    assert result.num_findings == 2  # frames by `verify --quick`, flow by the page
    assert f"chordcache verify --repair {copied}" in page.text
    assert "problems" not in page.videos["b/tall.mp4"]["details"]


def test_a_report_changes_nothing_in_the_cache(copied, tmp_path):
    def state():
        return {path: path.stat().st_mtime_ns for path in copied.rglob("*")}

    before = state()
    cc.report(copied, tmp_path / "r.html")
    assert state() == before
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["r.html"]


def test_a_cache_that_is_being_built_for_the_first_time(copied, tmp_path):
    (copied / "catalog.bin").unlink()
    (copied / "index.jsonl").unlink()
    (copied / "quarantine.jsonl").unlink()
    result = cc.report(copied, tmp_path / "r.html")
    assert (result.num_shown, result.num_failures) == (4, 0)
    assert any("has no catalog" in note for note in result.notes)
    assert all("picture" in row["details"] for row in Page(tmp_path / "r.html").videos.values())


def test_damaged_lists_are_notes(copied, tmp_path):
    for name in ("catalog.bin", "index.jsonl", "quarantine.jsonl", "runs.jsonl"):
        (copied / name).write_bytes(b"{}\n" * 300)
    result = cc.report(copied, tmp_path / "r.html")
    assert result.num_shown == 4
    assert len(result.notes) == 4
    page = Page(tmp_path / "r.html")
    assert all(note in page.text for note in result.notes)


def test_a_cache_without_videos_and_one_without_frames(corpus_of_five, tmp_path):
    (tmp_path / "none").mkdir()
    shutil.copy(corpus_of_five / "b" / "broken.mp4", tmp_path / "none")
    cc.build(cc.scan([tmp_path / "none"], jobs=HERE), tmp_path / "empty", jobs=HERE)
    result = cc.report(tmp_path / "empty", tmp_path / "r.html")
    assert (result.num_videos, result.num_shown, result.num_failures) == (0, 0, 1)
    assert Page(tmp_path / "r.html").script("rows") == []
    config = config_from_json(CONFIG)
    cc.build(cc.scan([corpus_of_five / "a"], jobs=HERE), tmp_path / "npz", tiers=["npz"], config=config, jobs=HERE)
    cc.report(tmp_path / "npz", tmp_path / "r.html")
    assert [row["details"]["layout"][3:5] for row in Page(tmp_path / "r.html").videos.values()] == [[0, 1], [0, 1]]


def test_an_index_has_a_page_without_pictures(corpus_of_five, tmp_path):
    cc.scan([corpus_of_five], output=tmp_path / "index.json", labels="dir", level="content", jobs=HERE)
    result = cc.report(tmp_path / "index.json", tmp_path / "r.html")
    page = Page(tmp_path / "r.html")
    assert (result.num_videos, result.num_failures, result.has_pictures) == (5, 1, False)
    assert page.script("data")["command"] is None
    assert page.videos["a/sound.mp4"]["details"]["curves"][0][0] == "luma"
    assert "broken: decode" in page.videos["b/broken.mp4"]["traits"]


def test_without_opencv_the_page_has_no_pictures_and_says_why(built, tmp_path):
    code = (
        "import sys; sys.modules['cv2'] = None\nimport chordcache as cc\nprint(cc.report(*sys.argv[1:]).has_pictures)"
    )
    command = [sys.executable, "-c", code, str(built), str(tmp_path / "r.html")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.stdout == "False\n", result.stderr
    assert "no pictures without OpenCV: pip install 'chordcache[build]'" in Page(tmp_path / "r.html").text


def test_the_command(built, tmp_path):
    page = tmp_path / "r.html"
    result = CliRunner().invoke(cli, ["report", str(built), "-o", str(page)])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"{page}: 4 videos, 0.")
    result = CliRunner().invoke(cli, ["report", str(built), "-o", str(page), "--json", "--videos", "2"])
    assert json.loads(result.stdout)["num_shown"] == 2
    result = CliRunner().invoke(cli, ["report", str(built), "-o", str(page), "--videos", "0"])
    assert result.exit_code == 2
    assert "--videos: got 0" in result.stderr
