"""``chordcache show``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from chordcache.cli.options import json_option
from chordcache.cli.output import echo_result
from chordcache.cli.values import CACHE_OR_KEY, KEY, PATH, default_cache
from chordcache.errors import DamageError, UsageError, printable

if TYPE_CHECKING:  # --help does not need what it loads
    from chordcache.look.draw_sheet import Sheet


@click.command()
@click.argument("cache", type=CACHE_OR_KEY, required=False, metavar="[CACHE]")
@click.argument("video", type=KEY, required=False, metavar="KEY|PATH")
@click.option(
    "-o", "--output", type=PATH, metavar="FILE", help="PNG file.", show_default="KEY.png in the working folder"
)
@click.option("--start", "start_seconds", type=float, metavar="S", help="Begin at this time of the source, in seconds.")
@click.option("--stop", "stop_seconds", type=float, metavar="S", help="End at this time of the source, in seconds.")
@json_option
def show(cache: str | None, video: str | None, output: str | None, as_json: bool, **view: float | None) -> None:
    """Draw one video as a PNG: frames, flow, motion and sound on one time axis.

    The beginning of a key is enough, or the path of the video. CACHE is the folder of a cache.  [env var:
    CHORDCACHE_CACHE; default: cache]

    \b
    Example:
      chordcache show bikes -o sheet.png
    """
    if video is None:
        cache, video = default_cache(), cache
    if cache is None or video is None:
        raise UsageError("video: got nothing, expected a key or a path")
    target, sheet = _draw(cache, video, output, view)
    facts = {"key": sheet.key, "drawn": list(sheet.rows), "absent": sheet.absent, "damage": sheet.damage}
    echo_result({"path": str(target), **facts}, printable(target), as_json)
    if sheet.damage:
        raise DamageError("; ".join(f"{name}: {message}" for name, message in sheet.damage.items()))


def _draw(cache: str, video: str, output: str | None, view: dict[str, float | None]) -> tuple[Path, Sheet]:
    from chordcache.read.cache import open_cache  # the imports are not for --help
    from chordcache.read.find_video import find_video
    from chordcache.storage.layout import check_output

    with open_cache(cache) as opened:
        cached = find_video(opened, video)
        target = Path(output or f"{cached.key}.png")
        check_output("output", target)
        try:
            from chordcache.look import draw_sheet  # it loads OpenCV

            sheet = draw_sheet.show(cached, **view)  # type: ignore[arg-type]
        except ImportError as error:
            raise UsageError(str(error)) from None
    return sheet.save(target), sheet
