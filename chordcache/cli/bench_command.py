"""``chordcache bench``."""

from __future__ import annotations

from typing import Any

import click

from chordcache.cli.commands import GroupedCommand
from chordcache.cli.options import cache_argument, json_option, roots_option
from chordcache.cli.output import echo_result


@click.command(cls=GroupedCommand)
@cache_argument()
@click.option("--batch-size", type=int, default=8, help="Clips in a batch.")
@click.option("--num-frames", type=int, default=16, help="Frames in a clip.")
@click.option("--stride", type=int, default=4, help="Distance of the frames of a clip.")
@click.option("--size", type=int, default=224, metavar="PIXELS",
              help="Side of the square center crop.")  # fmt: skip
@click.option("--workers", type=int, default=2,
              help="Processes of each DataLoader, and threads of the ClipLoader.")  # fmt: skip
@click.option("--step-ms", type=float, default=50.0, metavar="MS",
              help="Duration of a training step, which may wait for batches.")  # fmt: skip
@click.option("--seconds", type=float, default=5.0,
              help="Time to measure each way, without its start.")  # fmt: skip
@roots_option
@json_option
def bench(cache: str, roots: Any, as_json: bool, **options: Any) -> None:
    """Measure how fast the cache feeds a training job, against reading the videos themselves.

    All ways to read make the same clips, each in its own process, in turn. Nothing in the cache changes. With the
    defaults, it takes about a minute.

    \b
    Example:
      chordcache bench cache --workers 4 --batch-size 16 --step-ms 80
    """
    # Not before: --help does not need what it loads
    from chordcache.tools.bench import measurement
    from chordcache.tools.bench.result import as_text
    from chordcache.tools.bench.ways import BenchOptions

    result = measurement.bench(cache, options=BenchOptions(**options), roots=roots, progress=True)
    echo_result(result.to_json(), as_text(result), as_json)
