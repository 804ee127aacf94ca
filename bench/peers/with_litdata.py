"""LitData with the JPEGs of ready-made clips in its chunks of 64 MB, shuffled; no worker."""

from functools import partial
from importlib.metadata import version

from litdata import StreamingDataset, optimize
from protocol import Work, decoded, serve


def jpegs_of(number, folder):
    """Return the JPEGs of a clip."""
    return Work(folder).jpegs(number)


def prepare(work: Work):
    """Make the chunks. Return the version and the reader."""
    target = str(work.folder / "litdata")
    optimize(
        fn=partial(jpegs_of, folder=str(work.folder)),
        inputs=list(range(len(work.clips))),
        output_dir=target,
        chunk_bytes="64MB",
        num_workers=1,
    )
    dataset = StreamingDataset(target, shuffle=True)
    return f"LitData {version('litdata')}", lambda: map(decoded, dataset)


if __name__ == "__main__":
    serve(prepare)
