"""Videos of files without a cache, with any feature: read as those are that a cache lacks."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path

from chordcache.config.config import Config
from chordcache.config.picture import FramesConfig, PictureConfig
from chordcache.config.yaml_files import load_config
from chordcache.index.index_files import Index, IndexWriter, read_index
from chordcache.sources.mapped_mp4 import MappedMP4Source
from chordcache.sources.media_file import MP4Source
from chordcache.sources.video_source import VideoSource
from chordcache.temporary import keep_with, temporary_folder
from chordcache.train.misses.source_videos import roots_and_records

SOURCES = (MP4Source, MappedMP4Source)
"""Sources whose pictures a build makes too. A class that is derived from one may show others"""


def config_of(source: VideoSource, config: Config | str | Path | None) -> Config:
    """Return a config whose caches have the pictures of a source. See ``videos.from_files``."""
    assert isinstance(source, MP4Source)
    picture = {field.name: getattr(source._frames, field.name) for field in fields(PictureConfig)}
    return replace(load_config(config), frames=FramesConfig(**picture, codec="raw"))


def index_of(files: object) -> Index:
    """Write an index of files, without facts. It is removed with the result."""
    roots, records = roots_and_records(files)
    with ExitStack() as stack:
        path = stack.enter_context(temporary_folder()) / "index.jsonl"
        with IndexWriter(path, roots=roots, level=None) as writer:
            for record in records:
                writer.write(record)
        index = read_index(path)
        keep_with(index, stack)
    return index
