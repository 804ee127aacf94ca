"""MosaicML MDS with the JPEGs of ready-made clips in its shards, shuffled; no worker."""

from importlib.metadata import version

from protocol import Work, decoded, serve
from streaming import MDSWriter, StreamingDataset


def prepare(work: Work):
    """Make the shards. Return the version and the reader."""
    target = str(work.folder / "mds")
    names = [f"frame{i:02}" for i in range(len(work.clips[0]["frames"]))]
    with MDSWriter(out=target, columns=dict.fromkeys(names, "bytes")) as writer:
        for number in range(len(work.clips)):
            writer.write(dict(zip(names, work.jpegs(number), strict=True)))
    dataset = StreamingDataset(local=target, shuffle=True, batch_size=1)
    return f"MosaicML streaming {version('mosaicml-streaming')}", lambda: (
        decoded(sample[name] for name in names) for sample in dataset
    )


if __name__ == "__main__":
    serve(prepare)
