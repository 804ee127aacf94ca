"""Numbers on a clock of their own: each value of a sample is found again in the table by brute force."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from helpers.lists import write  # noqa: E402

import chordcache as cc  # noqa: E402
from chordcache.config.config import config_from_json  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[2]
DTYPES = ("float16", "float32", "float64", "int8", "int64", "uint16", "bool")
NUM_FRAMES, FPS = 30, 25

pytestmark = pytest.mark.usefixtures("inline")

MakeVideo = Callable[..., Path]


def table_of(num_rows: int, rate: float, **columns: Any) -> dict[str, Any]:
    """Return a table with times that are not even."""
    seconds = np.arange(num_rows) / rate
    seconds[1:-1] += np.random.default_rng(1).uniform(-0.2, 0.2, num_rows - 2) / rate
    return {"timestamp": seconds, "x": np.sin(np.arange(num_rows)), **columns}


def write_table(path: Path, columns: Mapping[str, Any]) -> Path:
    """Write columns of numbers [shape=(n, ...)] as Parquet or CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        rows = zip(*columns.values(), strict=True)
        path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]))
        return path
    arrays = {}
    for name, values in columns.items():
        array = pa.array(np.asarray(values).reshape(-1)) if isinstance(values, np.ndarray) else pa.array(values)
        for length in np.shape(values)[:0:-1] if isinstance(values, np.ndarray) else ():
            array = pa.FixedSizeListArray.from_arrays(array, length)
        arrays[name] = array
    pq.write_table(pa.table(arrays), path)
    return path


def build(
    folder: Path, rows: Sequence[str], columns: Sequence[str] = ("x",), header: str = "path,series", **settings: Any
) -> Any:
    """Build frames and series of a list. Return the summary."""
    write(folder / "list.csv", "\n".join([header, *rows]))
    config = config_from_json({"features": {"series": {"columns": [*columns], **settings}}})
    return cc.build(folder / "list.csv", folder / "cache", features=["frames", "series"], config=config)


def stored(folder: Path) -> dict[str, np.ndarray]:
    """Return the arrays of the one NPZ file of a cache."""
    (path,) = (folder / "cache" / "npz").rglob("*.npz")
    with np.load(path) as arrays:
        return dict(arrays)


def problem_of(folder: Path) -> dict[str, Any]:
    """Return the one line of the quarantine of a cache."""
    problem: dict[str, Any] = json.loads((folder / "cache" / "quarantine.jsonl").read_text())
    return problem


@pytest.fixture
def folder(tmp_path: Path, make_video: MakeVideo) -> Path:
    """A folder with a video of 1.2 s."""
    make_video(tmp_path / "a.mp4", num_frames=NUM_FRAMES, fps=FPS)
    return tmp_path


@pytest.mark.parametrize("shape", [(), (6,), (3, 4)], ids=str)
def test_dtype_and_shape_are_those_of_the_table(folder: Path, shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    values = {dtype: random.integers(0, 2, (40, *shape)).astype(dtype) for dtype in DTYPES}
    write_table(folder / "t.parquet", table_of(40, 30, **values))
    assert build(folder, ["a.mp4,t.parquet"], [*values, "x"]).num_done == 1
    arrays = stored(folder)
    assert np.array_equal(arrays["series"], table_of(40, 30)["timestamp"])
    with cc.open_cache(folder / "cache") as cache:
        for name, expected in values.items():
            for cached in (cache.read(0, f"series.{name}"), arrays[f"series.{name}"]):
                assert cached.dtype == expected.dtype
                assert len(cached) > 36
                assert np.array_equal(cached, expected[: len(cached)])


def test_a_csv_table(folder: Path) -> None:
    columns = table_of(40, 30, count=np.arange(40), run=np.repeat([6, 7], 20))
    columns["timestamp"] = np.tile(np.arange(20) / 15, 2)
    write_table(folder / "t.csv", columns)
    assert build(folder, ["a.mp4,t.csv#run=7"], ["x", "count"]).num_done == 1
    assert stored(folder)["series.count"].dtype == np.int64
    assert np.array_equal(stored(folder)["series.count"], np.arange(20, 40))
    assert np.array_equal(stored(folder)["series.x"], columns["x"][20:])


def expected_at(rows: np.ndarray, values: np.ndarray, time: float, how: str) -> Any:
    """Return the value of a scalar column at a time, by a search of all rows."""
    if how == "series.linear":
        return np.interp(time, rows, values.astype(np.float64))
    if how == "series.previous":
        early = [row for row, begins in enumerate(rows) if begins <= time + 0.1 * float(np.median(np.diff(rows)))]
        return values[early[-1] if early else 0]
    return values[min(range(len(rows)), key=lambda row: abs(rows[row] - time))]


@pytest.mark.parametrize("how", ["series", "series.previous", "series.linear"])
@pytest.mark.parametrize("rate", [7.3, 30, 200])
def test_values_are_those_at_the_times_of_the_frames(folder: Path, how: str, rate: float) -> None:
    random = np.random.default_rng(0).standard_normal((2, round(1.3 * rate))).astype(np.float32)
    table = table_of(random.shape[1], rate, x=random[0], y=random[1])
    write_table(folder / "t.parquet", table)
    build(folder, ["a.mp4,t.parquet"], ["x", "y"])
    deltas = [-0.3, -0.01, 0.0, 0.25]
    data = cc.ChordVideoDataset(
        folder / "cache", clip_sampler=cc.RandomClipSampler(4, stride=3), features=["frames", how], size=None,
        clips_per_video=4, delta_timestamps={"y": deltas},
    )  # fmt: skip
    rows, half = table["timestamp"], float(np.median(np.diff(table["timestamp"]))) / 2
    at = np.vectorize(lambda name, time: expected_at(rows, table[name], time, how))
    for number in range(len(data)):
        sample = data[0, number]
        times = sample["pts_seconds"].numpy()
        around = times[:, None] + deltas
        for name, moments in (("x", times), ("y", around)):
            assert sample[f"series.{name}"].dtype == torch.float32
            assert sample[f"series.{name}"].numpy() == pytest.approx(at(name, moments), abs=1e-6)
        is_pad = (around < rows[0] - half) | (around > rows[-1] + half)
        assert np.array_equal(sample["series.y_is_pad"].numpy(), is_pad)
    assert any(data[0, number]["series.y_is_pad"].any() for number in range(4))


def test_rows_of_the_seconds_of_frames(folder: Path) -> None:
    table = table_of(40, 30)
    write_table(folder / "t.parquet", table)
    build(folder, ["a.mp4,t.parquet"])
    with cc.open_cache(folder / "cache") as cache:
        for start, stop in ((0, NUM_FRAMES), (5, 6), (10, 20), (29, 30)):
            seconds, values = cache.read(0, "series", start, stop), cache.read(0, "series.x", start, stop)
            first = int(np.flatnonzero(table["timestamp"] == seconds[0])[0])
            assert np.array_equal(values, table["x"][first : first + len(values)])
            inside = (table["timestamp"] >= start / FPS) & (table["timestamp"] < stop / FPS)
            assert set(np.flatnonzero(inside)) <= set(range(first, first + len(values)))
            assert first == 0 or seconds[0] <= start / FPS < seconds[1]
        with pytest.raises(cc.UsageError, match="indices: got them for 'series.x', which has times of its own"):
            cache.read(0, "series.x", indices=[1])
        cc.export(folder / "cache", folder / "out", to="folder", clip=10)
        for name in ("series", "series.x"):
            (path,) = (folder / "out").rglob(f"*00001/{name}.npy")
            assert np.array_equal(np.load(path), cache.read(0, name, 10, 20))


def test_times_count_from_the_first_frame_of_a_segment(folder: Path) -> None:
    write_table(folder / "t.parquet", table_of(10, 20, n=np.arange(10)))
    header, rows = "path,start_seconds,end_seconds,series", ["a.mp4,0.4,0.8,t.parquet", "a.mp4,0.6,1,t.parquet"]
    assert build(folder, rows, ["n"], header).num_done == 2
    with cc.open_cache(folder / "cache") as cache:
        for video in cache:
            assert video.segment is not None
            assert cache.read(video, "series")[0] == video.start_seconds == video.segment.start_seconds
            assert np.array_equal(cache.read(video, "series.n"), np.arange(10))


GOOD = table_of(40, 30)
TIMES = GOOD["timestamp"]


def but(row: int, value: Any) -> list[Any]:
    """Return the values of the column with another one in a row."""
    return [value if number == row else float(x) for number, x in enumerate(GOOD["x"])]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (None, "'t.parquet' is not a table that can be read: No such file or directory"),
        (
            {"timestamp": TIMES},
            "'t.parquet' is not a table that can be read: it has 0 columns 'x', expected 1, such as one of timestamp",
        ),
        ({"x": GOOD["x"]}, "it has 0 columns 'timestamp', expected 1, such as one of x"),
        ({**GOOD, "x": but(4, float("nan"))}, "column 'x', row 5: got nan, expected a number"),
        ({**GOOD, "x": but(4, float("-inf"))}, "column 'x', row 5: got -inf, expected a number"),
        ({**GOOD, "x": but(6, None)}, "column 'x', row 7: got None, expected a number"),
        ({**GOOD, "x": ["a"] * 40}, "column 'x': got values of string, expected numbers, or lists of them"),
        (
            {**GOOD, "x": [[1.0, 2.0]] * 9 + [[1.0]] * 31},
            "column 'x', row 10: got 1 values, expected 2 as in the first",
        ),
        ({**GOOD, "x": [[1.0, 2.0]] * 9 + [None] * 31}, "column 'x', row 10: got 0 values, expected 2 as in the first"),
        ({**GOOD, "x": [[[1], [2]]] * 39 + [[[1], [2, 3]]]}, "column 'x', row 40: got 2 values, expected 1 as in the"),
        ({**GOOD, "x": [[1.0, 2.0]] * 8 + [[1.0, None]] * 32}, "column 'x', row 9: got None, expected a number"),
        ({**GOOD, "x": [[]] * 40}, "column 'x', row 1: got 0 values, expected 1 as in the first row"),
        ({**GOOD, "timestamp": np.append(TIMES[:39], 0.1)}, "column 'timestamp', row 40: got 0.1 s after 1.2"),
        ({**GOOD, "timestamp": np.repeat(TIMES[::2], 2)}, "row 2: got 0 s after 0 s, expected a later time in each"),
        ({**GOOD, "timestamp": np.full(40, np.nan)}, "column 'timestamp', row 1: got nan, expected a number"),
        ({**GOOD, "timestamp": TIMES[:, None]}, "column 'timestamp': got lists, expected a number of seconds"),
        ({name: v[:20] for name, v in GOOD.items()}, "row 20: got 0.6.. s as the nearest to frame 29 at 1.160 s"),
        ({name: v[:1] for name, v in GOOD.items()}, "'t.parquet' is not a table that can be read: it has 1 rows"),
        ({**GOOD, "timestamp": TIMES + 1.7e9}, "row 1: got 1700000000.000 s as the nearest to frame 0 at 0.000 s"),
        ({**GOOD, "timestamp": TIMES + (TIMES > 0.5)}, r"nearest to frame \d+ at 1.\d+ s, expected one at most 0.05"),
        (b"PAR1 and then something else", "'t.parquet' is not a table that can be read: "),
    ],
    ids=lambda value: value[:50] if isinstance(value, str) else "",
)
def test_a_table_that_is_wrong_is_named(folder: Path, columns: Any, message: str) -> None:
    if isinstance(columns, bytes):
        (folder / "t.parquet").write_bytes(columns)
    elif columns is not None:
        write_table(folder / "t.parquet", columns)
    assert build(folder, ["a.mp4,t.parquet"]).num_failed == 1
    problem = problem_of(folder)
    assert (problem["stage"], problem["cause"]) == ("series", "series")
    assert re.search(message.replace("(", r"\("), problem["message"]), problem["message"]
    write_table(folder / "t.parquet", GOOD)
    again = cc.BuildOptions(retry_quarantined=True)
    assert cc.build(folder / "cache" / "index.jsonl", folder / "cache", options=again).num_failed == 0


@pytest.mark.parametrize("place", ["../t.parquet", "/t.parquet", "link.parquet", "t.parquet#run=7", "t.parquet#x=two"])
def test_a_place_that_is_wrong_is_refused(folder: Path, tmp_path_factory: pytest.TempPathFactory, place: str) -> None:
    outside = write_table(tmp_path_factory.mktemp("outside") / "t.parquet", GOOD)
    (folder / "link.parquet").symlink_to(outside)
    write_table(folder / "t.parquet", GOOD)
    place = str(outside) if place.startswith("/") else place.replace("../", f"../{outside.parent.name}/")
    assert build(folder, [f"a.mp4,{place}"]).num_failed == 1
    assert problem_of(folder)["cause"] == "series"


def test_an_item_without_a_table_does_not_have_the_feature(folder: Path, make_video: MakeVideo) -> None:
    make_video(folder / "b.mp4", num_frames=NUM_FRAMES, fps=FPS)
    write_table(folder / "t.parquet", GOOD)
    assert build(folder, ["a.mp4,t.parquet", "b.mp4,"]).num_done == 2
    with pytest.raises(
        cc.NotFoundError, match="without series, such as .b-.*the index names no table of it in a column"
    ):
        cc.ChordVideoDataset(folder / "cache", features=["series"])
    assert len(cc.ChordVideoDataset(folder / "cache", features=["series"], missing="skip")) == 1


def test_larger_gaps_are_accepted_if_the_config_says_so(folder: Path) -> None:
    write_table(folder / "t.parquet", {name: values[:20] for name, values in GOOD.items()})
    assert build(folder, ["a.mp4,t.parquet"], max_gap_seconds=0.6).num_done == 1
    data = cc.ChordVideoDataset(folder / "cache", clip_sampler=cc.RegularClipSampler(2, stride=29), features=["series"])
    assert data[0]["series.x"].tolist() == [GOOD["x"][0], GOOD["x"][19]]


@pytest.mark.parametrize("tier", ["npz", "hdf5"])
def test_damage_and_changes_are_found(folder: Path, tier: str) -> None:
    table = write_table(folder / "t.parquet", GOOD)
    features = {"flow": None, "motion": None, "mel": None, "series": {"columns": ["x"]}}
    config = config_from_json({"features": features, "hdf5": {"features": ["series"]}})
    write(folder / "list.csv", "path,series\na.mp4,t.parquet\n")

    def built() -> list[Path]:
        cc.build(folder / "list.csv", folder / "cache", tiers=["lmdb", tier], config=config)
        with cc.open_cache(folder / "cache") as cache:
            return [folder / "cache" / file.name for file in cache[0].sidecar.files]

    first = built()
    assert built() == first
    assert cc.verify(folder / "cache", source=True).damage == []
    status = table.stat()
    write_table(table, {**GOOD, "x": np.array(but(30, 0.123))})
    os.utime(table, ns=(status.st_atime_ns, status.st_mtime_ns))
    (finding,) = cc.verify(folder / "cache", source=True).damage
    assert "'series.x' is not what its table has" in str(finding)
    os.utime(table)
    frames, series = built()
    assert frames == first[0]  # not made again
    data = bytearray(series.read_bytes())
    data[data.index(np.float64(0.123).tobytes())] ^= 1
    series.write_bytes(data)
    assert cc.verify(folder / "cache").damage[0].kind == "damaged"
    with cc.open_cache(folder / "cache") as cache, pytest.raises(cc.DamageError, match="row 30 of 'series.x'"):
        cache.read(0, "series.x")


def test_arguments_that_are_wrong(folder: Path) -> None:
    write_table(folder / "t.parquet", {**GOOD, "n": np.arange(40)})
    build(folder, ["a.mp4,t.parquet"], ["x", "n"])
    for features, deltas, message in (
        (["series"], {"y": [0.0]}, r"delta_timestamps: got 'y', expected some of x, n, the columns of video 'a-"),
        (["series"], {"x": []}, r"delta_timestamps: got \[\] for 'x'"),
        (["series"], {"x": [float("nan")]}, r"delta_timestamps: got \[nan\] for 'x'"),
        (["frames"], {"x": [0.0]}, "expected seconds from a frame, and the feature 'series'"),
        (["series.linear"], None, "got 'series.linear' with 'series.n' of int64, expected columns of floats"),
        (["series.linear", "series.previous"], None, "got 'series.linear' and 'series.previous', expected one of them"),
    ):
        with pytest.raises(cc.UsageError, match=message):
            cc.ChordVideoDataset(folder / "cache", features=features, delta_timestamps=deltas)[0]
    parts = [cc.ChordVideoDataset(folder / "cache", features=["series"], delta_timestamps={"x": [t]}) for t in (0, 1)]
    with pytest.raises(cc.UsageError, match="delta_timestamps"):
        cc.concat(parts)
    settings: dict[str, Any]
    for settings in ({"columns": []}, {"columns": "x"}, {"columns": ["a/b"]}, {"columns": ["a.offsets"]},
                     {"max_gap_seconds": 0}):  # fmt: skip
        with pytest.raises(cc.UsageError, match=f"features.series.{next(iter(settings))}: got"):
            config_from_json({"features": {"series": settings}})


CAMERAS = ("observation.images.front", "observation.images.wrist")
LENGTHS = (40, 25)


def write_robot(folder: Path, make_video: MakeVideo) -> dict[str, np.ndarray]:
    """Write a LeRobot dataset of version 3.0, in the types that its library writes. Return its numbers."""
    for camera in CAMERAS:
        make_video(folder / f"videos/{camera}/chunk-000/file-000.mp4", num_frames=sum(LENGTHS), fps=30, size=(96, 64))
    features = {camera: {"dtype": "video", "shape": [64, 96, 3]} for camera in CAMERAS}
    template = "chunk-{chunk_index:03d}/file-{file_index:03d}"
    info = {"codebase_version": "v3.0", "fps": 30, "features": features, "data_path": f"data/{template}.parquet",
            "video_path": "videos/{video_key}/" f"{template}.mp4"}  # fmt: skip
    write(folder / "meta" / "info.json", json.dumps(info))
    zeros, ends = [0] * len(LENGTHS), np.cumsum(LENGTHS)
    places = {"chunk_index": zeros, "file_index": zeros}
    times = {"from_timestamp": (ends - LENGTHS) / 30, "to_timestamp": ends / 30}
    episodes = {f"videos/{camera}/{name}": v for camera in CAMERAS for name, v in {**places, **times}.items()}
    episodes |= {f"data/{name}": values for name, values in places.items()}
    rows = {"episode_index": [0, 1], "tasks": [["lift"], ["place"]], "length": np.array(LENGTHS), **episodes}
    write_table(folder / "meta" / "episodes" / "chunk-000" / "file-000.parquet", rows)
    random = np.random.default_rng(0)
    names = ("observation.state", "action")
    numbers = {name: random.standard_normal((sum(LENGTHS), 6)).astype(np.float32) for name in names}
    frames = np.concatenate([np.arange(length) for length in LENGTHS])
    clock = {"timestamp": (frames / 30).astype(np.float32), "episode_index": np.repeat([0, 1], LENGTHS)}
    write_table(folder / "data" / "chunk-000" / "file-000.parquet", {**numbers, **clock})
    return numbers


def test_the_recipe_of_the_docs(
    tmp_path: Path, make_video: MakeVideo, run_cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples of a LeRobot dataset have the numbers of its rows. A row has the frame of the same number."""
    numbers = write_robot(tmp_path / "robot", make_video)
    monkeypatch.chdir(tmp_path)
    section = (REPOSITORY / "docs" / "streams.md").read_text(encoding="utf-8").partition("## Numbers beside")[2]
    commands, settings, code = re.findall(r"^```(?:|yaml|python)\n(.*?)^```", section, re.M | re.S)
    write(tmp_path / "series.yaml", settings)
    for command in commands.splitlines():
        assert run_cli(*command.split()[1:]).returncode == 0
    names: dict[str, Any] = {"cc": cc}
    exec(code, names)
    seen = set()
    for number in range(50):
        sample = names["robot"][number, number % 2]
        episode = int(sample["group"])
        first, length = sum(LENGTHS[:episode]), LENGTHS[episode]
        rows = np.rint(sample["pts_seconds"][CAMERAS[0]].numpy() * 30).astype(int)
        assert ((rows >= first) & (rows < first + length)).all()
        ahead = rows[:, None] + np.arange(16)
        for camera in CAMERAS:
            state, actions = sample["series.observation.state"][camera], sample["series.action"][camera]
            assert np.array_equal(state.numpy(), numbers["observation.state"][rows])
            assert np.array_equal(actions.numpy(), numbers["action"][np.minimum(ahead, first + length - 1)])
            assert np.array_equal(sample["series.action_is_pad"][camera].numpy(), ahead >= first + length)
        seen.add(episode)
    assert seen == {0, 1}
    shutil.rmtree(tmp_path / "robot")  # samples are of the cache alone
    assert names["robot"][0, 0]["series.action"][CAMERAS[1]].shape == (2, 16, 6)
