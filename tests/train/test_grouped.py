"""Samples of several streams: each picture draws the millisecond at which it is shown, and the test reads it again."""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from helpers.inline import HERE

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402

import chordcache as cc  # noqa: E402
from chordcache.features.read_side import EncodedFrames  # noqa: E402

# More workers than processors are not a fault here; the tests want two on any machine
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes:UserWarning")

REPOSITORY = Path(__file__).resolve().parents[2]

BITS, CELL = 16, 8
"""Binary digits of the millisecond in a picture, each a cell of so many pixels, white or black"""

RATE = 8000
"""[Hz] of the sound, whose sample at millisecond m has the amplitude m / 20,000"""


def times(fps: float, num_frames: int, start: float = 0.0) -> list[int]:
    """Return times of frames [ms] at one rate."""
    return [round(1000 * (start + n / fps)) for n in range(num_frames)]


def write_clock(path: Path, milliseconds: Sequence[int], *, sound: bool = False) -> None:
    """Write a video whose frames draw their times, and whose sound rises with time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        video: Any = container.add_stream("libx264", options={"crf": "12", "g": "12"})
        video.width, video.height, video.pix_fmt = BITS * CELL, 16, "yuv420p"
        video.time_base = video.codec_context.time_base = Fraction(1, 1000)
        audio: Any = container.add_stream("flac", rate=RATE, layout="mono") if sound else None
        for millisecond in milliseconds:
            digits = [millisecond >> bit & 1 for bit in range(BITS)]
            picture = np.repeat(np.array(digits, np.uint8) * 255, CELL)[None, :, None]
            frame = av.VideoFrame.from_ndarray(np.broadcast_to(picture, (16, BITS * CELL, 3)).copy(), "rgb24")
            frame.pts, frame.time_base = millisecond, Fraction(1, 1000)
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
        if sound:
            samples = np.arange(milliseconds[-1] * RATE // 1000) * 32768 * 1000 // (RATE * 20_000)
            heard = av.AudioFrame.from_ndarray(samples.astype(np.int16)[None], "s16", "mono")
            heard.sample_rate, heard.pts = RATE, 0
            container.mux(audio.encode(heard))
            container.mux(audio.encode(None))


def drawn(frames: torch.Tensor) -> np.ndarray:
    """Return the times that frames draw [ms]."""
    row = frames.float().mean(1)[:, 8].reshape(len(frames), BITS, CELL).mean(-1)
    return ((row > 127).long() << torch.arange(BITS)).sum(1).numpy()


STREAMS = {
    "front": times(30, 180),
    "slow": times(24, 140),
    "late": times(25, 140, start=0.37),
    "short": times(30, 100, start=0.011),
    "dropped": [t for n, t in enumerate(times(30, 180)) if n % 7 not in (2, 3)],
    "variable": sorted({round(6000 * (n / 110) ** 1.3) for n in range(110)}),
}
"""Times of the frames of each stream [ms]"""


def build(folder: Path, rows: Sequence[str], config: str = "features: {waveform: {sample_rate: null}}") -> Path:
    """Build a cache of an index with groups and streams."""
    (folder / "index.csv").write_text("path,group,stream,label\n" + "".join(f"{row}\n" for row in rows))
    (folder / "config.yaml").write_text(config)
    summary = cc.build(folder / "index.csv", folder / "cache", config=folder / "config.yaml", jobs=HERE)
    assert summary.num_failed == 0
    return folder / "cache"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two groups of all streams, of one recording each."""
    folder, rows = tmp_path_factory.mktemp("grouped"), []
    for group in ("day", "night"):
        for stream, milliseconds in STREAMS.items():
            write_clock(folder / group / f"{stream}.mp4", milliseconds, sound=stream in ("front", "late"))
            rows.append(f"{group}/{stream}.mp4,{group},{stream},{group if stream == 'front' else 'other'}")
    return build(folder, rows)


def dataset(cache: Path, **settings: Any) -> cc.ChordVideoDataset:
    sampler = cc.RandomClipSampler(num_frames=8, fps=12)
    return cc.ChordVideoDataset(cache, **{"clip_sampler": sampler, "size": None, "clips_per_video": 6, **settings})


@pytest.mark.parametrize("first", STREAMS)
def test_each_stream_has_the_frame_that_is_shown_at_the_times_of_the_first(cache: Path, first: str) -> None:
    names = (first, *(name for name in STREAMS if name != first))
    grouped = cc.group(dataset(cache), streams=names)
    assert len(grouped) == 12
    for sample in (grouped[epoch, index] for epoch in range(3) for index in range(len(grouped))):
        wanted = drawn(sample["frames"][first])
        assert sample["group"] == ("day", "night")[int(sample["sample_id"].split(":")[1]) // 6]
        for name in names:
            shown, all_times = drawn(sample["frames"][name]), np.array(STREAMS[name])
            half = np.median(np.diff(all_times)) / 2 + 1
            np.testing.assert_allclose(sample["pts_seconds"][name].numpy() * 1000, shown, atol=1)
            following = all_times[np.minimum(np.searchsorted(all_times, shown) + 1, len(all_times) - 1)]
            assert np.all(shown <= wanted + half), name
            assert np.all((wanted < following + half) | (following == shown)), name
            if name in ("front", "slow", "late", "short"):
                assert np.abs(shown - wanted).max() <= half


def test_clips_stay_within_the_seconds_that_all_streams_have(cache: Path) -> None:
    grouped = cc.group(dataset(cache), streams=("front", "late", "short"))
    seen = np.concatenate([drawn(grouped[e, i]["frames"]["front"]) for e in range(20) for i in range(len(grouped))])
    stop = STREAMS["short"][-1] + 33
    assert 370 - 33 <= seen.min() < 450
    assert stop - 150 < seen.max() <= stop


def test_sound_is_of_the_same_seconds(cache: Path) -> None:
    heard = {"features": ("frames", "waveform"), "videos": lambda video: video.extra["stream"] in ("front", "late")}
    grouped = cc.group(dataset(cache, **heard))
    for index in range(len(grouped)):
        front, late = (grouped[0, index]["waveform"][name].numpy() for name in ("front", "late"))
        np.testing.assert_allclose(front, late, atol=2e-4)  # 0.05 ms is 2.5e-6: no sample is off by one, or by a frame
        begin = grouped[0, index]["pts_seconds"]["front"][0].item()
        assert front[0] == pytest.approx(begin / 20, abs=2e-4)


def test_crops_are_the_same_in_all_streams(cache: Path) -> None:
    crop = cc.crops.RandomResizedCrop((16, 64), scale=(0.3, 0.6))
    grouped = cc.group(dataset(cache, crop=crop, size="default"), streams=("front", "dropped"))
    of_frames = [grouped[0, index]["frames"] for index in range(12)]
    same = [torch.equal(frames["front"][0], frames["dropped"][0]) for frames in of_frames]
    assert sum(same) >= 6  # the others begin with a frame that was dropped
    whole = [frames["front"][0, 0].float().mean() for frames in of_frames]
    assert len({float(mean) for mean in whole}) > 6


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_every_loader_gives_the_same_batches(cache: Path, start_method: str) -> None:
    grouped = cc.group(dataset(cache), streams=("front", "slow"))
    order = {"sampler": cc.ChordSampler(grouped, shuffle=False, batch_size=4)}
    loaders = [
        cc.ClipLoader(grouped, batch_size=4, num_threads=2, shuffle=False),
        cc.make_loader(grouped, batch_size=4, num_workers=2, shuffle=False, start_method=start_method),
        DataLoader(grouped, batch_size=4, collate_fn=cc.collate, **order),
    ]
    plain = [cc.collate([grouped[0, i] for i in range(start, start + 4)]) for start in (0, 4, 8)]
    for loader in loaders:
        loader_batches = list(loader)
        assert len(loader_batches) == 3
        for batch, expected in zip(loader_batches, plain, strict=True):
            assert batch["group"] == expected["group"]
            for name in grouped.streams:
                assert batch["frames"][name].shape == (4, 8, 3, 16, BITS * CELL)
                assert torch.equal(batch["frames"][name], expected["frames"][name])
                assert torch.equal(batch["lengths"]["frames"][name], expected["lengths"]["frames"][name])


def test_it_is_a_dataset_as_others(cache: Path) -> None:
    grouped = cc.group(dataset(cache), streams=("front", "slow"))
    assert grouped.label_ids.tolist() == [grouped.classes.index(name) for name in ["day"] * 6 + ["night"] * 6]
    joined = cc.concat([grouped, cc.subset(grouped, [7, 3])])
    assert torch.equal(joined[1, 12]["frames"]["slow"], grouped[1, 7]["frames"]["slow"])
    copy = pickle.loads(pickle.dumps(grouped))
    assert torch.equal(copy[2, 5]["frames"]["slow"], grouped[2, 5]["frames"]["slow"])
    loader = cc.ClipLoader(grouped, batch_size=2)
    iterator = iter(loader)
    ids = [name for _ in range(2) for name in next(iterator)["sample_id"]]
    resumed = cc.ClipLoader(grouped, batch_size=2)
    resumed.load_state_dict(loader.state_dict())
    ids += [name for batch in resumed for name in batch["sample_id"]]
    assert sorted(ids) == sorted(f"0:{index}" for index in range(len(grouped)))
    of_ranks = [cc.ChordSampler(grouped, world_size=2, rank=rank, batch_size=2) for rank in range(2)]
    assert sorted(index for sampler in of_ranks for _, index in sampler) == list(range(len(grouped)))


def test_segments_count_from_their_start(tmp_path: Path) -> None:
    write_clock(tmp_path / "a.mp4", times(30, 240))
    write_clock(tmp_path / "b.mp4", times(25, 200))
    rows = ["a.mp4,g,by_time,,1.5,4.5,,", "b.mp4,g,by_later_time,,2.0,5.0,,", "a.mp4,g,by_frame,,,,60,150"]
    header = "path,group,stream,label,start_seconds,end_seconds,start_frame,end_frame\n"
    (tmp_path / "index.csv").write_text(header + "".join(f"{row}\n" for row in rows))
    assert cc.build(tmp_path / "index.csv", tmp_path / "cache", jobs=HERE).num_done == 3
    grouped = cc.group(dataset(tmp_path / "cache"), streams=("by_time", "by_later_time", "by_frame"))
    for index in range(len(grouped)):
        frames = grouped[0, index]["frames"]
        first = drawn(frames["by_time"])
        assert np.abs(drawn(frames["by_later_time"]) - (first + 500)).max() <= 21
        assert np.abs(drawn(frames["by_frame"]) - (first + 500)).max() <= 1


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        (["a.mp4,g,x,", "b.mp4,g,x,"], {}, "stream: got 'x' twice in group 'g', for"),
        (["a.mp4,g,x,", "b.mp4,,y,"], {}, "group: got none for video 'b-"),
        (["a.mp4,g,x,", "b.mp4,g,,"], {}, "stream: got none for video 'b-"),
        (
            ["a.mp4,g,x,", "b.mp4,h,y,"],
            {},
            "streams: got no video of y in group 'g', one of 2 that lack a stream among 2 groups",
        ),
        (["a.mp4,g,x,", "b.mp4,h,y,"], {"missing": "skip"}, "streams: got no video of y in group 'g'"),
        (["a.mp4,g,x,", "b.mp4,g,y,"], {"missing": "zeros"}, "missing: got 'zeros' in a dataset to group"),
        (["a.mp4,g,x,", "b.mp4,g,y,"], {"streams": ("x", "z")}, "streams: got ['z'], expected some of x, y"),
        (["a.mp4,g,x,", "later.mp4,g,y,"], {}, "streams: got x 0.000 to 0.800 s, y 5.000 to 5.800 s in group 'g'"),
    ],
)
def test_groups_that_do_not_fit(tmp_path: Path, rows: list[str], settings: dict[str, Any], message: str) -> None:
    for name, start in (("a", 0.0), ("b", 0.0), ("later", 5.0)):
        if any(row.startswith(name) for row in rows):
            write_clock(tmp_path / f"{name}.mp4", times(25, 20, start))
    cache = build(tmp_path, rows, "frames: {}")
    streams = settings.pop("streams", None)
    with pytest.raises(cc.ChordcacheError) as raised:
        cc.group(dataset(cache, **settings), streams)
    assert message in str(raised.value)


def test_paths_name_groups_and_streams(cache: Path) -> None:
    by_column = cc.group(dataset(cache), ("front", "slow"))
    by_path = cc.group(dataset(cache), ("front", "slow"), pattern=r"(?P<group>\w+)/(?P<stream>\w+)\.mp4")
    assert [by_path[0, i]["group"] for i in range(12)] == [by_column[0, i]["group"] for i in range(12)]
    assert torch.equal(by_path[0, 3]["frames"]["slow"], by_column[0, 3]["frames"]["slow"])
    for wrong, message in (
        ("(", "expected a regular expression"),
        (r"(?P<group>.*)", "expected one with the groups"),
        (r"(?P<group>day)/(?P<stream>.*)", "does not match 'night/"),
    ):
        with pytest.raises(cc.UsageError, match=message.replace("?", r"\?").replace("(", r"\(")):
            cc.group(dataset(cache), pattern=wrong)


def test_a_group_that_lacks_a_stream_can_be_left_out(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write_clock(tmp_path / f"{name}.mp4", times(25, 20))
    cache = build(tmp_path, ["a.mp4,g,x,", "b.mp4,g,y,", "c.mp4,h,x,"], "frames: {}")
    grouped = cc.group(dataset(cache, missing="skip"))
    assert len(grouped) == 6
    assert {grouped[i]["group"] for i in range(6)} == {"g"}


def test_what_cannot_be_grouped(cache: Path) -> None:
    whole = dataset(cache)
    for wrong in (cc.subset(whole, [0]), cc.group(whole), "cache"):
        with pytest.raises(cc.UsageError, match="expected a ChordVideoDataset. Group it before concat or subset"):
            cc.group(wrong)


def test_the_page_of_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for run in ("run7", "run8"):
        for stream, fps in (("front", 30), ("wrist", 25)):
            write_clock(tmp_path / run / f"{stream}.mp4", times(fps, 3 * fps))
    build(
        tmp_path,
        [f"{run}/{s}.mp4,{run},{s},lift" for run in ("run7", "run8") for s in ("front", "wrist")],
        "frames: {}",
    )
    monkeypatch.chdir(tmp_path)
    page, _, _ = (REPOSITORY / "docs" / "streams.md").read_text(encoding="utf-8").partition("## Numbers beside")
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S):
        exec(block, names)
    assert names["batch"]["frames"]["wrist"].shape == (2, 8, 3, 64, 64)


def test_what_takes_one_tensor_of_frames_says_so(cache: Path) -> None:
    grouped = cc.group(dataset(cache), ("front", "slow"))
    batch = next(iter(cc.ClipLoader(grouped, batch_size=2)))
    with pytest.raises(cc.UsageError, match="frames: got a dict of front, slow, expected the tensor of one stream"):
        cc.BatchAugment()(batch)
    assert cc.BatchAugment()({**batch, "frames": batch["frames"]["slow"]})["frames"].dtype == torch.float32
    with pytest.raises(cc.UsageError, match="decode: got 'cuda' for a dataset of groups"):
        grouped.read_samples([0], [EncodedFrames])
