"""The lines that ``chordcache info`` prints for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from chordcache.amounts import first_few, human_bytes, shortened
from chordcache.errors import printable

if TYPE_CHECKING:  # --help does not need what it loads
    from chordcache.look.problems import Problem

_MAX_ITEMS = 20
"""Number of labels or of other items that are listed"""

_MAX_LETTERS = 400
"""Number of letters of a caption or of another text"""


def summary_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines about a cache or an index. ``facts`` is the result of ``summarize``."""
    for name, value in facts.items():
        if name != "config" and value != {}:  # for machines: chordcache.json has the config too
            yield _line(name, _summary_text(name, value))


def _summary_text(name: str, value: Any) -> str:
    if not isinstance(value, dict):
        return human_bytes(value) if name == "bytes" else str(value)
    if name == "bytes":
        parts = [f"{key} {human_bytes(size)}" for key, size in value.items()]
        return ", ".join([*parts, f"all {human_bytes(sum(value.values()))}"] if len(parts) > 1 else parts)
    items = (f"{shortened(key, 100)} {' '.join(v) if isinstance(v, list) else v}" for key, v in value.items())
    return ", ".join(first_few(list(items), _MAX_ITEMS))


def video_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines about a video. ``facts`` is the result of ``describe_video``."""
    for name in ("key", "path", "root", "source"):
        yield _line(name, str(facts[name]))
    yield _line("source file", f"{human_bytes(facts['source_bytes'])}, modified {facts['source_modified']}")
    if facts["segment"]:
        yield _line("segment", json.dumps(facts["segment"]))
    yield _line("frames", f"{facts['frames']}, {_keyframes(facts['keyframes'])}")
    yield _line("size", f"{facts['width']} x {facts['height']}, shown as {facts['display_width']} x "
                f"{facts['display_height']}")  # fmt: skip
    if facts["bucket"]:
        _, _, width, height = facts["display_crop"]
        yield _line("bucket", f"{facts['bucket']}, cut to {width:.0f} x {height:.0f}")
    start, duration = facts["start_seconds"], facts["duration_seconds"]
    yield _line("time", f"{start:.6g} s to {start + duration:.6g} s, {duration:.6g} s ({facts['timestamp_source']})")
    if facts["frames_skipped"]:
        yield _line("skipped", f"{facts['frames_skipped']} frames before the first keyframe")
    for note in facts["notes"]:
        yield _line("note", note)
    yield _line("bytes", human_bytes(facts["bytes"]))
    for feature in facts["features"]:
        yield _line(f"  {feature['feature']}, {feature['tier']}", _feature_text(feature))
    if damage := facts["damage"]:
        kept = f"{damage['num_frames_kept']} of {damage['num_frames']} frames kept"
        yield _line("damage", _cut(f"{kept}; then {damage['message']}"))
    yield from _annotation_lines(facts)
    yield _line("show", facts["show"])


def _annotation_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    for name in ("label", "caption"):
        if facts[name] is not None:
            yield _line(name, _cut(facts[name]))
    for name in ("labels", "captions"):
        for text in first_few(facts[name], _MAX_ITEMS):
            yield _line(name, _cut(text))
    for name, value in facts["extra"].items():
        yield _line(f"extra {name}", _cut(value if isinstance(value, str) else json.dumps(value)))


def problem_lines(problem: Problem) -> Iterator[str]:
    """Yield the lines about a failure."""
    yield f"{printable(problem.path)}"
    yield f"  {problem.kind}, stage {printable(problem.stage)}, cause {printable(problem.cause)}"
    yield f"  {printable(shortened(problem.message, _MAX_LETTERS))}"
    if problem.remedy:
        yield f"  {printable(problem.remedy)}"


def _line(name: str, text: str) -> str:
    return f"{printable(shortened(name.replace('_', ' '), 60)):20} {printable(text)}"


def _cut(text: str) -> str:
    return shortened(text, _MAX_LETTERS)


def _keyframes(number: int | None) -> str:
    return "keyframes unknown" if number is None else f"{number} keyframe{'s' * (number != 1)}"


def _feature_text(feature: Mapping[str, Any]) -> str:
    if feature["absent"] is not None:
        return f"absent: {feature['absent']}"
    shape = " x ".join(map(str, feature["shape"]))
    return f"{feature['dtype']} {shape}, {human_bytes(feature['bytes'])}, {feature['file']}"
