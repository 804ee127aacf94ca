"""Datasets of LeRobot: one video for each episode and camera (2.x), or several episodes in one video (3.0).

The frames of a camera of dtype "image" are pictures in the Parquet files of the data, see ``media.parquet_episodes``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from chordcache.errors import NotFoundError, UsageError, printable
from chordcache.index.lists.items import Item, ItemList, ListOptions, texts
from chordcache.index.lists.parquet import open_parquet
from chordcache.index.lists.tables import json_lines, json_object, row_error
from chordcache.index.lists.templates import Template
from chordcache.records import GROUP, SERIES, STREAM, Segment

_COLUMNS = {"episode_index": "int", "fps": "float", GROUP: "int"}


class _End(NamedTuple):
    """The end of an episode in its file."""

    frame: int
    seconds: tuple[float, ...]
    """[seconds] The same by the times of the dataset, and by the episode's start and length: either may drift"""


class _Camera(NamedTuple):
    """A camera, and the path of its files."""

    name: str
    is_video: bool
    """False if its frames are pictures in the files of the data"""
    template: Template
    data: Template | None
    """Path of the files of the data, or None if the dataset does not state it"""

    def path(self, episode: int, **names: Any) -> str:
        """Return the path of the file, or of the episode in it. ``names`` are further fields of the template."""
        path = self.template.path({**names, "video_key": self.name, "episode_index": episode})
        return path if self.is_video else f"{path}/{self.name}/episode_{episode:06d}"

    @property
    def columns(self) -> list[str]:
        """Columns of ``meta/episodes`` in version 3.0 that place an episode."""
        if not self.is_video:
            return ["data/chunk_index", "data/file_index"]
        places = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
        return [f"videos/{self.name}/{place}" for place in places]


def read_lerobot(path: Path, _options: ListOptions) -> ItemList:
    """Read the folder of a LeRobot dataset of version 2.0, 2.1 or 3.0. Each camera of an episode is an item.

    The tasks of the episode are its captions. ``episode_index``, ``camera`` and ``fps`` are extra columns. So are
    ``group`` and ``stream``, by which ``chordcache.group`` joins the cameras of an episode, and ``series``, the rows of
    the episode in the files of the data.

    In version 3.0 a file holds several episodes. The segment is stated as frame numbers. An episode has ``length``
    frames, and begins where the one before it in the file ends, because the times of the dataset drift: each is a sum
    of durations that containers state. A gap between the times of two episodes is kept, in whole frames. An episode
    whose length differs from its times by a frame or more is an error.

    Source: https://huggingface.co/docs/lerobot/lerobot-dataset-v3. Raises as ``read_table`` does.
    """
    info = _info(path / "meta" / "info.json")
    version = str(info.get("codebase_version", ""))
    if version[:2] not in _VERSIONS:
        raise UsageError(
            f"'{printable(path)}': got LeRobot version '{printable(version)}', expected v2.0, v2.1 or v3.0"
        )
    fields, episodes = _VERSIONS[version[:2]]
    data = Template(info["data_path"], fields) if isinstance(info.get("data_path"), str) else None
    cameras = []
    for name, feature in info["features"].items():
        dtype = feature.get("dtype") if isinstance(feature, dict) else None
        if dtype in ("video", "image"):
            key = "video_path" if dtype == "video" else "data_path"
            if not isinstance(info.get(key), str):
                expected = f"one in 'meta/info.json' for the camera '{printable(name)}'"
                raise UsageError(f"'{printable(path)}': got no '{key}', expected {expected}")
            cameras.append(_Camera(name, dtype == "video", Template(info[key], fields), data))
    if not cameras:
        expected = "features of the dtype 'video' or 'image'"
        raise UsageError(f"'{printable(path)}': got a dataset without cameras, expected {expected}")
    return ItemList(path, "episode", _COLUMNS, partial(episodes, path, info, cameras), iter)


def _info(path: Path) -> dict[str, Any]:
    try:
        info = json_object(path)
        if not isinstance(info.get("features"), dict) or not float(info["fps"]) > 0:
            raise ValueError("it has no features or no fps")
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(f"no such file '{printable(path)}'; expected the folder of a LeRobot dataset") from None
    except UsageError:
        raise
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise UsageError(
            f"'{printable(path)}': expected the JSON of a LeRobot dataset ({printable(str(error))})"
        ) from None
    return info


def _extra(episode: int, camera: _Camera, info: dict[str, Any], **places: Any) -> dict[str, Any]:
    """Return the columns of an episode. ``places`` are further fields of the path of its data, None if unknown."""
    extra = {"episode_index": episode, "camera": camera.name, "fps": info["fps"], GROUP: episode, STREAM: camera.name}
    if camera.data is not None and None not in places.values():
        path = camera.data.path({**places, "video_key": camera.name, "episode_index": episode})
        extra[SERIES] = f"{path}#episode_index={episode}"
    return extra


def _episodes_2(path: Path, info: dict[str, Any], cameras: list[_Camera]) -> Iterator[tuple[int, list[Item]]]:
    source = path / "meta" / "episodes.jsonl"
    for number, row in json_lines(source):
        try:
            episode = int(row["episode_index"])
            chunk = episode // int(info.get("chunks_size", 1000))
        except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError):
            message = "expected a whole 'episode_index', and 'chunks_size' in info.json"
            raise row_error(source, "line", number, message) from None
        yield episode, [_whole(row, episode, camera, info, episode_chunk=chunk) for camera in cameras]


def _whole(row: dict[str, Any], episode: int, camera: _Camera, info: dict[str, Any], **names: Any) -> Item:
    """Return the item of an episode that is a whole source."""
    return Item(
        camera.path(episode, **names),
        captions=texts(row.get("tasks")),
        extra=_extra(episode, camera, info, **names),
    )


def _episodes_3(path: Path, info: dict[str, Any], cameras: list[_Camera]) -> Iterator[tuple[int, list[Item]]]:
    sources = sorted((path / "meta" / "episodes").glob("*/*.parquet"))
    if not sources:
        raise NotFoundError(f"no episodes in '{printable(path / 'meta' / 'episodes')}'")
    ends: dict[str, _End] = {}
    for source in sources:
        types, rows = open_parquet(source)
        needed = ["episode_index", "length", *(name for camera in cameras for name in camera.columns)]
        if missing := [name for name in needed if name not in types]:
            raise UsageError(f"'{printable(source)}': expected the column '{printable(missing[0])}'")
        for number, row in rows():
            items = []
            for camera in cameras:
                try:
                    items.append(_item_3(row, camera, info, ends))
                except (KeyError, TypeError, ValueError, OverflowError) as error:
                    message = f"camera '{printable(camera.name)}': {printable(str(error))}"
                    raise row_error(source, "record", number, message) from None
            yield int(row["episode_index"]), items


def _item_3(row: dict[str, Any], camera: _Camera, info: dict[str, Any], ends: dict[str, _End]) -> Item:
    """Return the item of an episode. ``ends`` has the end of the last episode of each file so far."""
    chunk, file, *times = (row[name] for name in camera.columns)
    episode, length, fps = int(row["episode_index"]), int(row["length"]), float(info["fps"])
    if not times:
        return _whole(row, episode, camera, info, chunk_index=chunk, file_index=file)
    start, end = times
    if not abs((end - start) * fps - length) < 1:
        raise ValueError(
            f"episode {episode}: got the length {length} and times of {(end - start) * fps:.1f} frames, from {start} "
            f"to {end} s, expected the same number of frames. Correct the episode's length or times"
        )
    path = camera.path(episode, chunk_index=chunk, file_index=file)
    data = {name: row.get(f"data/{name}") for name in ("chunk_index", "file_index")}
    last = ends.get(path, _End(0, (0.0,)))
    gap = min(((start - seconds) * fps for seconds in last.seconds), key=abs)
    first = last.frame + (0 if abs(gap) < 1 else round(gap))
    ends[path] = _End(first + length, (end, start + length / fps))
    return Item(
        path,
        Segment(start_frame=first, end_frame=first + length),
        captions=texts(row.get("tasks")),
        extra=_extra(episode, camera, info, **data),
    )


_VERSIONS = {
    "v2": (("episode_chunk", "video_key", "episode_index"), _episodes_2),
    "v3": (("video_key", "chunk_index", "file_index"), _episodes_3),
}
"""Version to the fields of templates, and to the function that yields number and items of each episode"""
