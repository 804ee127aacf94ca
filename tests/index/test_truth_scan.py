"""Records that ``scan`` writes for every file of the corpus, compared with ffprobe."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from helpers import ffmpeg_reference
from helpers.ffmpeg import ffprobe_column
from helpers.ffmpeg_reference import Probed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

Records = dict[str, dict[str, Any]]
Truths = dict[str, Probed]

RANGES = {"tv": "limited", "pc": "full", None: None}

MAX_FRAME_SECONDS = 60
"""[seconds] Some headers state durations of days"""

KNOWN = {
    ("odd/unsupported_codec/vvc_400kbps_2s.mp4", "codec"): "ffprobe 5.1 does not know VVC",
    ("odd/unsupported_codec/vvc_400kbps_2s.mp4", "pixel_format"): "ffprobe 5.1 does not know VVC",
    ("odd/unsupported_codec/sample_fpcm_32le.mp4", "audio"): "ffprobe 5.1 does not know the box fpcm: no codec",
    (
        "odd/fragmented/sample_fragmented.mp4",
        "duration",
    ): "the header lies; libavformat 8 adds up fragments",
    ("odd/fragmented/sample_fragmented.mp4", "audio"): "the same",
    ("odd/sar/avc-ac3.mkv", "audio"): "the priming that the decoder discards: ffprobe 5.1 starts before it, 8 after it",
    ("odd/subtitles/sample_with_chapters.mkv", "audio"): "the same",
    ("odd/hls_text_offset/video-0000000072.ts", "average_fps"): "22 frames, of which libavformat 8 makes no average",
    ("odd/gif/circle.gif", "average_fps"): "libavformat 8 counts the last frame's duration",
    ("odd/gif/people-detection.gif", "average_fps"): "the same",
    ("odd/gif/smile.gif", "average_fps"): "one frame, of which 5.1 makes no rate",
    ("odd/gif/smile.gif", "nominal_fps"): "one frame",
    (
        "odd/vfr/fire2.mp4",
        "nominal_fps",
    ): "variable: ffprobe gives the clock, 90,000 Hz; libavformat guesses the average",
}
"""Where ffprobe 5.1 is not the truth: (file, fact) and why"""


REFUSED = {
    "odd/encrypted/prog_8s_enc_dashinit.mp4": ("encrypted", b"encv"),
    "odd/encrypted/short-cenc.mp4": ("encrypted", b"encv"),
    "odd/encrypted/subsample_encrypted_altref.webm": ("encrypted", b"\x47\xe2"),  # ContentEncKeyID
    "odd/legacy_codec/bug556821.ogv": ("truncated", b"OggS"),
}
"""Files whose packets ffprobe lists, and that cannot be decoded whole: cause, and bytes that show it"""

SHARED = {
    "odd/10bit/roadtrip-vp92-10bit.webm": "frames that are only referred to, in packets of their own",
    "odd/interlaced/CVFI2_SVA_C.264": "each field in a packet of its own",
    "odd/interlaced/Freh7_B.264": "the same",
}
"""Files with more packets than frames, and why: ffprobe has to decode them to count"""


def relative(value: float | None, expected: float | None) -> bool:
    if value is None or expected is None:
        return value is expected
    return math.isclose(value, expected, rel_tol=1e-5, abs_tol=1e-5)


@pytest.fixture(scope="module")
def scanned(corpus, run_cli, tmp_path_factory) -> Records:
    """The records of ``real`` and ``odd``, by "root/path"."""
    folder = tmp_path_factory.mktemp("scan")
    done = run_cli("scan", corpus / "real", corpus / "odd", "-o", folder / "index.json")
    assert (done.returncode, done.stderr) == (3, "")
    records = json.loads((folder / "index.json").read_text())["records"]
    return {f"{record['root']}/{record['path']}": record for record in records}


@pytest.fixture(scope="module")
def probed(corpus, scanned) -> Truths:
    """Output of ffprobe for the files in which it finds a video with packets and no fault of the container."""
    probes = ffmpeg_reference.map_in_threads(
        lambda name: ffmpeg_reference.probe(corpus / name, packets=True), list(scanned)
    )
    readable = {
        name: facts
        for name, facts in zip(scanned, probes, strict=True)
        if facts.video is not None
        and facts.video_packets
        and "partial file" not in facts.errors
        and name not in REFUSED
    }
    assert len(readable) > 205
    return readable


def differences(scanned: Records, probed: Truths, compare: Any) -> dict[str, Any]:
    """Files of which ``compare(record, facts)`` gives (ours, the truth) that differ."""
    pairs = {name: compare(scanned[name], facts) for name, facts in probed.items()}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def test_scan_reads_every_file_that_ffprobe_reads(scanned, probed):
    assert {name: scanned[name]["error"] for name in probed if scanned[name].get("error")} == {}


def test_files_that_scan_cannot_read_have_no_pictures(corpus, scanned, probed):
    """And the other way about: an error says what ffprobe finds."""
    for name in scanned.keys() - probed.keys() - REFUSED.keys():
        record, facts = scanned[name], ffmpeg_reference.probe(corpus / name, packets=True)
        expected = (
            "no-video" if facts.video is None else "no-frames" if not facts.video_packets else "truncated"
        )  # fmt: skip
        assert (name, record.get("error_cause")) == (name, expected)
        assert record.get("packets") is None


@pytest.mark.parametrize("name", REFUSED)
def test_files_that_ffprobe_lists_and_no_decoder_can_show(corpus, scanned, name):
    cause, sign = REFUSED[name]
    assert scanned[name]["error_cause"] == cause
    data = (corpus / name).read_bytes()
    assert sign in data
    if cause == "truncated":  # the last page is shorter than its table of segments says
        page = data[data.rindex(sign) :]
        table = page[27 : 27 + page[26]]
        assert len(page) < 27 + len(table) + sum(table)


# Packets


@pytest.fixture(scope="module")
def shown(probed) -> Truths:
    """Files each packet of which shows a frame, unless it is discarded."""
    assert probed.keys() > SHARED.keys()
    return {name: facts for name, facts in probed.items() if name not in SHARED}


@pytest.mark.parametrize("name", SHARED)
def test_files_with_more_packets_than_frames(corpus, scanned, name):
    is_key = ffprobe_column(corpus / name, "frame=key_frame", "-select_streams", "v")
    packets = scanned[name]["packets"]
    assert packets["num_frames"] == len(is_key) < packets["num_packets"]
    assert packets["keyframe_numbers"] == [number for number, value in enumerate(is_key) if value == "1"]


def check(scanned: Records, probed: Truths, fact: str, compare: Any) -> None:
    """``compare(record, facts)`` gives (ours, the truth, whether they agree); what is ``KNOWN`` must differ."""
    results = {name: compare(scanned[name], facts) for name, facts in probed.items()}
    wrong = {name: (ours, true) for name, (ours, true, agree) in results.items() if not agree}
    known = {name for name, about in KNOWN if about == fact}
    assert {name: pair for name, pair in wrong.items() if name not in known} == {}
    assert known - wrong.keys() == set(), "stale in KNOWN"


def of_word(word: str) -> Callable[[Probed], Any]:
    """Return the function of the value that ffprobe gives a word of the video."""
    return lambda facts: facts.video.get(word)


TRUTHS: dict[str, Callable[[Probed], Any]] = {
    "packets.num_packets": lambda facts: len(facts.video_packets),
    "packets.timestamp_source": lambda facts: facts.timestamp_source,
    "packets.num_frames": lambda facts: len(facts.shown()),
    "packets.start_seconds": lambda facts: pytest.approx(float(facts.shown()[0][0])),
    "packets.keyframe_pts_seconds": lambda facts: pytest.approx(
        [float(time) for time, is_key in facts.shown() if is_key], abs=1e-6
    ),
    "packets.keyframe_numbers": lambda facts: [number for number, (_, is_key) in enumerate(facts.shown()) if is_key],
    "header.codec": of_word("codec_name"),
    "header.pixel_format": of_word("pix_fmt"),
    "header.color_space": of_word("color_space"),
    "header.color_primaries": of_word("color_primaries"),
    "header.color_transfer": of_word("color_transfer"),
    "header.color_range": lambda facts: RANGES[facts.video.get("color_range")],
    "header.coded_width": of_word("width"),
    "header.coded_height": of_word("height"),
    "header.container": lambda facts: facts.container["format_name"],
    # A number is a profile that ffprobe has no name for
    "header.profile": lambda facts: None if facts.video.get("profile", "").isdigit() else facts.video.get("profile"),
    "header.sample_aspect_ratio": lambda facts: facts.video.get("sample_aspect_ratio", "1:1"),
}
"""Fact to its value by ffprobe"""


@pytest.mark.parametrize("fact", TRUTHS)
def test_facts_are_those_of_ffprobe(scanned, probed, shown, fact):
    part, name = fact.split(".")

    def compare(record: dict[str, Any], facts: Probed) -> tuple[Any, Any, bool]:
        ours, true = record[part][name], TRUTHS[fact](facts)
        return ours, true, ours == true

    of_packets = part == "header" or name in ("num_packets", "timestamp_source")
    check(scanned, probed if of_packets else shown, name, compare)


def test_packets_flagged_as_keyframes_are_all_there(scanned, shown):
    """Without any reading of times: one keyframe for each packet with K and without D."""
    flags = {name: [packet["flags"][:2] for packet in facts.video_packets] for name, facts in shown.items()}
    wrong = differences(
        scanned,
        shown,
        lambda r, facts: (
            len(r["packets"]["keyframe_numbers"]),
            sum(packet["flags"][:2] == "K_" for packet in facts.video_packets),
        ),
    )
    assert wrong == {}
    assert any("D" in flag for flags_of_one in flags.values() for flag in flags_of_one), "some edit list discards"


def test_duration(scanned, shown):
    """From the first frame's time to the last one's, and one frame more.

    That frame lasts for the median step, or at the stated rate. Where the container states a longer one (ffprobe has it
    as the duration of the track), it lasts up to the end of the track.
    """

    def of(facts: Probed) -> float:
        times = sorted({time for time, _ in facts.shown()})
        steps = sorted(b - a for a, b in itertools.pairwise(times))
        middle = len(steps) // 2
        median = (steps[middle] + steps[~middle]) / 2 if steps else 1 / Fraction(facts.video["r_frame_rate"])
        packets = facts.video_packets
        is_shown_last = facts.timestamp_source == "pts" and packets[-1]["pts"] == max(
            packet["pts"] for packet in packets
        )
        stated = Fraction(facts.video.get("duration", 0)) - times[-1] if is_shown_last else 0
        return float(times[-1] - times[0] + (stated if 1.5 * median < stated < MAX_FRAME_SECONDS else median))

    wrong = differences(
        scanned, shown, lambda r, facts: (r["packets"]["duration_seconds"], pytest.approx(of(facts), abs=1e-5))
    )
    assert wrong == {}


def test_a_raw_stream_is_steady(scanned, probed):
    raw = [name for name, facts in probed.items() if facts.timestamp_source == "rate"]
    assert len(raw) > 10
    assert [name for name in raw if scanned[name]["packets"]["variable_frame_rate"]] == []


# Headers


def test_header_bit_depth(scanned, probed):
    """As the name of the pixel format has it; encrypted files have none."""

    def compare(record: dict[str, Any], facts: Probed) -> tuple[Any, Any]:
        name = record["header"]["pixel_format"]
        deep = re.search(r"p(\d\d)(le|be)$", name or "")
        return record["header"]["bit_depth"], None if name is None else int(deep[1]) if deep else 8

    assert differences(scanned, probed, compare) == {}
    assert {record["header"]["bit_depth"] for record in scanned.values() if record.get("header")} == {8, 10, None}


@pytest.mark.parametrize(("fact", "word"), [("average_fps", "avg_frame_rate"), ("nominal_fps", "r_frame_rate")])
def test_header_rate(scanned, probed, fact, word):
    """Raw streams state no average: there ffprobe 5.1 counts what it has read, fields as frames."""

    def compare(record: dict[str, Any], facts: Probed) -> tuple[Any, Any, bool]:
        is_raw = facts.timestamp_source == "rate"
        num, den = map(int, facts.video["r_frame_rate" if is_raw else word].split("/"))
        ours, true = record["header"][fact], num / den if den and num else None
        return ours, true, relative(ours, true)

    check(scanned, probed, fact, compare)


def test_header_duration(scanned, probed):
    """Programme streams state none: there both guess from the packets they have looked at."""

    def compare(record: dict[str, Any], facts: Probed) -> tuple[Any, Any, bool]:
        said = facts.video.get("duration", facts.container.get("duration"))
        ours, true = record["header"]["header_duration_seconds"], None if said is None else float(said)
        return ours, true, facts.container["format_name"] == "mpeg" or relative(ours, true)

    check(scanned, probed, "duration", compare)


def test_header_number_of_frames(scanned, probed):
    """Where ffprobe has one."""

    def compare(record: dict[str, Any], facts: Probed) -> tuple[Any, Any]:
        ours = record["header"]["header_num_frames"]
        return ours, int(facts.video["nb_frames"]) if "nb_frames" in facts.video else ours

    assert differences(scanned, probed, compare) == {}


def matrix_of(facts: Probed) -> tuple[int, int, int, int]:
    """(a, b, c, d) of the display matrix, which ffprobe prints as three numbered rows."""
    for data in facts.video.get("side_data_list", []):
        if "displaymatrix" in data:
            rows = [line.split(":")[1].split() for line in data["displaymatrix"].strip().splitlines()]
            return int(rows[0][0]), int(rows[0][1]), int(rows[1][0]), int(rows[1][1])
    return 1, 0, 0, 1


def test_header_rotation(scanned, probed):
    """Degrees clockwise; ffprobe's word is counterclockwise. A point (p, q), q downwards, goes to (ap + cq, bp + dq):
    after a flip left to right or without, a clockwise turn by t has c = -sin t, d = cos t; a flip has ad < bc.
    """  # fmt: skip

    def compare(record: dict[str, Any], facts: Probed) -> tuple[Any, Any]:
        a, b, c, d = matrix_of(facts)
        turn = round(math.degrees(math.atan2(-c, d))) % 360
        return (record["header"]["rotation"], record["header"]["mirrored"]), (turn, a * d < b * c)

    assert differences(scanned, probed, compare) == {}
    plain = {
        name: int(data["rotation"])
        for name, facts in probed.items()
        for data in facts.video.get("side_data_list", [])
        if "rotation" in data and not scanned[name]["header"]["mirrored"]
    }
    assert {name: scanned[name]["header"]["rotation"] for name in plain} == {n: -r % 360 for n, r in plain.items()}
    assert {-rotation % 360 for rotation in plain.values()} >= {90, 180, 270}


def test_header_display_size(scanned, probed):
    def compare(record: dict[str, Any], facts: Probed) -> tuple[Any, Any]:
        header, video = record["header"], facts.video
        aspect = Fraction(video.get("sample_aspect_ratio", "1:1").replace(":", "/"))
        size = (round(video["width"] * aspect), video["height"])
        _, b, _, _ = matrix_of(facts)
        return (header["display_width"], header["display_height"]), size[::-1] if b else size

    assert differences(scanned, probed, compare) == {}


def test_audio(scanned, probed):
    """One of the tracks that ffprobe lists: which, is for the player to say."""

    def compare(record: dict[str, Any], facts: Probed) -> tuple[Any, Any, bool]:
        tracks = [
            (
                stream.get("codec_name"),
                int(stream["sample_rate"]),
                stream["channels"],
                *(float(stream[word]) if word in stream else None for word in ("duration", "start_time")),
            )
            for stream in facts.streams
            if stream["codec_type"] == "audio"
        ]
        audio = record.get("audio")
        if audio is None:
            return None, tracks, not tracks
        ours = tuple(
            audio[word] for word in ("codec", "sample_rate_hz", "num_channels", "duration_seconds", "start_seconds")
        )
        agree = any(ours[:3] == track[:3] and all(map(relative, ours[3:], track[3:])) for track in tracks)
        return ours, tracks, agree

    check(scanned, probed, "audio", compare)
