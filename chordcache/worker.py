"""What happens to one video: one decode, every extractor, publish. Runs in a worker process."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from chordcache import manifest
from chordcache.config import FramesConfig
from chordcache.decode import Media, identify, open_media
from chordcache.errors import CacheWriteError, MediaError
from chordcache.extractors.frames import frame_record, frames_fingerprint, frames_params, select_fps
from chordcache.manifest import Sidecar
from chordcache.picture import PictureScaler
from chordcache.quarantine import Failure
from chordcache.records import FeatureInfo, Identity
from chordcache.stores.lmdb_store import LmdbWriter


@dataclass(frozen=True)
class BuildTask:
    """One video to build."""

    cache: Path
    key: str
    root: str
    path: str
    source_path: str
    """Absolute"""
    frames: FramesConfig
    label: str | None = None
    caption: str | None = None
    extra: Mapping[str, str] = field(default_factory=dict)


def build_video(task: BuildTask) -> Sidecar | Failure:
    """Decode one video, publish its artefacts, then its sidecar."""
    source: Identity | None = None
    try:
        source = identify(task.source_path)
        with manifest.partial_folder(task.cache) as folder:
            sidecar = _write(task, source, folder / "frames.lmdb")
            if identify(task.source_path) != source:
                raise MediaError("decode", "changed", "the file changed while it was read", sidecar.num_frames)
            manifest.publish(folder / "frames.lmdb", task.cache / str(sidecar.features[0].file))
        manifest.publish_text(task.cache, manifest.sidecar_path(task.cache, task.key), sidecar.to_line() + "\n")
        return sidecar
    except CacheWriteError:
        raise
    except OSError as error:  # sources are read by libav: this is the cache's own disk, and no fault of the video
        raise CacheWriteError(
            f"cannot write to cache '{task.cache}': {error.strerror} ('{error.filename}'); run the same command"
        ) from None
    except MediaError as error:
        return Failure(
            task.key, task.root, task.path, error.stage, error.cause, error.message, source, error.num_frames_ok
        )


def _write(task: BuildTask, source: Identity, partial: Path) -> Sidecar:
    """Write the frames into ``partial`` and return the sidecar that names them."""
    pts_seconds, source_frames = array("d"), array("q")  # a tenth of a list's memory
    with open_media(task.source_path) as media, LmdbWriter(partial) as writer:
        scaler = PictureScaler(task.frames.short_side, media.require_video().sample_aspect_ratio)
        for frame in select_fps(media.frames(), task.frames.fps):
            writer.append(frame_record(frame, scaler, task.frames))
            pts_seconds.append(frame.pts_seconds)
            source_frames.append(frame.number)
        writer.finish({"pts_seconds": np.asarray(pts_seconds), "source_frames": np.asarray(source_frames)})
        clock, frame_seconds, notes = media.clock, float(media.frame_seconds), _notes(media, scaler)
    width, height = scaler.size
    fingerprint = frames_fingerprint(task.frames)
    info = FeatureInfo(
        feature="frames",
        tier="lmdb",
        fingerprint=fingerprint,
        params=frames_params(task.frames),
        file=manifest.artefact_file("lmdb", task.key, [fingerprint], source),
        shape=(len(pts_seconds), height, width, 3),
        dtype="uint8",
        num_bytes=partial.stat().st_size,
        digest=manifest.digest_file(partial),
    )
    return Sidecar(
        key=task.key,
        root=task.root,
        path=task.path,
        source=source,
        num_frames=len(pts_seconds),
        width=width,
        height=height,
        start_seconds=pts_seconds[0],
        duration_seconds=max(pts_seconds) - min(pts_seconds) + frame_seconds,
        clock=clock,
        features=(info,),
        label=task.label,
        caption=task.caption,
        extra=task.extra,
        notes=notes,
    )


def _notes(media: Media, scaler: PictureScaler) -> tuple[str, ...]:
    notes = []
    turn = scaler.orientation
    if turn.mirrored or turn.rotation:
        notes.append(f"{'mirrored and ' if turn.mirrored else ''}turned {turn.rotation} degrees clockwise")
    aspect = media.require_video().sample_aspect_ratio
    if aspect and aspect != 1:
        notes.append(f"pixels of {aspect.numerator}:{aspect.denominator} made square")
    if scaler.num_resized:
        notes.append(f"{scaler.num_resized} frames of another size scaled to the first one's")
    if media.clock != "pts":
        notes.append(f"no presentation times in the file: taken from its {media.clock}")
    return tuple(notes)
