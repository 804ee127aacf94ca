"""PyAV from the source: one seek to the keyframe before the first frame, then frames in order; one thread."""

import av
from protocol import Work, clip_of, serve


def frames_of(clip):
    """Yield the frames of a clip, found by their times at a constant rate."""
    height, width = clip["size"]
    with av.open(clip["video"]) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        ticks = 1 / stream.time_base / stream.average_rate
        start = stream.start_time or 0
        container.seek(start + round(clip["frames"][0] * ticks), stream=stream)
        wanted = iter(clip["frames"])
        number = next(wanted)
        for frame in container.decode(stream):
            if round((frame.pts - start) / ticks) == number:
                yield frame.reformat(width, height, "rgb24").to_ndarray()
                number = next(wanted, None)
                if number is None:
                    return


def prepare(work: Work):
    """Return the version and the reader."""
    return f"PyAV {av.__version__}", lambda: (clip_of(frames_of(c), len(c["frames"])) for c in work.clips)


serve(prepare)
