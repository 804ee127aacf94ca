"""``chordcache bench``."""

from __future__ import annotations

from typing import Any

import click

from chordcache.cli.options import cache_argument, json_option, roots_option
from chordcache.cli.output import echo_result


@click.command()
@cache_argument()
@click.option("--workers", type=int, default=2,
              help="Processes of each DataLoader, and threads of the ClipLoader.")  # fmt: skip
@roots_option
@json_option
def bench(cache: str, workers: int, roots: Any, as_json: bool) -> None:
    """Measure how fast the cache feeds a training job, against reading the videos themselves.

    All ways to read make the same batches of 8 clips of 16 frames, 4 apart, cut to 224x224, each in its own process, in
    turn. Nothing in the cache changes. It takes about a minute.

    \b
    Example:
      chordcache bench cache --workers 4
    """
    # Not before: --help does not need what it loads
    from chordcache.tools.bench import measurement
    from chordcache.tools.bench.result import as_text
    from chordcache.tools.bench.ways import BenchOptions

    result = measurement.bench(cache, options=BenchOptions(workers=workers), roots=roots, progress=True)
    echo_result(result.to_json(), as_text(result), as_json)
