"""An index of the shots of a cache: a segment for each, between two hard cuts."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from chordcache.index.index_files import cached_index
from chordcache.read.cache import open_cache
from chordcache.read.video import Video
from chordcache.records import Segment
from chordcache.storage.layout import key_of


def index_shots(cache: str | Path, output: str | os.PathLike[str]) -> tuple[int, int]:
    """Write an index with a segment for each shot of the cached videos, with the labels and columns of the video.

    A video without a cut stays as it is. Returns the number of videos and that of shots. Raises as ``open_cache`` and
    ``IndexWriter`` do.
    """
    num_videos = num_shots = 0
    with open_cache(cache) as videos:
        index = cached_index(videos.path)
        with index.writer(output) as writer:
            for record in index:
                if (key := key_of(record)) in videos:
                    shots = [record.replace(segment=shot, content=None) for shot in _shots(videos[key])] or [record]
                    num_videos, num_shots = num_videos + 1, num_shots + len(shots)
                    for shot in shots:
                        writer.write(shot)
    return num_videos, num_shots


def _shots(video: Video) -> Iterator[Segment]:
    """Yield the shots of a video as frames of its file, none if it does not have a cut."""
    numbers, cuts = video.source_frames.tolist(), video.cuts.tolist()
    end = None if video.segment is None else numbers[-1] + 1
    for first, stop in itertools.pairwise([0, *cuts, video.num_frames] if cuts else []):
        yield Segment(start_frame=numbers[first], end_frame=numbers[stop] if stop < video.num_frames else end)
