"""Lance with one row for each frame's JPEG, random access by ``take``; one thread decodes."""

import lance
import numpy as np
import pyarrow
from protocol import Work, decoded, serve


def prepare(work: Work):
    """Make the table. Return the version and the reader."""
    jpegs = [jpeg for number in range(len(work.clips)) for jpeg in work.jpegs(number)]
    table = pyarrow.table({"jpeg": pyarrow.array(jpegs, pyarrow.large_binary())})
    dataset = lance.write_dataset(table, str(work.folder / "clips.lance"))
    num_frames = len(work.clips[0]["frames"])
    random = np.random.default_rng(0)

    def read_all():
        for number in random.permutation(len(work.clips)).tolist():
            rows = range(number * num_frames, (number + 1) * num_frames)
            column = dataset.take(list(rows), columns=["jpeg"])["jpeg"]
            yield decoded(jpeg.as_buffer() for jpeg in column)

    return f"Lance {lance.__version__}", read_all


serve(prepare)
