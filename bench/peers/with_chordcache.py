"""chordcache: random clips of its LMDB cache by ``ClipLoader``, one thread."""

from protocol import SIZE, Work, serve

import chordcache as cc


class FixedClips:
    """A clip sampler that takes the clips of ``clips.json``, so that all peers read the same frames."""

    def __init__(self, clips):
        self._frames = {}
        for clip in clips:
            self._frames.setdefault(clip["key"], []).append(clip["frames"])

    def frame_numbers(self, video, request):
        """Return the frames of a clip."""
        return self._frames[video.key][request.clip]


def prepare(work: Work):
    """Return the version and the reader."""
    keys = list(dict.fromkeys(clip["key"] for clip in work.clips))
    dataset = cc.ChordVideoDataset(
        work.folder / "cache",
        clip_sampler=FixedClips(work.clips),
        size=(SIZE, SIZE),
        videos=keys,
        clips_per_video=len(work.clips) // len(keys),
    )
    loader = cc.ClipLoader(dataset, batch_size=8, num_threads=1)
    return f"chordcache {cc.__version__}", lambda: (
        clip for batch in loader for clip in batch["frames"].permute(0, 1, 3, 4, 2).numpy()
    )


serve(prepare)
