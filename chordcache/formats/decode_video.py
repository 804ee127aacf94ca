"""A decoder of video files for WebDataset, with exact frames."""

from __future__ import annotations

from typing import Any

import torch

from chordcache.arguments import names_arguments
from chordcache.errors import AbsentFeatureError
from chordcache.media.remux import in_memory
from chordcache.sources.media_file import MP4Source

_SUFFIXES = ("avi", "m4v", "mkv", "mov", "mp4", "mpg", "ogv", "ts", "webm", "wmv")


@names_arguments
def decode_video(key: str, data: bytes) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]] | None:
    """Decode a video file of a WebDataset sample: ``WebDataset(shards).decode(chordcache.decode_video)``.

    It takes the place of ``webdataset.torch_video``, which needs ``torchvision.io.read_video``. That function left
    torchvision with version 0.26.

    Parameters
    ----------
    key : str
        Name of the file in the sample, which ends with its suffix, such as ".mp4".
    data : bytes
        The file.

    Returns
    -------
    frames : torch.Tensor [shape=(T, H, W, 3), dtype=uint8, 0 to 255, RGB]
        All frames, in the order in which they are shown.
    sound : torch.Tensor [shape=(channels, num_samples), dtype=float32, -1 to 1]
        The sound between the first frame and the end of the last, without samples if the file does not have sound.
    info : dict
        "video_fps" [frames per second], "audio_fps" [Hz] if there is sound, and "pts_seconds" of each frame.

    None for a file with the suffix of another kind, which other decoders may take.

    Raises
    ------
    MediaError
        If the file is damaged, or a frame cannot be decoded.
    """
    if key.rpartition(".")[2].lower() not in _SUFFIXES:
        return None
    with in_memory(data) as place, MP4Source().open(place) as source:
        frames = source.get_frames(range(source.num_frames))
        times = source.pts_seconds
        info: dict[str, Any] = {"video_fps": source.fps, "pts_seconds": times.tolist()}
        end = float(times[-1]) + float(source.frame_index.frame_seconds)
        try:
            sound = source.get_audio_chunk(float(times[0]), end - float(times[0])).T.copy()
            info["audio_fps"] = source.sample_rate
        except AbsentFeatureError:
            sound = None
    return torch.from_numpy(frames), torch.zeros(1, 0) if sound is None else torch.from_numpy(sound), info
