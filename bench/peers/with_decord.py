"""decord (eva-decord) from the source: a batch of frames, scaled by the decoder; one thread."""

from importlib.metadata import version

from decord import VideoReader, cpu
from protocol import Work, clip_of, serve


def clip(described):
    """Return a clip."""
    height, width = described["size"]
    reader = VideoReader(described["video"], ctx=cpu(0), width=width, height=height, num_threads=1)
    frames = reader.get_batch(described["frames"]).asnumpy()
    return clip_of(frames, len(frames))


def prepare(work: Work):
    """Return the version and the reader."""
    return f"eva-decord {version('eva-decord')}", lambda: map(clip, work.clips)


serve(prepare)
