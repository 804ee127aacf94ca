"""Every video of the corpus, cached by the command line, beside an independent decode: issue 2, done when 2."""

from __future__ import annotations

import json
import os
import random
import shutil
import warnings
from dataclasses import asdict
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import ffmpeg_reference

import chordcache as cc
from chordcache.config.picture import FramesConfig
from chordcache.sources.mapped_mp4 import MappedMP4Source
from chordcache.storage.layout import video_key

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

FOLDERS = ("real", "odd")

TOO_BIG = "long_4k_av1.mp4"
"""1.1 MB that hold 21,766 frames of 4K: an hour"""

MIN_PSNR_DB = 34.0
"""In the metric "planes" of ``truth``"""

LOWER_PSNR_DB = {
    # Noise of 50x50 at its own size: chroma has to move by a quarter of a sample, which ffmpeg 5.1 leaves out where
    # nothing is scaled. 58 dB from the mean in float64
    "odd/full_range/yuvj420p.264": 27.0,
}
"""Files that are worse by nature, and how good they must still be"""

NO_DECODER = {
    "odd/unsupported_codec/vvc_400kbps_2s.mp4": "VVC, which ffmpeg knows from version 7 on",
}
"""Videos that we decode and the ffmpeg command does not, for want of a decoder"""

MIN_RGB_PSNR_DB = 48.0
"""In the metric "RGB". A matrix mistaken for another leaves 21 to 46 dB, a range 21 to 32."""

Facts = dict[str, Any]


def files_below(root: Path) -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (root / folder).rglob("*") if path.is_file())


def copied(corpus: Path, folder: Path) -> Path:
    """The corpus without what is too big."""
    for name in FOLDERS:
        shutil.copytree(corpus / name, folder / name, ignore=shutil.ignore_patterns(TOO_BIG))
    return folder


def quarantine_of(cache: Path) -> list[Facts]:
    path = cache / "quarantine.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def compared(source: Path, cache: Path, video: cc.Video) -> Facts:
    info = video.sidecar.features[0]
    comparison = ffmpeg_reference.compare(
        source, cache / info.file.name, (video.width, video.height), codec=info.params["codec"]
    )
    times = [None if time is None else float(time) for time in comparison.times]
    return {
        **asdict(comparison),
        "times": times,
        "pts_seconds": video.pts_seconds.tolist(),
        "timestamp_source": video.sidecar.timestamp_source,
    }


def examined(source: Path) -> Facts:
    """Return the commands' facts about a file that is in quarantine."""
    probed = ffmpeg_reference.probe(source)
    is_picture = source.read_bytes()[:3] in (b"\xff\xd8\xff", b"\x89PN", b"#EX", b"ffc")
    facts: Facts = {
        "has_video": False,
        "num_decoded": 0,
        "errors": probed.errors.splitlines(),
        "is_picture": is_picture,
    }
    data = source.read_bytes()
    facts["is_encrypted"] = b"encv" in data or b"\x47\xe2" in data  # a sample entry of MP4, ContentEncKeyID of Matroska
    facts["is_cut_page"] = ends_in_page(data)
    if probed.video is not None:
        decoded = ffmpeg_reference.Decoded(source, probed.video["index"], (64, 64), "rgb24")
        facts.update(has_video=True, num_decoded=sum(1 for _ in decoded))
        facts["errors"] += decoded.errors
    return facts


def ends_in_page(data: bytes) -> bool:
    """Return whether the last page of an Ogg is shorter than its table of segments says."""
    page = data[data.rfind(b"OggS") :]
    if not page.startswith(b"OggS"):
        return False
    table = page[27 : 27 + page[26]]
    return len(page) < 27 + len(table) + sum(table)


def untrue_causes(quarantined: dict[str, Facts]) -> dict[str, Facts]:
    """Those for which the commands do not find the same fault."""
    untrue = {}
    for name, facts in quarantined.items():
        is_true = {
            "no-video": not facts["has_video"],
            "no-frames": facts["has_video"] and facts["num_decoded"] == 0,
            "decode": bool(facts["errors"]),
            "truncated": bool(facts["errors"]) or facts["is_cut_page"],
            "encrypted": facts["is_encrypted"],
            "short": bool(facts["errors"]),
            "refused-format": facts["is_picture"],
        }
        if not is_true.get(facts["cause"], False):
            untrue[name] = facts
    return untrue


def name_of(item: cc.Video | Facts) -> str:
    return f"{item.root}/{item.path}" if isinstance(item, cc.Video) else f"{item['root']}/{item['path']}"


def unequal_sources(root: Path, folder: Path, cached: list[cc.Video]) -> dict[str, str]:
    """Videos whose frames are not the same from the cache, from their file and from their mapped file.

    Through JPEG, a dataset over an empty cache reads the file; before it, the two kinds of source are compared.
    """
    (folder / "nothing.csv").write_text("path\n")
    cc.build(cc.read_index(folder / "nothing.csv"), folder / "empty", tiers=("lmdb",), jobs=1)
    sampler = cc.RandomClipSampler(num_frames=3, stride=7)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* that the scan could not read")
        from_cache, from_file = (
            cc.ChordVideoDataset(
                cc.videos.indexed(folder / "index.json", folder / name, on_miss=way), clip_sampler=sampler, size=None
            )
            for name, way in (("cache", "error"), ("empty", "source"))
        )
    places = {record_key: place for place, record_key in enumerate(usable_keys(folder / "index.json"))}

    def difference(video: cc.Video) -> str | None:
        one, other = (dataset[0, places[video.key]] for dataset in (from_cache, from_file))
        if not all(torch.equal(one[name], other[name]) for name in ("frames", "pts_seconds")):
            return "cache and file"
        numbers = random.Random(0).sample(range(video.num_frames), min(3, video.num_frames))
        path = root / name_of(video)
        with cc.MP4Source(FramesConfig()).open(path) as source, MappedMP4Source(FramesConfig()).open(path) as mapped:
            if source.num_frames != video.num_frames:
                return f"{source.num_frames} frames, {video.num_frames} cached"
            same = np.array_equal(source.get_frames(numbers), mapped.get_frames(numbers))
            return None if same and np.array_equal(source.pts_seconds, mapped.pts_seconds) else "file and mapped file"

    differences = zip(map(name_of, cached), ffmpeg_reference.map_in_threads(difference, cached), strict=True)
    return {name: what for name, what in differences if what is not None}


def unequal_index(index: Path, cached: list[cc.Video]) -> dict[str, Any]:
    """Videos of which the index says something else than the cache has."""
    records = {f"{record.root}/{record.path}": record for record in cc.read_index(index)}
    unequal = {}
    for video in cached:
        packets = records[name_of(video)].packets
        expected = {
            "num_frames": video.num_frames,
            "num_frames_skipped": video.sidecar.num_frames_skipped,
            "start_seconds": pytest.approx(video.start_seconds, abs=1e-6),
            "keyframe_pts_seconds": pytest.approx(key_times(video, packets.keyframe_numbers), abs=1e-6),
        }
        indexed = {name: getattr(packets, name) for name in expected}
        if indexed != expected:
            unequal[name_of(video)] = {name: indexed[name] for name in expected if indexed[name] != expected[name]}
    return unequal


def key_times(video: cc.Video, numbers: tuple[int, ...]) -> tuple[float, ...]:
    """Times of some frames of a cache [seconds]."""
    return tuple(float(video.pts_seconds[number]) for number in numbers)


def usable_keys(index: Path) -> list[str]:
    """Keys of a dataset over an index."""
    return [video_key(record.root, record.path) for record in cc.read_index(index) if record.error is None]


@pytest.fixture(scope="module")
def built(corpus, run_process, tmp_path_factory) -> Facts:
    """The corpus scanned, built and verified, and everything in the cache compared with the truth."""

    def make(folder: Path) -> Facts:
        root, cache = copied(corpus, folder / "corpus"), folder / "cache"
        commands = {
            "scan": ["scan", *(root / name for name in FOLDERS), "-j", "2"],
            "build": ["build", "--tier", "lmdb", "-j", "2"],
            "verify": ["verify", "--deep", "--source", "-j", "2"],
        }
        ended = {}
        for name, command in commands.items():
            done = run_process(*map(os.fspath, command), cwd=folder, timeout=900)
            ended[name] = [done.returncode, done.stdout, done.stderr]
        with cc.open_cache(cache) as videos:
            cached = sorted(videos, key=lambda video: -video.num_frames)  # the longest first: it takes a minute
        quarantined = quarantine_of(cache)
        return {
            "ended": ended,
            "unequal_index": unequal_index(folder / "index.json", cached),
            "unequal_sources": unequal_sources(root, folder, cached),
            "videos": dict(
                zip(
                    map(name_of, cached),
                    ffmpeg_reference.map_in_threads(
                        lambda video: compared(root / name_of(video), cache, video), cached
                    ),
                    strict=True,
                )
            ),
            "quarantined": {
                name_of(failure): {**failure, **examined(root / name_of(failure))} for failure in quarantined
            },
        }

    return ffmpeg_reference.once(tmp_path_factory, "truth_corpus", make)


@pytest.fixture(scope="module")
def videos(built) -> dict[str, Facts]:
    """Videos that both ffmpeg and we have decoded."""
    return {name: facts for name, facts in built["videos"].items() if name not in NO_DECODER}


def test_scan_and_build_finish_and_verify_finds_no_damage(built):
    ended = {name: (code, stderr.splitlines()[:3]) for name, (code, _, stderr) in built["ended"].items()}
    assert built["quarantined"], "the corpus has files without pictures"
    assert ended == {"scan": (3, []), "build": (3, []), "verify": (0, [])}


def test_every_video_is_cached_or_in_quarantine(corpus, built):
    """Judged by content, so that no suffix and no name hides a video. Playlists hold none, they name others."""
    paths = [
        path
        for path in files_below(corpus)
        if path.name != TOO_BIG and not path.read_bytes()[:64].lstrip().startswith(b"#EXTM3U")
    ]
    probed = ffmpeg_reference.map_in_threads(ffmpeg_reference.probe, paths)
    shown = {str(path.relative_to(corpus)) for path, facts in zip(paths, probed, strict=True) if facts.video}
    assert len(shown) > 200
    assert shown - {*built["videos"], *built["quarantined"]} == set()


def test_number_of_frames(videos):
    counts = {name: (facts["num_cached"], facts["num_decoded"]) for name, facts in videos.items()}
    assert {name: count for name, count in counts.items() if count[0] != count[1] or not count[0]} == {}


def on_one_clock(times):
    """Times of frames [seconds] that go on by the usual step where the clock of the file is set back."""
    known = [time for time in times if time is not None]
    step, shift = (float(np.median(np.abs(np.diff(known)))) if len(known) > 1 else 0.0), 0.0
    shifted = list(times[:1])
    for before, time in pairwise(times):
        if None not in (before, time) and time < before:
            shift += before + step - time
        shifted.append(None if time is None else time + shift)
    return shifted


def test_times_of_frames(videos):
    """Where the packets have them: then to the microsecond, in JSON's double precision."""
    wrong = {}
    for name, facts in videos.items():
        pairs = list(zip(facts["pts_seconds"], on_one_clock(facts["times"]), strict=True))
        far = [pair for pair in pairs if pair[1] is None or abs(pair[0] - pair[1]) > 1e-6]
        if facts["timestamp_source"] == "pts" and far:
            wrong[name] = (len(far), far[0])
    assert wrong == {}


def test_times_of_frames_without_a_clock(corpus, videos):
    """AVI: the dts of the packets in order. Raw streams: so many frames per second."""
    wrong = {}
    for name in [name for name, facts in videos.items() if facts["timestamp_source"] != "pts"]:
        facts, probed = videos[name], ffmpeg_reference.probe(corpus / name, packets=True)
        seconds = 1 / Fraction(probed.video["r_frame_rate"])
        expected = (
            [packet["dts"] * probed.time_base for packet in probed.video_packets]
            if facts["timestamp_source"] == "dts"
            else [i * seconds for i in range(facts["num_decoded"])]
        )
        if facts["pts_seconds"] != pytest.approx([float(time) for time in expected], abs=1e-6):
            wrong[name] = (facts["timestamp_source"], facts["pts_seconds"][:5], [float(time) for time in expected[:5]])
    assert wrong == {}


def test_clock_is_what_the_packets_have(corpus, videos):
    names = list(videos)
    probed = ffmpeg_reference.map_in_threads(lambda name: ffmpeg_reference.probe(corpus / name, packets=True), names)
    clocks = {name: facts.timestamp_source for name, facts in zip(names, probed, strict=True)}
    assert {name: facts["timestamp_source"] for name, facts in videos.items()} == clocks


def test_pictures(videos):
    """Every frame of every video that both can decode."""
    low = {
        name: (round(facts["min_psnr_db"], 1), facts["worst_frame"])
        for name, facts in videos.items()
        if facts["min_psnr_db"] < LOWER_PSNR_DB.get(name, MIN_PSNR_DB)
    }
    assert low == {}


def test_sources_show_what_the_cache_has(built):
    """Random frames of every video, and their number and times."""
    assert built["unequal_sources"] == {}


def test_the_index_agrees_with_the_cache(built):
    """Number of frames, how many were skipped, the first time, and which frames are keyframes."""
    assert built["unequal_index"] == {}


def test_no_exception_is_stale(videos):
    stale = [name for name in LOWER_PSNR_DB if name not in videos or videos[name]["min_psnr_db"] >= MIN_PSNR_DB]
    assert stale == []


@pytest.mark.parametrize("name", NO_DECODER)
def test_ffmpeg_cannot_decode_the_files_that_only_we_decode(built, name):
    facts = built["videos"][name]
    assert facts["num_cached"] > 0
    assert facts["num_decoded"] == 0
    assert facts["errors"]


def test_every_cause_of_quarantine_is_true(built):
    """The commands find the same fault: no video track, no frame, or an error on the way."""
    assert untrue_causes(built["quarantined"]) == {}


# Broken files


@pytest.fixture(scope="module")
def built_broken(corpus, run_process, tmp_path_factory) -> Facts:
    """The folder ``broken``, as ``built``."""

    def make(folder: Path) -> Facts:
        cache = folder / "cache"
        for command in (["scan", os.fspath(corpus / "broken")], ["build"]):
            done = run_process(*command, cwd=folder, timeout=600)
            assert done.returncode == 3, done.stderr
        done = run_process("verify", "--deep", "--source", cwd=folder, timeout=600)
        assert done.returncode == 0, done.stdout
        with cc.open_cache(cache) as videos:
            cached = {name_of(video): compared(corpus / name_of(video), cache, video) for video in videos}
        failures = {name_of(failure): failure for failure in quarantine_of(cache)}
        return {
            "videos": cached,
            "quarantined": {name: {**facts, **examined(corpus / name)} for name, facts in failures.items()},
        }

    return ffmpeg_reference.once(tmp_path_factory, "truth_broken", make)


def test_every_cause_of_a_broken_file_is_true(built_broken):
    assert len(built_broken["quarantined"]) > 40
    assert untrue_causes(built_broken["quarantined"]) == {}


HARMLESS_ERRORS = {
    "broken/bad_header/bug498855-2.ogv": "of the sound",
    "broken/bad_header/bug498855-3.ogv": "of the sound",
    "broken/fuzz/baseline3_q51_32x18_min.264": "a message beside the picture (SEI) is cut",
    "broken/fuzz/null_video_320x240.264": "a message beside the picture (SEI) is cut",
}


def test_cached_broken_files_have_every_frame(built_broken):
    """Every frame that ffmpeg decodes, the same pictures, and no complaint of ffmpeg about them."""
    wrong = {
        name: (facts["num_cached"], facts["num_decoded"], facts["min_psnr_db"], facts["errors"][:1])
        for name, facts in built_broken["videos"].items()
        if facts["num_cached"] != facts["num_decoded"]
        or facts["min_psnr_db"] < MIN_PSNR_DB
        or (facts["errors"] and name not in HARMLESS_ERRORS)
    }
    assert wrong == {}


# Colors


@pytest.fixture(scope="module")
def built_raw(corpus, run_process, tmp_path_factory) -> dict[str, Facts]:
    """Raw RGB24 of the smallest video of each pixel format, matrix and range that the corpus has."""

    def make(folder: Path) -> dict[str, Facts]:
        smallest: dict[tuple[str | None, ...], tuple[int, Path]] = {}
        paths = [path for path in files_below(corpus) if path.name != TOO_BIG and path.suffix not in (".m3u8", ".mp3")]
        paths = [path for path in paths if path.parent.name not in ("encrypted", "unsupported_codec")]
        for path, probed in zip(
            paths,
            ffmpeg_reference.map_in_threads(lambda path: ffmpeg_reference.probe(path, packets=True), paths),
            strict=True,
        ):
            if probed.video is None or not probed.video_packets:
                continue
            kind = tuple(probed.video.get(word) for word in ("pix_fmt", "color_space", "color_range"))
            size = probed.video["width"] * probed.video["height"] * len(probed.video_packets)
            smallest[kind] = min(smallest.get(kind, (size, path)), (size, path))
        chosen = [path.relative_to(corpus) for _, path in smallest.values()]
        for path in chosen:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(corpus / path, folder / path)
        (folder / "raw.yaml").write_text("frames: {codec: raw}\n")
        roots = sorted({path.parts[0] for path in chosen})
        for command in (["scan", *roots], ["build", "-c", "raw.yaml"]):
            done = run_process(*command, cwd=folder, timeout=300)
            assert done.returncode == 0, done.stderr
        cache = folder / "cache"
        with cc.open_cache(cache) as videos:
            cached = list(videos)
        return {name_of(video): compared(folder / name_of(video), cache, video) for video in cached}

    return ffmpeg_reference.once(tmp_path_factory, "truth_colors", make)


def test_colors(built_raw):
    """BT.601, BT.709 and BT.2020, limited and full range, 8 and 10 bit, 4:2:0 and 4:4:4, RGB, alpha and unstated."""
    assert len(built_raw) > 15
    low = {
        name: (round(facts["min_psnr_db"], 1), facts["worst_frame"])
        for name, facts in built_raw.items()
        if facts["min_psnr_db"] < MIN_RGB_PSNR_DB
    }
    assert low == {}
    counts = {name: (facts["num_cached"], facts["num_decoded"]) for name, facts in built_raw.items()}
    assert {name: count for name, count in counts.items() if count[0] != count[1]} == {}
