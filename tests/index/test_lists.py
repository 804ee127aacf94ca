"""Published lists in their own form, over real clips: the records are those that the lists state."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.lerobot import lerobot_extra
from helpers.lists import indexed, place, write, write_json

from chordcache.choices import LIST_FORMATS
from chordcache.errors import NotFoundError, UsageError
from chordcache.index.lists.formats import LIST_READERS
from chordcache.records import Segment, VideoRecord


def test_the_command_knows_every_format() -> None:
    assert set(LIST_FORMATS) == set(LIST_READERS)


# Published lists


def test_kinetics(tmp_path: Path, clips: Path) -> None:
    source = write(
        tmp_path / "train.csv",
        "label,youtube_id,time_start,time_end,split\n"
        'testifying,---QUuC4vJs,84,94,train\n"eating, fast",--3ouPhoy2A,20,30,train\n',
    )
    videos = place(clips, tmp_path, "---QUuC4vJs_000084_000094.mp4", "--3ouPhoy2A_000020_000030.mp4")
    records, columns, _ = indexed(source, "kinetics", videos=[videos])
    assert records == [
        VideoRecord(
            "videos",
            f"{name}_{start:06d}_{end:06d}.mp4",
            label=label,
            extra={"youtube_id": name, "time_start": start, "time_end": end, "split": "train"},
        )
        for label, name, start, end in [("testifying", "---QUuC4vJs", 84, 94), ("eating, fast", "--3ouPhoy2A", 20, 30)]
    ]
    assert columns == {"time_start": "float", "time_end": "float"}


def test_kinetics_of_whole_videos(tmp_path: Path, clips: Path) -> None:
    source = write(tmp_path / "test.csv", "youtube_id,time_start,time_end,split\n---QUuC4vJs,84,94,test\n")
    options = {"video_template": "{split}/{youtube_id}.*"}
    records, columns, _ = indexed(
        source, "kinetics", videos=[place(clips, tmp_path, "test/---QUuC4vJs.mkv")], options=options
    )
    extra = {"youtube_id": "---QUuC4vJs", "split": "test"}
    assert records == [VideoRecord("videos", "test/---QUuC4vJs.mkv", segment=Segment(84.0, 94.0), extra=extra)]
    assert columns == {}


NAMES_UCF = ("ApplyEyeMakeup/v_ApplyEyeMakeup_g08_c01.avi", "YoYo/v_YoYo_g25_c05.avi")


def test_ucf101(tmp_path: Path, clips: Path) -> None:
    videos = place(clips, tmp_path, *NAMES_UCF)
    write(tmp_path / "classInd.txt", "1 ApplyEyeMakeup\r\n101 YoYo\r\n")
    train = write(tmp_path / "trainlist01.txt", f"{NAMES_UCF[0]} 1\r\n{NAMES_UCF[1]} 101\r\n")
    test = write(tmp_path / "testlist01.txt", f"{NAMES_UCF[0]}\r\n")
    records, columns, _ = indexed(train, "ucf101", videos=[videos])
    assert records == [
        VideoRecord("videos", NAMES_UCF[0], label="ApplyEyeMakeup", extra={"class_id": 1}),
        VideoRecord("videos", NAMES_UCF[1], label="YoYo", extra={"class_id": 101}),
    ]
    assert columns == {"class_id": "int"}
    assert indexed(test, "ucf101", videos=[videos])[0] == [records[0].replace(extra={})]
    write(tmp_path / "classInd.txt", "1 Archery\n101 YoYo\n")
    with pytest.raises(UsageError, match=r"line 1: got '.* 1', expected Archery for class 1"):
        indexed(train, "ucf101", videos=[videos])


def test_something_something(tmp_path: Path, clips: Path) -> None:
    rows = [
        {
            "id": "78687",
            "label": "holding potato next to vicks vaporub bottle",
            "template": "Holding [something] next to [something]",
            "placeholders": ["potato", "vicks vaporub bottle"],
        },
        {"id": "1"},
    ]
    source = write_json(tmp_path / "something-something-v2-train.json", rows)
    write_json(tmp_path / "labels.json", {"Holding something next to something": "46"})
    records, columns, _ = indexed(source, "ssv2", videos=[place(clips, tmp_path, "78687.webm", "1.webm")])
    assert records == [
        VideoRecord(
            "videos",
            "78687.webm",
            label="Holding something next to something",
            caption="holding potato next to vicks vaporub bottle",
            extra={"placeholders": ["potato", "vicks vaporub bottle"], "class_id": 46},
        ),
        VideoRecord("videos", "1.webm"),
    ]
    assert columns == {"class_id": "int", "placeholders": "list[str]"}


def test_activitynet(tmp_path: Path, clips: Path) -> None:
    annotations = [
        {"segment": [0.01, 126.38], "label": "Longboarding"},
        {"segment": [130, 140.5], "label": "Surfing"},
        {"segment": [0.01, 126.38], "label": "Skating"},
    ]
    database = {
        "sJn7-Lp0jmo": {"duration": 150.2, "subset": "training", "annotations": annotations, "url": "https://..."},
        "abc": {"duration": 9, "subset": "testing", "annotations": []},
    }
    data = {"taxonomy": [{}], "database": database, "version": "VERSION 1.3"}
    source = write_json(tmp_path / "activity_net.v1-3.min.json", data)
    records, columns, _ = indexed(
        source, "activitynet", videos=[place(clips, tmp_path, "v_sJn7-Lp0jmo.mkv", "v_abc.mp4")]
    )
    extra = {"subset": "training", "duration": 150.2}
    assert records == [
        VideoRecord("videos", "v_sJn7-Lp0jmo.mkv", segment=Segment(130.0, 140.5), label="Surfing", extra=extra),
        VideoRecord(
            "videos",
            "v_sJn7-Lp0jmo.mkv",
            segment=Segment(0.01, 126.38),
            labels=("Longboarding", "Skating"),
            extra=extra,
        ),
        VideoRecord("videos", "v_abc.mp4", extra={"subset": "testing", "duration": 9}),
    ]
    assert columns == {"duration": "float"}


def test_ava(tmp_path: Path, clips: Path) -> None:
    source = write(
        tmp_path / "ava_train_v2.2.csv",
        "-5KQ66BBWC4,0902,0.077,0.151,0.283,0.811,80,1\n"
        "-5KQ66BBWC4,0902,0.077,0.151,0.283,0.811,9,1\n"
        "-5KQ66BBWC4,0902,0.226,0.032,0.366,0.497,80,0\n"
        "-5KQ66BBWC4,0001,0.1,0.2,0.3,0.4,12,0\n"
        "-5KQ66BBWC4,0903,,,,,,\n",
    )
    videos = place(clips, tmp_path, "-5KQ66BBWC4.mkv")

    def box(time: float, numbers: Sequence[float], person: int, label: str) -> dict[str, Any]:
        return {
            "time_seconds": time,
            **dict(zip(("x1", "y1", "x2", "y2"), numbers, strict=True)),
            "track_id": person,
            "label": label,
        }

    first, second = (0.077, 0.151, 0.283, 0.811), (0.226, 0.032, 0.366, 0.497)
    boxes = [box(1.5, first, 1, "80"), box(1.5, first, 1, "9"), box(1.5, second, 0, "80")]
    records, columns, _ = indexed(source, "ava", videos=[videos])
    assert records == [
        VideoRecord(
            "videos",
            "-5KQ66BBWC4.mkv",
            segment=Segment(900.5, 903.5),
            labels=("80", "9"),
            extra={"key_seconds": 902, "boxes": boxes},
        ),
        VideoRecord(
            "videos",
            "-5KQ66BBWC4.mkv",
            segment=Segment(0.0, 2.5),
            label="12",
            extra={"key_seconds": 1, "boxes": [box(1.0, (0.1, 0.2, 0.3, 0.4), 0, "12")]},
        ),
        VideoRecord("videos", "-5KQ66BBWC4.mkv", segment=Segment(901.5, 904.5), extra={"key_seconds": 903}),
    ]
    assert columns == {"boxes": "relative_boxes", "key_seconds": "float"}


def test_mmaction(tmp_path: Path, clips: Path) -> None:
    videos = place(clips, tmp_path, "some/a.mp4", "a b.mp4", "c.mp4")
    source = write(tmp_path / "train.txt", "some/a.mp4 1\na b.mp4 1 3 5\nc.mp4\n")
    records, _, _ = indexed(source, "mmaction", videos=[videos])
    assert records == [
        VideoRecord("videos", "some/a.mp4", label="1"),
        VideoRecord("videos", "a b.mp4", labels=("1", "3", "5")),
        VideoRecord("videos", "c.mp4"),
    ]
    frames = write(tmp_path / "rawframes.txt", "some/a 163 1\n")
    with pytest.raises(NotFoundError, match=r"none of the 1 files of .*, such as 'some/a'.*--video-template"):
        indexed(frames, "mmaction", videos=[videos])
    options = {"video_template": "{path}.mp4"}
    records, columns, _ = indexed(frames, "mmaction", videos=[videos], options=options)
    assert records == [VideoRecord("videos", "some/a.mp4", label="1", extra={"num_frames": 163})]
    assert columns == {"num_frames": "int"}


def test_webvid(tmp_path: Path, clips: Path) -> None:
    source = write(
        tmp_path / "results_2M_train.csv",
        "videoid,contentUrl,duration,page_dir,name\n"
        "21179416,https://example.com/21179416-preview.mp4,PT00H00M11S,006001_006050,"
        '"Aerial shot, ""winter"" forest"\n',
    )
    records, columns, _ = indexed(source, "webvid", videos=[place(clips, tmp_path, "006001_006050/21179416.mp4")])
    extra = {
        "videoid": "21179416",
        "contentUrl": "https://example.com/21179416-preview.mp4",
        "duration": "PT00H00M11S",
        "page_dir": "006001_006050",
    }
    caption = 'Aerial shot, "winter" forest'
    assert records == [VideoRecord("videos", "006001_006050/21179416.mp4", caption=caption, extra=extra)]
    assert columns == {}


CAMERAS = ("observation.images.top", "observation.images.wrist")


def write_lerobot(folder: Path, version: str, video_path: str) -> None:
    features = {camera: {"dtype": "video", "shape": [48, 64, 3]} for camera in CAMERAS}
    info = {
        "codebase_version": version,
        "fps": 30,
        "chunks_size": 1000,
        "video_path": video_path,
        "features": {**features, "action": {"dtype": "float32", "shape": [6]}},
    }
    write_json(folder / "meta" / "info.json", info)


def test_lerobot_2(tmp_path: Path, clips: Path) -> None:
    files = [f"videos/chunk-00{number // 1000}/{camera}/episode_{number:06d}.mp4"
             for number in (0, 1000) for camera in CAMERAS]  # fmt: skip
    folder = place(clips, tmp_path, *files)
    template = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
    write_lerobot(folder, "v2.1", template)
    rows = [
        {"episode_index": 0, "tasks": ["Pick the cube"], "length": 90},
        {"episode_index": 1000, "tasks": ["Pick", "Place"], "length": 60},
    ]
    write(folder / "meta" / "episodes.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    records, columns, _ = indexed(folder, "lerobot")
    assert records == [
        VideoRecord(
            "videos",
            file,
            caption="Pick the cube" if number < 2 else None,
            captions=("Pick", "Place") if number >= 2 else (),
            extra=lerobot_extra(1000 * (number // 2), CAMERAS[number % 2], 30),
        )
        for number, file in enumerate(files)
    ]
    assert columns == {"episode_index": "int", "fps": "float", "group": "int"}


def cosmos_clip(
    name: str, windows: Sequence[dict[str, Any]], folder: str = "clips", output: str = "s3://out"
) -> dict[str, Any]:
    """Return the metadata of a clip, as metadata_writer_stage.py of Cosmos-Curate writes it."""
    return {
        "span_uuid": name,
        "source_video": "s3://raw/a.mp4",
        "duration_span": [1.5, 5.5],
        "width_source": 1920,
        "height_source": 1080,
        "framerate_source": 30.0,
        "clip_location": f"{output}/{folder}/{name}.mp4",
        "width": 192,
        "height": 144,
        "framerate": 30.0,
        "num_frames": 120,
        "video_codec": "h264",
        "num_bytes": 1000,
        "motion_score": {"global_mean": 0.5, "per_patch_min_256": 0.25},
        "aesthetic_score": 4.5,
        "windows": windows,
        "filtered_windows": [],
        "valid": bool(windows),
    }


@pytest.mark.parametrize("form", ["metas", "metas_jsonl"])
def test_cosmos(tmp_path: Path, clips: Path, form: str) -> None:
    folder = place(clips, tmp_path, "clips/u0.mp4", "clips/u1.mp4", "clips/u2.mp4", "filtered_clips/u3.mp4")
    window = {"start_frame": 0, "end_frame": 63, "qwen_caption": "a man", "qwen_lm_enhanced_caption": "a man drives"}
    rest = {"start_frame": 64, "end_frame": 119, "qwen_caption": "a car"}
    rows = [
        cosmos_clip("u0", [window, rest]),
        cosmos_clip("u1", [{**window, "end_frame": 119}]),
        cosmos_clip("u2", []),
        cosmos_clip("u3", [], "filtered_clips"),
    ]
    if form == "metas":
        for row in rows:
            write_json(folder / "metas" / "v0" / f"{row['span_uuid']}.json", {**row, "windows": []})
            write_json(folder / "metas" / "v1" / f"{row['span_uuid']}.json", row)  # captioned later
    else:
        write(folder / "metas_jsonl" / "v0" / "a_0.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    records, columns, summary = indexed(folder, "cosmos")
    scores = {"aesthetic_score": 4.5, "motion_global_mean": 0.5, "motion_per_patch_min_256": 0.25}
    extra = {"source_video": "s3://raw/a.mp4", "span_start": 1.5, "span_end": 5.5, **scores}
    first, second = Segment(start_frame=0, end_frame=64), Segment(start_frame=64, end_frame=120)
    texts = ("a man", "a man drives")
    assert records == [
        VideoRecord("videos", "clips/u0.mp4", segment=first, captions=texts, extra=extra),
        VideoRecord("videos", "clips/u0.mp4", segment=second, caption="a car", extra=extra),
        VideoRecord("videos", "clips/u1.mp4", captions=texts, extra=extra),
        VideoRecord("videos", "clips/u2.mp4", extra=extra),
    ]
    assert columns == dict.fromkeys(("span_start", "span_end", *scores), "float")
    assert summary.notes == ("1 video without a caption: clips/u2.mp4",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", r"a\.json': expected a JSON object"),
        ('{"span_uuid": "a", "win', r"a\.json': expected a JSON object \(Unterminated string"),
        ("{}", r"clip 1: a\.json: expected the member 'span_uuid'"),
        ('{"span_uuid": "../a"}', r"clip 1: a\.json: expected the member 'span_uuid'"),
        ('{"span_uuid": "a", "windows": 1}', r"clip 1: a: windows: got another value, expected a list of objects"),
        (
            '{"span_uuid": "a", "windows": [{"start_frame": 0.5, "end_frame": 2}]}',
            r"clip 1: clips/a\.mp4: got a window without whole numbers of frames",
        ),
    ],
)
def test_mistake_in_metadata_of_cosmos_is_named(tmp_path: Path, clips: Path, text: str, message: str) -> None:
    folder = place(clips, tmp_path, "clips/a.mp4")
    write(folder / "metas" / "v0" / "a.json", text)
    with pytest.raises(UsageError, match=message):
        indexed(folder, "cosmos")
    shutil.rmtree(folder / "metas")
    with pytest.raises(NotFoundError, match="no folder 'metas/v0' or 'metas_jsonl/v0'"):
        indexed(folder, "cosmos")


def test_clips_and_metadata_of_cosmos_that_lack_the_other_are_named(tmp_path: Path, clips: Path) -> None:
    """The output folder of the pipeline has the name of the folder of rejected clips."""
    bare = [f"clips/bare{number}.mp4" for number in range(6)]
    folder = place(clips, tmp_path, "clips/u0.mp4", "filtered_clips/u1.mp4", *bare)
    output = "/data/filtered_clips/run"
    for row in (
        cosmos_clip("u0", [{"start_frame": 0, "end_frame": 119, "qwen_caption": "a man"}], output=output),
        cosmos_clip("u1", [], "filtered_clips", output),
        cosmos_clip("gone", [], output=output),
    ):
        write_json(folder / "metas" / "v0" / f"{row['span_uuid']}.json", row)
    records, _, summary = indexed(folder, "cosmos")
    assert [(record.path, record.caption) for record in records] == [("clips/u0.mp4", "a man")]
    assert summary.missing_files == ("clips/gone.mp4",)
    assert summary.notes == (f"6 clips without metadata: {', '.join(bare[:5])}, ...",)


def write_episodes(
    folder: Path, lengths: Sequence[int], times: Sequence[tuple[float, float]], files: Sequence[int] | None = None
) -> None:
    """Write episodes of version 3.0. ``times`` are the start and the end of each in its file."""
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    write_lerobot(folder, "v3.0", "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4")
    rows = [
        {"episode_index": number, "tasks": ["Pick"], "length": length}
        | {
            f"videos/{camera}/{name}": value
            for camera in CAMERAS
            for name, value in (
                ("chunk_index", 0),
                ("file_index", files[number] if files else 0),
                ("from_timestamp", start),
                ("to_timestamp", end),
            )
        }
        for number, (length, (start, end)) in enumerate(zip(lengths, times, strict=True))
    ]
    path = folder / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def test_lerobot_3(tmp_path: Path, clips: Path) -> None:
    folder = place(clips, tmp_path, *(f"videos/{camera}/chunk-000/file-000.mp4" for camera in CAMERAS))
    write_episodes(folder, [9, 154], [(0.0, 0.1 + 0.2), (0.1 + 0.2, 163 / 30)])
    records, _, _ = indexed(folder, "lerobot")
    assert records == [
        VideoRecord(
            "videos",
            f"videos/{camera}/chunk-000/file-000.mp4",
            segment=Segment(start_frame=first, end_frame=last),
            caption="Pick",
            extra=lerobot_extra(number, camera, 30),
        )
        for number, (first, last) in enumerate([(0, 9), (9, 163)])
        for camera in CAMERAS
    ]


@pytest.mark.parametrize("drifts", [(1, 1), (0, 1), (1, 0)], ids=["starts and ends", "ends", "starts"])
@pytest.mark.parametrize("drift", [-0.03, -0.009, 0.009, 0.03])
def test_episodes_of_lerobot_have_their_length_though_times_drift(
    tmp_path: Path, clips: Path, drift: float, drifts: tuple[int, int]
) -> None:
    has_gap = abs(drift) < 0.5 / 30  # of 40 frames, before the last episode
    lengths, starts = [31, 47, 29, 53, 60], [0, 31, 78, 107, 200 if has_gap else 160]
    names = [f"videos/{camera}/chunk-000/file-00{file}.mp4" for camera in CAMERAS for file in (0, 1)]
    folder = place(clips, tmp_path, *names)
    times = [
        (start / 30 + number * drifts[0] * drift, (start + length) / 30 + (number * drifts[0] + drifts[1]) * drift)
        for number, (start, length) in enumerate(zip(starts, lengths, strict=True))
    ]
    write_episodes(folder, [*lengths, 10], [*times, (0.0, 10 / 30)], [0] * 5 + [1])
    records, _, _ = indexed(folder, "lerobot")
    wanted = [(start, start + length) for start, length in zip([*starts, 0], [*lengths, 10], strict=True)]
    segments = [record.segment for record in records[:: len(CAMERAS)]]
    assert [(segment.start_frame, segment.end_frame) for segment in segments if segment] == wanted


def test_episode_of_lerobot_with_another_length_than_its_times(tmp_path: Path, clips: Path) -> None:
    folder = place(clips, tmp_path, *(f"videos/{camera}/chunk-000/file-000.mp4" for camera in CAMERAS))
    write_episodes(folder, [9, 20], [(0.0, 0.3), (0.3, 1.0)])
    match = r"record 2: camera '.*top': episode 1: got the length 20 and times of 21.0 frames, from 0.3 to 1.0 s"
    with pytest.raises(UsageError, match=match):
        indexed(folder, "lerobot")


def test_lerobot_of_another_version(tmp_path: Path) -> None:
    write_lerobot(tmp_path / "data", "v9.9", "x")
    with pytest.raises(UsageError, match=r"got LeRobot version 'v9.9', expected v2.0, v2.1 or v3.0"):
        indexed(tmp_path / "data", "lerobot")
    with pytest.raises(NotFoundError, match=r"no such file '.*info.json'; expected the folder of a LeRobot dataset"):
        indexed(tmp_path, "lerobot")


def test_pairs(tmp_path: Path, clips: Path) -> None:
    folder = place(clips, tmp_path, "a.mp4", "b.mp4", "c.mp4", "videos/1.mp4")
    write(folder / "a.txt", "\ufeffA cat\r\non a roof.\r\n")
    write_json(folder / "b.json", {"caption": "dog", "label": 3, "fps": 25, "url": None, "tags": ["x"]})
    write(folder / "labels" / "1.txt", "A dog\n")
    records, columns, _ = indexed(folder, "pairs")
    assert records == [
        VideoRecord("videos", "a.mp4", caption="A cat\non a roof."),
        VideoRecord("videos", "b.mp4", label="3", caption="dog", extra={"fps": 25, "tags": ["x"]}),
        VideoRecord("videos", "c.mp4"),
        VideoRecord("videos", "videos/1.mp4", caption="A dog"),
    ]
    assert columns == {"fps": "int", "tags": "list[str]"}


def test_a_list_becomes_a_cache(tmp_path: Path, clips: Path, run_cli) -> None:
    place(clips, tmp_path, "a_000001_000002.mp4")
    write(tmp_path / "val.csv", "label,youtube_id,time_start,time_end,split\njump,a,1,2,val\nrun,b,1,2,val\n")
    result = run_cli("index", "val.csv", "--format", "kinetics", "--videos", "videos", cwd=tmp_path)
    assert result.returncode == 3
    assert result.stdout.startswith("indexed 1 item of 1 file in ")
    assert result.stderr == (
        "chordcache index: path={youtube_id}_{time_start:06d}_{time_end:06d}.mp4, label=label; "
        "extra: youtube_id, time_start, time_end, split\n"
        "chordcache index: warning: 1 file is missing: b_000001_000002.mp4\n"
    )
    result = run_cli("build", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "jump 1" in run_cli("info", cwd=tmp_path).stdout
