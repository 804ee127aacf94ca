"""A cache and a video as HTML for notebooks: at most 200 kB, and every text of a file is escaped."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable

import numpy as np

from chordcache.amounts import first_few, shortened
from chordcache.errors import ChordcacheError, printable
from chordcache.look.video_facts import describe_video, rows_of_facts
from chordcache.read.cache import Cache
from chordcache.read.video import Video
from chordcache.storage.cache_header import read_header

MAX_BYTES = 200_000
"""Largest size of a page"""

_MAX_PICTURE_BYTES = 120_000
"""Largest size of the picture of a video. Base64 makes it a third larger"""

_NUM_POSTERS = 8
_POSTER_HEIGHT = 96
_MAX_ITEMS = 20
"""Number of labels or roots that are listed"""
_MAX_ROWS = 60
"""Number of facts of a video"""
_MAX_LETTERS = 400
"""Number of letters of a text"""

Html = str
"""Text that is HTML already"""


def cache_html(cache: Cache) -> Html:
    """Return the facts of a cache, and posters of a few videos that are evenly spread over the keys."""
    try:
        facts = _facts_of_cache(cache)
        last = len(cache) - 1
        chosen = np.unique(np.linspace(0, last, _NUM_POSTERS).round().astype(int)).tolist() if last >= 0 else []
        posters = "".join(_figure(cache, cache[position]) for position in chosen)
    except ChordcacheError as error:
        return _page(printable(repr(cache.path)), _table([("error", str(error))]))
    return _page(f"chordcache: {cache.path.name}", _table(facts.items()), posters)


def video_html(video: Video) -> Html:
    """Return the facts of a video and its sheet."""
    rows = list(rows_of_facts(describe_video(video)))
    more = [("...", f"{len(rows) - _MAX_ROWS:,} more, see chordcache info")] if len(rows) > _MAX_ROWS else []
    return _page(video.key, _table(rows[:_MAX_ROWS] + more), _sheet(video))


def _facts_of_cache(cache: Cache) -> dict[str, str]:
    header = read_header(cache.path)
    return {
        "path": str(cache.path),
        "videos": f"{len(cache):,}",
        "frames": f"{int(cache.num_frames.sum(dtype=np.int64)):,}",
        "features": "; ".join(f"{tier}: {', '.join(names)}" for tier, names in header.features.items()),
        "labels": ", ".join(shortened(label, 60) for label in first_few(cache.labels(), _MAX_ITEMS)) or "none",
        "roots": ", ".join(first_few([f"{name}: {path}" for name, path in header.roots.items()], _MAX_ITEMS)),
    }


def _escaped(text: str) -> Html:
    """Return a text of a file as HTML. Control characters are shown, also those that turn the direction of text."""
    return f"<bdi>{html.escape(printable(shortened(text, _MAX_LETTERS)))}</bdi>"


def _table(facts: Iterable[tuple[str, str]]) -> Html:
    cell = 'style="text-align:left;vertical-align:top;overflow-wrap:anywhere"'
    rows = (f"<tr><th {cell}>{_escaped(name)}</th><td {cell}>{_escaped(value)}</td></tr>" for name, value in facts)
    return f"<table>{''.join(rows)}</table>"


def _page(title: str, *parts: Html) -> Html:
    """Return a page. Pictures that would make it too large are left out."""
    page = f"<div><b>{_escaped(title)}</b>"
    for part in parts:
        if len(page.encode()) + len(part.encode()) < MAX_BYTES - 100:
            page += part
    return page + "</div>"


def _figure(cache: Cache, video: Video) -> Html:
    """Return the middle frame of a video with its key, or the reason why it cannot be read."""
    try:
        from chordcache.look.pictures import scaled_to_height, webp  # not at the top: it loads OpenCV

        frame = cache.read(video, "frames", indices=[video.num_frames // 2])[0]
        inside = _image(webp(scaled_to_height(frame, _POSTER_HEIGHT), 60), f"frame of {video.key}")
    except (ChordcacheError, ImportError, IndexError, OSError) as error:
        inside = f"<p>{_escaped(str(error))}</p>"
    return (
        '<figure style="display:inline-block;margin:4px;max-width:180px;vertical-align:top;overflow-wrap:anywhere">'
        f"{inside}<figcaption>{_escaped(video.key)}<br>{_escaped(video.label or '')} {video.duration_seconds:.1f} s"
        "</figcaption></figure>"
    )


def _sheet(video: Video) -> Html:
    try:
        from chordcache.look.draw_sheet import show  # not at the top: it loads OpenCV
        from chordcache.look.pictures import webp

        picture = show(video).picture
        sizes: Iterable[bytes] = (webp(picture, quality) for quality in (80, 60, 40, 20, 5))
        data = next((data for data in sizes if len(data) <= _MAX_PICTURE_BYTES), None)
    except (ChordcacheError, ImportError, OSError) as error:
        return f"<p>{_escaped(str(error))}</p>"
    return "<p>The picture is too large.</p>" if data is None else _image(data, f"sheet of {video.key}")


def _image(webp: bytes, description: str) -> Html:
    text = html.escape(description)
    return f'<img alt="{text}" style="max-width:100%" src="data:image/webp;base64,{base64.b64encode(webp).decode()}">'
