"""WebDataset with the JPEGs of ready-made clips in one tar file, shuffled in a buffer; no worker."""

from importlib.metadata import version

import webdataset
from protocol import Work, decoded, serve


def prepare(work: Work):
    """Make the tar file. Return the version and the reader."""
    target = str(work.folder / "clips.tar")
    names = [f"{i:02}.jpg" for i in range(len(work.clips[0]["frames"]))]
    with webdataset.TarWriter(target) as writer:
        for number in range(len(work.clips)):
            jpegs = dict(zip(names, work.jpegs(number), strict=True))
            writer.write({"__key__": f"{number:06}", **jpegs})
    dataset = webdataset.WebDataset(target, shardshuffle=False).shuffle(100)
    return f"WebDataset {version('webdataset')}", lambda: (
        decoded(sample[name] for name in names) for sample in dataset
    )


serve(prepare)
