"""OpenCV from the source: one seek to the first frame, then frames in order; one thread."""

import cv2
from protocol import Work, clip_of, serve


def frames_of(clip):
    """Yield the frames of a clip. Frames between them are grabbed, and not converted."""
    capture = cv2.VideoCapture(clip["video"], cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, 1])
    height, width = clip["size"]
    capture.set(cv2.CAP_PROP_POS_FRAMES, clip["frames"][0])
    position = clip["frames"][0]
    for number in clip["frames"]:
        while position < number:
            capture.grab()
            position += 1
        _, picture = capture.read()
        position += 1
        small = cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)
        yield cv2.cvtColor(small, cv2.COLOR_BGR2RGB)
    capture.release()


def prepare(work: Work):
    """Return the version and the reader."""
    cv2.setNumThreads(1)
    return f"OpenCV {cv2.__version__}", lambda: (clip_of(frames_of(c), len(c["frames"])) for c in work.clips)


serve(prepare)
