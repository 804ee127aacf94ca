"""Facts of pictures: an identity that copies of the stream keep, and the hard cuts of drawn shots."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from helpers import ffmpeg_reference
from helpers.ffmpeg import ffmpeg, ffprobe
from helpers.scenes import planes_of, scene

from chordcache.errors import MediaError
from chordcache.media.activity import ContentMeter
from chordcache.media.decoding import DecodedFrame, decode_frames
from chordcache.media.demux import open_media
from chordcache.media.picture_facts import mirrored
from chordcache.records import ContentFacts

Pictures = list[np.ndarray]


def facts_of(path: Path) -> ContentFacts:
    meter = ContentMeter()
    with open_media(str(path)) as media:
        for frame in decode_frames(media):
            meter.add_frame(frame)
    return meter.facts()


def facts_of_pictures(pictures: Sequence[np.ndarray], times: Sequence[float] | None = None) -> ContentFacts:
    """Measure gray pictures, at 25 per second by default."""
    meter = ContentMeter()
    seconds = [number / 25 for number in range(len(pictures))] if times is None else times
    for number, picture in enumerate(pictures):
        meter.add_frame(DecodedFrame(number, seconds[number], av.VideoFrame.from_ndarray(picture, "gray")))
    return meter.facts()


# Identity


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """A clip with B-frames, at a rate whose frames no millisecond divides."""
    path = tmp_path_factory.mktemp("drawn") / "a.mp4"
    pictures = scene(1, 40)
    return make_video(path, num_frames=40, size=(96, 64), fps=30, planes=planes_of(pictures), options={"bf": "2"})


@pytest.mark.parametrize("suffix", ["mkv", "mp4", "ts", "nut"])
def test_a_remux_has_the_same_id(drawn: Path, tmp_path: Path, suffix: str) -> None:
    copy = tmp_path / f"other name.{suffix}"
    ffmpeg("-i", drawn, "-c", "copy", "-metadata", "title=another", copy)
    one, other = facts_of(drawn), facts_of(copy)
    assert len(one.content_id) == 32
    assert other.content_id == one.content_id
    assert other.second_hashes == one.second_hashes != ""


def test_another_frame_order_or_time_is_another_id() -> None:
    pictures, times = scene(1, 30), [number / 25 for number in range(30)]
    swapped = [*pictures[:9], pictures[10], pictures[9], *pictures[11:]]
    changed = [*pictures[:12], pictures[12] ^ 1, *pictures[13:]]
    late = [*times[:20], times[20] + 0.03, *times[21:]]
    gap = [*times[:20], *[time + 0.04 for time in times[20:]]]
    ids = {
        "same": facts_of_pictures(pictures, times).content_id,
        "swapped": facts_of_pictures(swapped, times).content_id,
        "changed": facts_of_pictures(changed, times).content_id,
        "shorter": facts_of_pictures(pictures[:-1], times[:-1]).content_id,
        "late": facts_of_pictures(pictures, late).content_id,
        "gap": facts_of_pictures(pictures, gap).content_id,
        "slower": facts_of_pictures(pictures, [2 * time for time in times]).content_id,
    }
    assert len(set(ids.values())) == len(ids), ids


def test_videos_of_one_frame_have_ids_of_their_own() -> None:
    one, other = (facts_of_pictures(scene(seed, 1)) for seed in (1, 2))
    assert one.content_id != other.content_id
    assert {len(facts.content_id) for facts in (one, other)} == {32}
    assert len(one.second_hashes) == 16
    assert facts_of_pictures([]).content_id == ""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_remuxes_of_the_corpus_have_the_same_ids(corpus: Path, tmp_path: Path) -> None:
    """Where ffprobe counts as many frames in the copy. An edit list is lost, and the frames that it hides are shown."""

    def unequal(path: Path) -> dict[str, object]:
        ids = {"source": facts_of(path).content_id}
        num_shown = len(ffmpeg_reference.probe(path, packets=True).shown())
        for suffix in ("mkv", "mp4", "ts"):
            copy = tmp_path / f"{path.parent.name}_{path.name}.{suffix}"
            try:
                ffmpeg("-i", path, "-map", "0:v:0", "-c", "copy", copy)
                probed = ffmpeg_reference.probe(copy, packets=True)
                if probed.video_packets and len(probed.shown()) == num_shown:
                    ids[suffix] = facts_of(copy).content_id
            except (
                AssertionError,
                MediaError,
                MemoryError,
            ):  # the container loses the header of the codec, or its times
                continue
            finally:
                copy.unlink(missing_ok=True)
        compared.append(len(ids) - 1)
        return {str(path): ids} if len(set(ids.values())) > 1 else {}

    compared: list[int] = []
    paths = sorted(path for path in (corpus / "real").rglob("*") if path.is_file())
    differences = ffmpeg_reference.map_in_threads(unequal, [path for path in paths if ffprobe_has_video(path)])
    assert sum(compared) > 200
    assert {name: ids for one in differences for name, ids in one.items()} == {}


def ffprobe_has_video(path: Path) -> bool:
    return bool(ffprobe(path, "stream=index", "-select_streams", "v:0")["streams"])


# Hashes of seconds


def test_the_mirrored_hash_is_that_of_the_mirrored_picture() -> None:
    pictures = scene(3, 60)
    one, other = (
        np.frombuffer(bytes.fromhex(facts_of_pictures(shown).second_hashes), ">u8").astype(np.uint64)
        for shown in (pictures, [np.ascontiguousarray(picture[:, ::-1]) for picture in pictures])
    )
    assert len(one) == 3
    differing = [bin(int(bits)).count("1") for bits in mirrored(one) ^ other]
    assert max(differing) <= 2  # blocks of equal brightness
    assert np.array_equal(mirrored(mirrored(one)), one)


def test_a_black_second_has_no_hash() -> None:
    black = [np.full((64, 96), 3, np.uint8)] * 25
    hashes = facts_of_pictures([*scene(1, 25), *black, *scene(2, 30)]).second_hashes
    assert [hashes[start : start + 16] == "0" * 16 for start in range(0, len(hashes), 16)] == [False, True, False]


# Cuts


def frames_of_cuts(pictures: Sequence[np.ndarray]) -> list[int]:
    return [round(seconds * 25) for seconds in facts_of_pictures(pictures).cuts_seconds]


def flash(num_frames: int, *, fades: bool = False) -> Pictures:
    """Return a scene with bright pictures in it, the later the less bright if the flash fades."""
    pictures = scene(1, 40)
    for number in range(num_frames):
        share = (1 - number / (num_frames + 1)) if fades else 1
        bright = pictures[15 + number] / 4 + 190
        pictures[15 + number] = (share * bright + (1 - share) * pictures[15 + number]).astype(np.uint8)
    return pictures


def shaking() -> Pictures:
    """Return a scene of a camera that jumps up to 6 pixels from frame to frame."""
    jumps = np.random.default_rng(5).integers(0, 7, (60, 2))
    large = scene(1, 60, size=(108, 76))
    return [np.ascontiguousarray(large[i][y : y + 64, x : x + 96]) for i, (x, y) in enumerate(jumps)]


@pytest.mark.parametrize("lengths", [(30, 12, 7, 41), (5, 5, 30), (60, 60)], ids=str)
def test_cuts_are_where_clips_are_joined(lengths: tuple[int, ...]) -> None:
    shots = [scene(seed, length) for seed, length in enumerate(lengths)]
    assert frames_of_cuts([*itertools.chain(*shots)]) == [*itertools.accumulate(lengths)][:-1]


@pytest.mark.parametrize(
    "pictures",
    [
        *[pytest.param(flash(length), id=f"flash of {length}") for length in (1, 2, 3)],
        *[pytest.param(flash(length, fades=True), id=f"fading flash of {length}") for length in (2, 3)],
        pytest.param(scene(1, 60, speed=9), id="pan"),
        pytest.param(shaking(), id="shake"),
        pytest.param([picture for picture in scene(1, 30, speed=8) for _ in range(2)], id="each frame twice"),
        pytest.param([picture for picture in scene(1, 20, speed=8) for _ in range(3)], id="each frame thrice"),
        pytest.param([np.zeros((64, 96), np.uint8)] * 30, id="black"),
        pytest.param(scene(1, 1), id="one frame"),
        pytest.param(scene(1, 2), id="two frames"),
        pytest.param([(picture * (i / 30)).astype(np.uint8) for i, picture in enumerate(scene(1, 30))], id="fade"),
    ],
)
def test_one_shot_has_no_cut(pictures: Pictures) -> None:
    assert frames_of_cuts(pictures) == []


def test_cuts_among_repeated_frames_and_beside_flashes() -> None:
    repeated = [picture for shot in (scene(1, 15), scene(2, 20)) for picture in shot for _ in range(2)]
    assert frames_of_cuts(repeated) == [30]
    assert frames_of_cuts([*flash(2), *scene(2, 30)]) == [40]


def test_cuts_around_a_change_of_resolution() -> None:
    large = [cv2.resize(picture, (320, 90)) for picture in [*scene(3, 20), *scene(4, 20)]]
    assert frames_of_cuts([*scene(1, 20), *scene(2, 20), *large]) == [20, 60]


def test_cuts_of_an_encoded_file_in_a_limited_range_and_ten_bits(
    make_video: Callable[..., Path], tmp_path: Path
) -> None:
    shots = [*scene(1, 20), *scene(2, 25), *scene(3, 15)]
    for name, pixel_format in (("8.mp4", "yuv420p"), ("10.mkv", "yuv420p10le")):
        path = make_video(
            tmp_path / name, num_frames=60, size=(96, 64), pixel_format=pixel_format, planes=planes_of(shots)
        )
        assert facts_of(path).cuts_seconds == pytest.approx((0.8, 1.8), abs=2e-3)
