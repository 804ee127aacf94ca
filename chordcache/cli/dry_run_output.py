"""``build --dry-run``: its output, and the presets that fit a budget."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, astuple, replace
from typing import Any

from chordcache.amounts import counted, exact_duration, human_bytes
from chordcache.building.dry_run import DryRun, dry_run
from chordcache.building.estimate import Estimate, Range
from chordcache.cli.options import index_effects
from chordcache.cli.output import echo_result
from chordcache.config.presets import preset_names
from chordcache.errors import UsageError, printable

_EXCEEDS_BUDGET = 7
"""Exit code"""


def run(index: str, cache: str, budget_bytes: float | None, as_json: bool, **arguments: Any) -> int:
    """Print a dry run, whose ``arguments`` are those of ``dry_run``, and return the exit code.

    If its estimate exceeds a budget, each preset is tried on top of the settings.
    """
    if budget_bytes is not None and not budget_bytes > 0:
        raise UsageError(f"--budget: got {human_bytes(budget_bytes)}, expected more")
    if budget_bytes is not None and not arguments["sample"]:
        raise UsageError("--sample: got 0 with --budget, expected a positive number")
    result = dry_run(index, cache, **arguments)
    reasons = [{**asdict(reason), "num_videos": count} for reason, count in result.reasons.items()]
    data = {**asdict(replace(result, index=index, reasons={})), "reasons": reasons}
    lines, exit_code = _as_lines(result), 0
    if budget_bytes is not None:
        estimate = result.estimate
        if estimate is not None and 0 < estimate.num_sampled == estimate.num_failed:
            raise UsageError(f"--sample: got items that all failed ({estimate.failures[0]}), expected more. Raise it.")
        fits = estimate is None or estimate.num_bytes.high <= budget_bytes
        others = {} if fits else _smaller(result, cache, arguments)
        exit_code = 0 if fits else _EXCEEDS_BUDGET
        alternatives = [{"preset": name, **asdict(other)} for name, other in others.items()]
        data |= {"fits": fits, "alternatives": alternatives, "exit_code": exit_code}
        lines.append(f"{human_bytes(budget_bytes)}: these settings {'fit' if fits else 'do not fit'}")
        for name, other in others.items():
            verdict = "fits" if other.num_bytes.high <= budget_bytes else "too much"
            size, time = _text(other.num_bytes, human_bytes), _text(other.elapsed_seconds, exact_duration)
            lines.append(f"  {verdict:8} {size:33} {time:33} -c {name}")
        if not fits and all(other.num_bytes.high > budget_bytes for other in others.values()):
            lines.append("no preset fits; a smaller frames.short_side or frames.fps makes all features smaller")
    echo_result(data, "\n".join(lines), as_json)
    return exit_code


def _smaller(result: DryRun, cache: str, arguments: dict[str, Any]) -> dict[str, Estimate]:
    """Return the presets that make the same features in fewer bytes, the smallest first."""
    assert result.estimate is not None
    features = [name for names in result.features.values() for name in names]
    others = {}
    for name in preset_names():
        preset = {"config": (*(arguments["config"] or ()), name), "features": features}
        other = dry_run(result.index, cache, **{**arguments, **preset}).estimate
        if other is not None and other.num_bytes.value < 0.99 * result.estimate.num_bytes.value:
            others[name] = other
    return dict(sorted(others.items(), key=lambda other: other[1].num_bytes.value))


def _as_lines(result: DryRun) -> list[str]:
    estimate = result.estimate
    lines = [
        f"would build {result.num_missing} of {counted(result.num_inputs, 'video')} into {printable(result.cache)} "
        f"(up to date {result.num_up_to_date}, failed before {result.num_failed})"
        f"{index_effects(result.losses, result.num_unnamed)}"
    ]
    for reason, count in result.reasons.items():
        lines.append(
            f"  {count:>7,} {printable(reason.kind)}{f' ({printable(reason.detail)})' if reason.detail else ''}"
        )
    for tier, specs in result.features.items():
        lines += [f"  {tier:<5} {printable(name):<8} {json.dumps(params)}" for name, params in specs.items()]
    lines += [f"  root  {printable(label):<8} {printable(root)}" for label, root in result.roots.items()]
    if estimate is None:
        return lines
    failed = f", {estimate.num_failed} of them failed" if estimate.num_failed else ""
    sizes = {**estimate.sizes, "all files": estimate.num_bytes}
    times = {"CPU time": estimate.cpu_seconds, f"time, {counted(estimate.jobs, 'worker')}": estimate.elapsed_seconds}
    return [
        *lines,
        f"sample: {counted(estimate.num_sampled, 'item')}{failed}",
        *(f"  failed: {printable(message)}" for message in estimate.failures[:3]),
        *(f"{name:26} {_text(size, human_bytes)}" for name, size in sizes.items()),
        *(f"{name:26} {_text(time, exact_duration)}" for name, time in times.items()),
    ]


def _text(value: Range, text_of: Callable[[float], str]) -> str:
    """Return a number and its range."""
    middle, low, high = map(text_of, astuple(value))
    return f"{middle:12} ({low} to {high})"
