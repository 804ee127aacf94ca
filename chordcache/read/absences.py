"""The features that some videos of a dataset do not have. The catalog knows them, so that no sidecar is read."""

from __future__ import annotations

from functools import partial

import numpy as np

from chordcache.errors import FeatureAbsentError
from chordcache.read.cached_videos import VideoSet
from chordcache.read.clips import HOW_TO_ADD, ClipReader
from chordcache.read.video import Video
from chordcache.storage.catalog import FeatureState


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
            raise FeatureAbsentError(f"{_counted(states, clips.features)}, and no video has all of them. {HOW_TO_ADD}")
        if not has_all.all():
            videos.keep(has_all)
        return
    if np.any(states == FeatureState.NOT_BUILT):
        raise _not_built(videos, states, clips)
    if clips.missing == "error" and np.any(states == FeatureState.ABSENT):
        raise FeatureAbsentError(
            f"{_counted(states, clips.features)}. Take missing='zeros', missing='skip', or a selection by videos=."
        )
    _check_zeros(videos, states, clips)


def _counted(states: np.ndarray, features: tuple[str, ...]) -> str:
    """Return the number of videos that lack each feature, in words."""
    num_videos = states.shape[1]
    lacking = np.count_nonzero(states != FeatureState.CACHED, axis=1)
    counts = {name: number for name, number in zip(features, lacking, strict=True) if number}
    return "features: " + ", ".join(f"{n} of {num_videos} videos have no {name}" for name, n in counts.items())


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
    if has_none.any():
        (key,) = videos.keys_of(np.flatnonzero(has_none)[:1])
        raise FeatureAbsentError(
            f"{_counted(states, clips.features)}. {np.count_nonzero(has_none)} have none of the features, such as "
            f"'{key}', so their frame times are unknown. Take missing='skip', or add the feature frames."
        )
    for row, name in enumerate(clips.features):
        absent = np.flatnonzero(states[row] == FeatureState.ABSENT)
        if len(absent):
            videos.read(int(absent[0]), partial(clips.check_zeros, name))
