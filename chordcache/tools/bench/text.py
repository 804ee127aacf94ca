"""The result as text for a terminal, and as a Markdown page."""

from __future__ import annotations

from collections.abc import Sequence

from chordcache.errors import printable
from chordcache.tools.bench.result import BenchResult, RowResult, setting_of

HEADINGS = (
    "row", "loader", "setting", "clips/s", "least-most", "x", "p50 ms", "p99 ms", "waits", "CPU ms/clip", "MiB",
    "B/frame",
)  # fmt: skip
"""Headings of the table. "waits" is the share of time that a training step would wait"""


def cells_of(row: RowResult) -> list[str]:
    """Return the cells of a row, in the order of ``HEADINGS``. A figure that was not measured is a dash."""
    least_most = row.clips_per_second_range
    return [
        printable(row.name),
        row.loader,
        setting_of(row),
        _number(row.clips_per_second, ".1f"),
        "-" if least_most is None else f"{least_most[0]:.1f}-{least_most[1]:.1f}",
        _number(row.speedup, ".2f"),
        _number(row.batch_ms_p50, ".0f"),
        _number(row.batch_ms_p99, ".0f"),
        _number(row.wait_share, ".0%"),
        _number(row.cpu_ms_per_clip, ".0f"),
        "-" if row.memory_bytes is None else f"{row.memory_bytes / 2**20:.0f}",
        _number(row.bytes_per_frame, ".0f"),
    ]


def table_of(result: BenchResult) -> tuple[list[str], list[list[str]]]:
    """Return the headings and the cells of all rows. Columns for cold files and the GPU are added if measured."""
    headings, rows = list(HEADINGS), [cells_of(row) for row in result.rows]
    if any(row.cold_clips_per_second is not None for row in result.rows):
        headings.append("cold clips/s")
        for cells, row in zip(rows, result.rows, strict=True):
            cells.append(_number(row.cold_clips_per_second, ".1f"))
    if any(row.gpu_utilization is not None for row in result.rows):
        headings.append("GPU")
        for cells, row in zip(rows, result.rows, strict=True):
            cells.append(_number(row.gpu_utilization, ".0%"))
    return headings, rows


def notes_of(result: BenchResult) -> list[str]:
    """Return the remarks on rows and on the measurement, each once."""
    notes = list(result.notes)
    for row in result.rows:
        about = row.reason or row.note
        if about is not None:
            notes.append(f"{row.name}: {about}.")
    return [printable(note) for note in dict.fromkeys(notes)]


def stage_lines(result: BenchResult) -> list[str]:
    """Return a line for each tier and codec: where the CPU time of a batch goes."""
    lines = []
    for stage in result.stages:
        total = sum(stage.milliseconds.values()) or 1.0
        parts = [f"{name} {value:.1f} ms ({value / total:.0%})" for name, value in stage.milliseconds.items()]
        lines.append(f"{stage.name}: {', '.join(parts)}")
    return lines


def as_text(result: BenchResult) -> str:
    """Return the result for a terminal."""
    headings, rows = table_of(result)
    table = [headings, *rows]
    widths = [max(len(cells[i]) for cells in table) for i in range(len(headings))]
    lines = [_intro(result), ""]
    for cells in table:
        aligned = [c.ljust(w) if i < 3 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
        lines.append("  ".join(aligned).rstrip())
    lines.append("")
    if result.stages:
        lines += ["CPU time of a batch, in one thread:", *(f"  {line}" for line in stage_lines(result)), ""]
    lines += notes_of(result)
    return "\n".join([*lines, *_end(result)])


def as_markdown(result: BenchResult) -> str:
    """Return the result as a Markdown page."""
    headings, rows = table_of(result)
    lines = ["# chordcache bench", "", _markdown(_intro(result)), ""]
    lines += [_row(headings), _row(["---"] * 3 + ["---:"] * (len(headings) - 3)), *map(_row, rows), ""]
    if result.stages:
        lines += ["CPU time of a batch, in one thread:", "", *(f"- {line}" for line in stage_lines(result)), ""]
    lines += [f"- {_markdown(note)}" for note in notes_of(result)]
    return "\n".join([*lines, "", *map(_markdown, _end(result))]) + "\n"


def _intro(result: BenchResult) -> str:
    settings = result.settings
    return (
        f"{printable(result.source)}: {result.num_videos} videos, batches of {settings['batch_size']} clips of "
        f"{settings['num_frames']} frames, {settings['stride']} apart, {settings['size']}x{settings['size']}; "
        f"{result.machine['processors']} processors; a step takes {settings['step_ms']:g} ms"
    )


def _end(result: BenchResult) -> Sequence[str]:
    best = result.best
    lines = [] if best is None else [f"Best setting: {best.name}, {best.loader}, {setting_of(best)}.", ""]
    return [*lines, result.verdict]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_markdown, cells))} |"


def _markdown(text: str) -> str:
    """Escape characters that would end a cell or begin a tag, a link or emphasis."""
    return "".join(f"\\{c}" if c in "\\|<>[]`*_" else c for c in text)
