"""The features that some videos of a dataset do not have. The catalog knows them, so that no sidecar is read."""

from __future__ import annotations

from functools import partial

import numpy as np

from chordcache.errors import FeatureAbsentError
from chordcache.features.read_sides import read_sides
from chordcache.read.cached_videos import VideoSet
from chordcache.read.clips import HOW_TO_ADD, ClipReader
from chordcache.read.video import Video
from chordcache.storage.catalog_columns import FeatureState


def settle_absences(videos: VideoSet, clips: ClipReader) -> None:
    """Raise now what a video without a feature would raise in the middle of an epoch, or leave such videos out.

    Parameters
    ----------
    videos : VideoSet
        The videos of a dataset. With ``missing="skip"``, those without one of the features are left out.
    clips : ClipReader
        The features, and the policy ``missing``.

    Raises
    ------
    FeatureAbsentError
        If a video was not built with a feature, unless it is skipped. If a feature is absent from one, with
        ``missing="error"``, or with "zeros" if the shape of the zeros is unknown. If no video is left.
    """
    states = np.stack([videos.feature_states(name) for name in clips.features])
    if clips.missing == "skip":
        has_all = np.all(states == FeatureState.CACHED, axis=0)
        if not has_all.any():
            raise FeatureAbsentError(
                f"{_counted(videos, states, clips.features)}. No video has all of them. {HOW_TO_ADD}"
            )
        if not has_all.all():
            videos.keep(has_all)
        return
    if np.any(states == FeatureState.NOT_BUILT):
        raise _not_built(videos, states, clips)
    if clips.missing == "error" and np.any(states == FeatureState.ABSENT):
        counted = _counted(videos, states, clips.features)
        raise FeatureAbsentError(f"{counted}. Take missing='zeros', missing='skip', or a selection by videos=.")
    _check_zeros(videos, states, clips)


def _counted(videos: VideoSet, states: np.ndarray, features: tuple[str, ...]) -> str:
    """Return the number of videos that lack each feature, with an example, in words."""
    counts = []
    for name, row in zip(features, states, strict=True):
        lacking = np.flatnonzero(row != FeatureState.CACHED)
        if len(lacking):
            example = videos.read(int(lacking[0]), partial(_reason, name))
            counts.append(f"{len(lacking)} of {len(row)} videos have no {name}, such as {example}")
    return f"features: {'; '.join(counts)}"


def _reason(name: str, reader: object, video: Video) -> str:
    info = video.sidecar.feature(name)
    return f"'{video.key}' ({'not built' if info is None else info.absent})"


def _not_built(videos: VideoSet, states: np.ndarray, clips: ClipReader) -> FeatureAbsentError:
    """Return the error for the first of the features that a video was not built with."""
    row = int(np.argmax(np.any(states == FeatureState.NOT_BUILT, axis=1)))
    positions = np.flatnonzero(states[row] == FeatureState.NOT_BUILT)
    some = ""
    if len(positions) < states.shape[1]:
        some = (
            f", which {len(positions)} of {states.shape[1]} videos were not built with (missing='skip' leaves them out)"
        )

    def error(reader: object, video: Video) -> FeatureAbsentError:
        have = dict.fromkeys(info.feature for info in video.sidecar.features)
        return FeatureAbsentError(
            f"features: got '{clips.features[row]}'{some}, expected one of {', '.join(have)}, which are cached for "
            f"video '{video.key}'. {HOW_TO_ADD}"
        )

    return videos.read(int(positions[0]), error)


def _check_zeros(videos: VideoSet, states: np.ndarray, clips: ClipReader) -> None:
    """Raise ``FeatureAbsentError`` for the first video whose absent features cannot be replaced."""
    has_none = np.all(states == FeatureState.ABSENT, axis=0)
    for name in read_sides() if has_none.any() else ():  # any other feature has the frame times too
        has_none = has_none & (videos.feature_states(name) != FeatureState.CACHED)
    unknown = np.flatnonzero(has_none)
    if len(unknown) and not videos.read(int(unknown[0]), _has_times):
        counted = _counted(videos, states, clips.features)
        raise FeatureAbsentError(
            f"{counted}. {len(unknown)} have none of the features, so their frame times are unknown. Take "
            "missing='skip', or build the feature frames."
        )
    for row, name in enumerate(clips.features):
        absent = np.flatnonzero(states[row] == FeatureState.ABSENT)
        if len(absent):
            videos.read(int(absent[0]), partial(clips.check_zeros, name))


def _has_times(reader: object, video: Video) -> bool:
    return any(info.file is not None for info in video.sidecar.features)
