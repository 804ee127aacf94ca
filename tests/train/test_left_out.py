"""Videos that a dataset leaves out, and errors that it raises when it is made instead of in the middle of an epoch."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.inline import HERE
from helpers.training import make_dataset

import chordcache as cc
from chordcache.config.config import config_from_json
from chordcache.errors import NotFoundError, UsageError
from chordcache.storage.sidecar import Sidecar

CLIP = cc.RegularClipSampler(num_frames=4, stride=1)

CONFIG = config_from_json({"features": {"flow": None, "motion": None}})

PATHS = ("A/loud.mp4", "A/v_quiet_g08_c01.avi", "B/my clip.mp4", "B/abc-_1_000010_000020.mp4", "B/broken.mp4")
"""The first has sound, the last is cut off"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """A cache of four of five videos, of which one has sound. The fifth is in quarantine."""
    folder = tmp_path_factory.mktemp("left-out")
    for path in PATHS:
        codec = "mpeg4" if path.endswith(".avi") else "libx264"
        make_video(folder / "videos" / path, num_frames=8, codec=codec, audio=path == PATHS[0])
    broken = folder / "videos" / PATHS[-1]
    broken.write_bytes(broken.read_bytes()[:1000])
    (folder / "videos/list.csv").write_text("path,label\n" + "".join(f"{path},{path[0]}\n" for path in PATHS))
    summary = cc.build(folder / "videos/list.csv", folder / "cache", tiers=["lmdb", "npz"], config=CONFIG, jobs=HERE)
    assert (summary.num_done, summary.num_failed) == (4, 1)
    return folder


def dataset_of(cache: Any, **settings: Any) -> cc.ChordVideoDataset:
    """The dataset of a set of videos, or of the cache in a folder."""
    cache = cache / "cache" if isinstance(cache, Path) else cache
    return cc.ChordVideoDataset(cache, **{"clip_sampler": CLIP, "size": None, **settings})


def of_list(folder: Path, **settings: Any) -> Any:
    """The videos of the list that the cache is built from."""
    return cc.videos.indexed(folder / "videos/list.csv", folder / "cache", **settings)


def paths_of(dataset: cc.ChordVideoDataset, folder: Path) -> list[str]:
    path_of = dict(cc.open_cache(folder / "cache").catalog.paths())
    return [path_of[dataset[i]["video"]] for i in range(len(dataset))]


def split_of(folder: Path, text: str | bytes, name: str = "split.txt") -> Path:
    (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return folder / name


@pytest.mark.parametrize("way", ["index", "split file", "paths", "config"])
def test_a_video_in_quarantine_is_left_out_with_one_warning(folder: Path, tmp_path: Path, way: str) -> None:
    split = split_of(tmp_path, "\n".join(PATHS))
    train = {"source": {"name": "cache", "path": str(folder / "cache"), "videos": str(split)}}
    ways: dict[str, Callable[[], cc.ChordVideoDataset]] = {
        "config": lambda: make_dataset({"train": train}, clip_sampler=CLIP, size=None),
        "index": lambda: dataset_of(of_list(folder)),
        "paths": lambda: dataset_of(folder, videos=PATHS),
        "split file": lambda: dataset_of(folder, videos=split),
    }
    with pytest.warns(UserWarning, match=r"left out 1 of 5 videos: 1 in quarantine \(\w+ 1\). List them") as caught:
        dataset = ways[way]()
    assert len(caught) == 1
    assert caught[0].filename == __file__ or way == "config"
    assert paths_of(dataset, folder) == list(PATHS[:4])
    both = cc.concat([dataset, dataset])
    assert [both[i]["video"] for i in range(8)] == [dataset[i]["video"] for i in (0, 1, 2, 3, 0, 1, 2, 3)]


def test_no_sidecar_is_read_for_a_row_of_a_list(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    original = Sidecar.from_line
    monkeypatch.setattr(Sidecar, "from_line", lambda line, source: parsed.append(line) or original(line, source))
    with pytest.warns(UserWarning, match="left out"):
        dataset_of(folder, videos=split_of(tmp_path, "".join(f"{path} 1\n" for path in PATHS)))
    with pytest.warns(UserWarning, match="left out"):
        dataset_of(of_list(folder), missing="skip", features=("frames", "mel"))
    assert not parsed


def test_only_videos_in_quarantine(folder: Path) -> None:
    with (
        pytest.warns(UserWarning, match="1 of 1"),
        pytest.raises(UsageError, match="got no cached video among 1 names"),
    ):
        dataset_of(folder, videos=[PATHS[-1]])


def test_videos_that_are_not_built(folder: Path, tmp_path: Path, make_video: Callable[..., Path]) -> None:
    rows = "".join(f"{path}\n" for path in (*PATHS, "B/new.mp4"))
    index = split_of(folder / "videos", f"path\n{rows}", "more.csv")
    split = split_of(tmp_path, rows)
    with (
        pytest.warns(UserWarning, match="1 in quarantine"),
        pytest.raises(NotFoundError, match=r"got 1 of 5 videos not in .*B/new.mp4"),
    ):
        dataset_of(cc.videos.indexed(index, folder / "cache"))
    with pytest.raises(NotFoundError, match=r"line 6: got 'B/new.mp4'.* 1 of 6 names match no video.*on_miss='skip'"):
        dataset_of(folder, videos=split)
    reasons = r"left out 2 of 6 videos: 1 in quarantine \(\w+ 1\), 1 not cached, such as 'B/new.mp4'"
    for videos in (
        cc.videos.indexed(index, folder / "cache", on_miss="skip"),
        cc.videos.cached(folder / "cache", split, on_miss="skip"),
        cc.videos.cached(folder / "cache", rows.split("\n")[:-1], on_miss="skip"),
    ):
        with pytest.warns(UserWarning, match=reasons) as caught:
            dataset = dataset_of(videos)
        assert len(caught) == 1
        assert paths_of(dataset, folder) == list(PATHS[:4])


def test_a_source_in_quarantine_is_not_read_again(folder: Path) -> None:
    with pytest.warns(UserWarning, match="left out 1 of 5 videos: 1 in quarantine"):
        dataset = dataset_of(of_list(folder, on_miss="source"))
    assert paths_of(dataset, folder) == list(PATHS[:4])


def test_absent_features_are_an_error_when_the_dataset_is_made(folder: Path) -> None:
    match = r"^features: 3 of 4 videos without mel, such as '\w+.*' \(no audio track\). Take missing='zeros'"
    with pytest.raises(NotFoundError, match=match):
        dataset_of(folder, features=("frames", "mel"))
    loud = dataset_of(folder, features=("frames", "mel"), videos=lambda video: video.path == PATHS[0])
    assert loud[0]["audio"].max() > -100


@pytest.mark.parametrize("way", ["cache", "index", "split file"])
def test_skip_leaves_out_videos_without_a_feature(folder: Path, way: str) -> None:
    index = split_of(folder / "videos", "path\n" + "\n".join(PATHS[:4]), "four.csv")
    lists: dict[str, Any] = {
        "cache": folder,
        "index": cc.videos.indexed(index, folder / "cache"),
        "split file": cc.videos.cached(folder / "cache", split_of(folder, "\n".join(PATHS[:4]))),
    }
    dataset = dataset_of(lists[way], features=("frames", "mel"), missing="skip", clips_per_video=2)
    assert len(dataset) == len(dataset.label_ids) == 2
    assert paths_of(dataset, folder) == [PATHS[0]] * 2
    assert "present" not in dataset[0]
    with pytest.raises(NotFoundError, match="3 of 3 videos without mel, .* No video has all of them"):
        dataset_of(folder, features=("frames", "mel"), missing="skip", videos=PATHS[1:4])


def test_silence_without_another_feature_has_the_frame_times_of_the_cache(folder: Path) -> None:
    dataset = dataset_of(folder, features=["mel"], missing="zeros", videos=PATHS[1:2])
    assert torch.all(dataset[0]["audio"] == -100)


def test_videos_that_were_not_built_with_a_feature(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    for name, tiers in (("a", ["lmdb", "npz"]), ("b", ["lmdb"])):
        make_video(tmp_path / name / f"{name}.mp4", num_frames=8, audio=True)
        cc.build(cc.scan([tmp_path / name]), tmp_path / "cache", tiers=tiers, config=CONFIG, jobs=HERE)
    match = r"^features: 1 of 2 videos without mel, such as 'b-\w+' \(it has frames\)\. Add it .*missing='skip'\.$"
    for missing in ("error", "zeros"):
        with pytest.raises(NotFoundError, match=match):
            dataset_of(tmp_path, features=("frames", "mel"), missing=missing)
    assert paths_of(dataset_of(tmp_path, features=("frames", "mel"), missing="skip"), tmp_path) == ["a.mp4"]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("trainlist01.txt", "A/v_quiet_g08_c01.avi 1\nA/loud.mp4 2\n", [1, 0]),
        ("classes.txt", "B/my clip.mp4 17\nA/loud.mp4 3\n", [2, 0]),
        ("bom.txt", b'\xef\xbb\xbfA/loud.mp4\r\n\r\n# no\r\n"B/my clip.mp4" 3\r\n', [0, 2]),
        ("tabs.txt", "A/loud.mp4\t7\nB/my clip.mp4\t8\n", [0, 2]),
        ("label_first.csv", "0,A/loud.mp4\n1,B/my clip.mp4\n", [0, 2]),
        ("quoted.csv", 'label,path\nx,"B/my clip.mp4"\n"y, z",A/loud.mp4\n', [2, 0]),
        ("header.txt", "path label\nA/loud.mp4 1\n", [0]),
        ("train.csv", "label,youtube_id,time_start,time_end,split\nA b,abc-_1,10,20,train\n", [3]),
        ("something.json", '[{"id": "loud", "label": "x"}, {"id": "my clip"}]', [0, 2]),
        ("stems.txt", "loud\nv_quiet_g08_c01\n", [0, 1]),
        ("above.txt", "UCF-101/A/loud.mp4 1\n./B/my clip.mp4 2\n", [0, 2]),
        ("other_suffix.txt", "A/loud.avi\n", [0]),
        ("train_split_1_videos.txt", "A/loud.mp4 0\nB/my clip.mp4 1\n", [0, 2]),  # mmaction: labels
        ("hmdb_test_split3.txt", "loud 2\nmy clip.mp4 2\n", [0, 2]),
    ],
)
def test_published_split_files(folder: Path, tmp_path: Path, name: str, text: str | bytes, expected: list[int]) -> None:
    dataset = dataset_of(folder, videos=str(split_of(tmp_path, text, name)))
    assert paths_of(dataset, folder) == [PATHS[number] for number in expected]


SPLITS = {
    "wave_test_split2.txt": ("loud.avi 1 \nv_quiet_g08_c01.avi 0 \nmy clip.avi 1 \n", {"split": "1"}),
    "all_split1.txt": ("loud.avi\t1\nv_quiet_g08_c01.avi\t2\nmy clip.avi\t1\n", {"split": 1}),
    "words.txt": ("A/loud.mp4 Train\nmy clip Train\nv_quiet_g08_c01 val\n", {"split": "Train"}),
    "labels_too.txt": (
        "A/loud.mp4,training,7\nB/my clip.mp4,training,7\nv_quiet_g08_c01,test,8\n",
        {"split": "training"},
    ),
    "header.csv": ("Subset,path\nval,A/v_quiet_g08_c01.avi\ntrain,A/loud.mp4\ntrain,my clip\n", {"subset": "train"}),
    "records.jsonl": (
        '{"id": "loud", "set": 3}\n{"id": "my clip", "set": 3}\n{"id": "v_quiet_g08_c01", "set": 4}\n',
        {"set": "3"},
    ),
    "unnamed.txt": ("loud 1\nv_quiet_g08_c01 0\nmy clip 1\n", {"split": "1"}),
}
"""Name of a split file of three videos to its content, and the choice of the two that are not the second of PATHS"""


@pytest.mark.parametrize("name", SPLITS)
def test_a_split_file_that_says_the_split_of_each_name(folder: Path, tmp_path: Path, name: str) -> None:
    text, where = SPLITS[name]
    split = split_of(tmp_path, text, name)
    chosen = cc.videos.cached(folder / "cache", split, where=where)
    assert sorted(paths_of(dataset_of(chosen), folder)) == ["A/loud.mp4", "B/my clip.mp4"]
    (column,) = where
    with pytest.raises(UsageError, match=rf"{name}': got .* in the column '{column}', expected nothing\. Choose one"):
        dataset_of(cc.videos.cached(folder / "cache", split, where={column: "nothing"}))
    with pytest.raises(UsageError, match="where: got 'gender', expected one of "):
        dataset_of(cc.videos.cached(folder / "cache", split, where={"gender": "x"}))
    if name != "unnamed.txt":  # numbers alone may be labels
        with pytest.raises(
            UsageError, match=rf"in the column '{column}', expected one of them\. Choose .*'{column}': "
        ):
            dataset_of(folder, videos=split)
    source = {"name": "cache", "path": str(folder / "cache"), "videos": str(split), "where": where}
    assert len(make_dataset({"train": {"source": source}}, clip_sampler=CLIP, size=None)) == 2
    export = cc.export(folder / "cache", tmp_path / "out", to="folder", frames="none", videos=split, where=where)
    assert export.num_samples == 2


def test_where_without_a_split_file(folder: Path) -> None:
    for videos in (None, [PATHS[0]], lambda video: True):
        with pytest.raises(UsageError, match=r"where: got \{'split': 'x'\} without a split file"):
            dataset_of(cc.videos.cached(folder / "cache", videos, where={"split": "x"}))


@pytest.mark.parametrize("name", ["loud.1", "loud.v2", "my clip.", "A/loud.tmp"])
def test_a_dot_in_a_name_is_not_a_suffix(folder: Path, name: str) -> None:
    with pytest.raises(NotFoundError, match=f"got '{name}', expected the key or the path of a video"):
        dataset_of(folder, videos=[name])


def test_names_with_dots(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    names = ("take.1.mp4", "take.2.MOV", "take.mp4")
    for name in names:
        make_video(tmp_path / "videos" / name.lower(), num_frames=4).rename(tmp_path / "videos" / name)
    cc.build(tmp_path / "videos", tmp_path / "cache", jobs=HERE)
    split = split_of(tmp_path, "take.2\nfar/take.1.avi\ntake\n")
    assert paths_of(dataset_of(tmp_path, videos=split), tmp_path) == ["take.2.MOV", "take.1.mp4", "take.mp4"]


def test_a_split_file_that_names_a_video_twice(folder: Path, tmp_path: Path) -> None:
    split = split_of(tmp_path, "A/loud.mp4 1\nB/my clip.mp4 2\nA/loud.mp4 3\n")
    with pytest.warns(UserWarning, match="1 of 3 rows name a video that an earlier row names. It is read once"):
        dataset = dataset_of(folder, videos=split)
    assert paths_of(dataset, folder) == ["A/loud.mp4", "B/my clip.mp4"]


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [
        (
            "A/loud.mp4\nA/lout.mp4 1\nx\n",
            NotFoundError,
            r"line 2: .*A/lout.mp4.* 2 of 3 names match no .*Near keys: loud-",
        ),
        ("# a\npath,label\nA/loud.mp4,x\n # b,c\nA/lout.mp4,y\n", NotFoundError, "line 5: got 'A/lout.mp4', expected"),
        ("label,path\nx,A/loud.mp4,y,z\nonly\n", NotFoundError, "line 3: got '', expected"),
        (b"\0\1\2", UsageError, "got binary data, expected UTF-8 text"),
    ],
)
def test_split_files_that_name_no_video(
    folder: Path, tmp_path: Path, text: str | bytes, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        dataset_of(folder, videos=split_of(tmp_path, text))


def test_one_key_as_a_string(folder: Path) -> None:
    key = cc.open_cache(folder / "cache").keys()[1]
    assert dataset_of(folder, videos=key)[0]["video"] == key
    assert len(dataset_of(folder, videos=PATHS[0])) == 1
    with pytest.raises(NotFoundError, match="cannot read split file 'loud': .* either. Near keys: loud-"):
        dataset_of(folder, videos="loud")


def test_a_dataset_without_labels_warns_if_it_is_asked_for_them(
    tmp_path: Path, make_video: Callable[..., Path]
) -> None:
    make_video(tmp_path / "videos/a.mp4", num_frames=8)
    cc.build(cc.scan([tmp_path / "videos"]), tmp_path / "cache", jobs=HERE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        silent = dataset_of(tmp_path)
        assert silent[0]["label"] == -1
        cc.concat([silent, silent])
        cc.subset(silent, [0])
    for settings in ({"classes": ["run"]}, {"fields": "label"}, {"fields": ["labels"], "classes": ["run"]}):
        with pytest.warns(UserWarning, match="got no label in any sample.*Scan with --labels") as caught:
            dataset_of(tmp_path, **settings)
        assert len(caught) == 1
    with pytest.warns(UserWarning, match="got no label in any sample"):
        assert silent.classes == []


def test_loaders_without_a_shuffle_have_the_order_of_the_dataset(folder: Path) -> None:
    dataset = dataset_of(folder)
    keys = cc.open_cache(folder / "cache").keys()
    for loader in (cc.ClipLoader(dataset, 2, shuffle=False), cc.make_loader(dataset, 2, 0, shuffle=False)):
        assert [key for batch in loader for key in batch["video"]] == keys
    many = dataset_of(folder, clips_per_video=20)
    for loader in (cc.ClipLoader(many, 80), cc.make_loader(many, 80, 0, shuffle=True)):
        assert next(iter(loader))["video"] != [key for key in keys for _ in range(20)]
    sampler = cc.ChordSampler(dataset, batch_size=2)
    with pytest.raises(UsageError, match="^shuffle: got False and a sampler, expected one of them"):
        cc.ClipLoader(dataset, 2, sampler=sampler, shuffle=False)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"features": ("flows",)}, "features: got 'flows', expected a feature. Did you mean 'flow'?"),
        ({"clip_sampler": 16}, "clip_sampler: got 16, expected an object with frame_numbers"),
        ({"clip_sampler": cc.samplers.schedule}, "clip_sampler: got <class .*SamplerSchedule'>, expected an object"),
    ],
)
def test_errors_say_what_to_write(folder: Path, settings: dict[str, Any], match: str) -> None:
    with pytest.raises(cc.ChordcacheError, match=match):
        dataset_of(folder, **settings)


def test_indices_of_other_types(folder: Path) -> None:
    cache, dataset = cc.open_cache(folder / "cache"), dataset_of(folder)
    assert cache[np.int64(1)].key == cache.keys()[1] == dataset[np.int64(1)]["video"]
    cache[1]  # is in memory now, where 1.0 would be found
    for index in (slice(0, 2), 1.0, None):
        with pytest.raises(UsageError, match=r"^video: got .*, expected a key, or a position in \[0, 4\)"):
            cache[index]
        with pytest.raises(UsageError, match=r"^index: got .*, expected an integer, or \(epoch, integer\)"):
            dataset[index]
    with pytest.raises(NotFoundError, match=r"A path is not a key. Its key: loud-\w{16}\."):
        cache.read("A/loud.mp4")
    with pytest.raises(NotFoundError, match=r"^video 'lout' is not in cache .*Near keys: loud-"):
        cache["lout"]
    with pytest.raises(NotFoundError, match="'flows' of video .* is not cached.*Did you mean 'flow'?"):
        cache.read(0, "flows")


def test_pose_that_is_missing_is_nan() -> None:
    from types import SimpleNamespace

    from chordcache.features.pose import PoseReadSide

    rows = PoseReadSide("pose").zeros(SimpleNamespace(numbers=np.arange(2)), None)["pose"]
    assert rows.shape == (2, 33, 4)
    assert math.isnan(PoseReadSide.padding["pose"])
    assert np.isnan(rows).all()
