"""torchcodec from the source: all frames of a clip at once, scaled by the decoder, approximate seeks; one thread."""

import torch
import torchcodec
from protocol import Work, clip_of, serve
from torchcodec.decoders import VideoDecoder
from torchcodec.transforms import Resize


def clip(described):
    """Return a clip."""
    decoder = VideoDecoder(
        described["video"],
        dimension_order="NHWC",
        num_ffmpeg_threads=1,
        seek_mode="approximate",
        transforms=[Resize(tuple(described["size"]))],
    )
    frames = decoder.get_frames_at(described["frames"]).data.numpy()
    return clip_of(frames, len(frames))


def prepare(work: Work):
    """Return the version and the reader."""
    torch.set_num_threads(1)
    return f"torchcodec {torchcodec.__version__}", lambda: map(clip, work.clips)


serve(prepare)
