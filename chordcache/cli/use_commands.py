"""Commands below "Use it": ``export``, ``push``, ``pull``."""

from __future__ import annotations

from typing import Any

import click

import chordcache as cc
from chordcache.amounts import counted, human_bytes
from chordcache.choices import EXPORT_FORMATS, EXPORT_FRAMES
from chordcache.cli.options import cache_argument, json_option, roots_option, where_option
from chordcache.cli.output import echo_result
from chordcache.cli.values import FOLDER, PATH
from chordcache.errors import printable


@click.command()
@cache_argument(has_option=False)
@click.option(
    "--format", "to", type=click.Choice(EXPORT_FORMATS), required=True, metavar="|".join(EXPORT_FORMATS), help="Format."
)
@click.option("-o", "--output", type=FOLDER, required=True, metavar="FOLDER", help="New folder.")
@click.option("--frames", type=click.Choice(EXPORT_FRAMES), metavar="jpg|mp4|none",
              help="Frames as JPEGs, as packets of the source, or none.", show_default="jpg")  # fmt: skip
@click.option("--clip", type=int, metavar="N", help="Frames in a sample.", show_default="a whole video")
@click.option("--stride", type=int, default=1, metavar="N", help="Distance of the frames of a clip.")
@click.option("--shards", type=int, default=1, metavar="N", help="Number of shards, all with as many samples.")
@click.option(
    "--videos", type=PATH, metavar="SPLIT", help="Split file with the keys or paths of the videos.", show_default="all"
)
@where_option
@roots_option
@json_option
def export(cache: str, output: str, as_json: bool, **options: Any) -> None:
    """Write a cache in a format of other libraries.

    CACHE is the folder of a cache.  [env var: CHORDCACHE_CACHE; default: cache] After a stop, the same command
    continues.

    \b
    Example:
      chordcache export cache --format webdataset --clip 16 --stride 4 --shards 64 -o shards
    """
    summary = cc.export(cache, output, progress=True, **options)
    left_out = [
        f"{counted(count, noun)} {what}"
        for count, noun, what in (
            (summary.num_dropped, "sample", "dropped, so that all shards have the same number"),
            (summary.num_too_short, "video", "shorter than a clip"),
        )
        if count
    ]
    samples = f"{counted(summary.num_samples, 'sample')} in {counted(summary.num_files, 'file')}"
    echo_result(summary._asdict(), "; ".join([f"{printable(output)}: {samples}", *left_out]), as_json)


@click.command()
@cache_argument(has_option=False)
@click.argument("url")
@json_option
def push(cache: str, url: str, as_json: bool) -> None:
    """Copy a cache into an object store.

    URL names a place in an object store: s3://NAME/PREFIX, gs://... or az://... Endpoint and credentials come from the
    environment. The list of videos comes last. After a stop, or when the cache has changed, the same command sends what
    is missing.

    \b
    Example:
      chordcache push cache s3://data/cache
    """
    from chordcache.object_stores import push as copying  # --help does not need it

    _echo(f"{printable(url)}: sent", copying.push(cache, url, progress=True), as_json)


@click.command()
@click.argument("url")
@click.argument("cache", type=FOLDER)
@json_option
def pull(url: str, cache: str, as_json: bool) -> None:
    """Copy a cache from an object store into a folder.

    URL is where 'chordcache push' copied the cache. CACHE is a new folder, or one of an earlier pull, which gets what
    is missing. The digest of each file is compared while it arrives.

    \b
    Example:
      chordcache pull s3://data/cache cache
    """
    from chordcache.object_stores import pull as copying  # --help does not need it

    _echo(f"{printable(cache)}: got", copying.pull(url, cache, progress=True), as_json)


def _echo(start: str, summary: Any, as_json: bool) -> None:
    """Print what was copied."""
    line = (
        f"{start} {counted(summary.num_files, 'file')}, {human_bytes(summary.num_bytes)}; "
        f"{counted(summary.num_present, 'file')} there already; {counted(summary.num_videos, 'video')}"
    )
    echo_result(summary, line, as_json)
