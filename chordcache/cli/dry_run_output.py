"""``build --dry-run``: its output, and the presets that fit a budget."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple, fields
from typing import Any

from chordcache.amounts import counted, exact_duration, human_bytes
from chordcache.building.dry_run import DryRun, dry_run
from chordcache.building.estimate import Estimate, Range
from chordcache.cli.options import index_effects
from chordcache.cli.output import echo_result
from chordcache.config.config import config_to_json
from chordcache.config.presets import preset_names
from chordcache.errors import UsageError, printable

_EXCEEDS_BUDGET = 7
"""Exit code"""

_SMALLER = 0.99
"""Largest size of a preset that is listed, as a part of that of the settings"""


def run(index: str, cache: str, budget_bytes: float | None, as_json: bool, **arguments: Any) -> int:
    """Print a dry run, whose ``arguments`` are those of ``dry_run``, and return the exit code.

    If its estimate exceeds a budget, each preset is tried on top of the settings.
    """
    if budget_bytes is not None and not budget_bytes > 0:
        raise UsageError(f"--budget: got {human_bytes(budget_bytes)}, expected more")
    if budget_bytes is not None and not arguments["sample"]:
        raise UsageError("--sample: got 0 with --budget, expected a positive number")
    result = dry_run(index, cache, **arguments)
    lines = dry_run_lines(result, f" into {printable(result.plan.cache)}")
    data, exit_code, estimate = dry_run_data(result), 0, result.estimate
    if budget_bytes is not None:
        if estimate is not None and 0 < estimate.num_sampled == estimate.num_failed:
            raise UsageError(f"--sample: got items that all failed ({estimate.failures[0]}), expected more. Raise it.")
        fits = estimate is None or estimate.num_bytes.high <= budget_bytes
        others = {} if fits else _smaller(result, index, cache, **arguments)
        data |= {"fits": fits, "alternatives": [{"preset": name, **asdict(other)} for name, other in others.items()]}
        lines += _budget_lines(budget_bytes, fits, others)
        data["exit_code"] = exit_code = 0 if fits else _EXCEEDS_BUDGET
    echo_result(data, "\n".join(lines), as_json)
    return exit_code


def _smaller(result: DryRun, index: str, cache: str, **arguments: Any) -> dict[str, Estimate]:
    """Return the presets that make the same features in fewer bytes, the smallest first."""
    assert result.estimate is not None
    features = [name for names in result.plan.requested.values() for name in names]
    others = {}
    for name in preset_names():
        config = (*(arguments["config"] or ()), name)
        other = dry_run(index, cache, **{**arguments, "config": config, "features": features}).estimate
        if other is not None and other.num_bytes.value < _SMALLER * result.estimate.num_bytes.value:
            others[name] = other
    return dict(sorted(others.items(), key=lambda other: other[1].num_bytes.value))


def dry_run_data(result: DryRun) -> dict[str, Any]:
    """Return a dry run as plain data for JSON."""
    data = {field.name: getattr(result, field.name) for field in fields(result) if field.name != "plan"}
    plan, estimate = result.plan, result.estimate
    return {
        **data,
        "stale": [asdict(feature) for feature in result.stale],
        "reasons": [{**asdict(reason), "num_videos": count} for reason, count in result.reasons.items()],
        "estimate": None if estimate is None else asdict(estimate),
        "cache": str(plan.cache),
        "features": _features(result),
        "roots": plan.roots,
        "config": config_to_json(plan.config),
    }


def dry_run_lines(result: DryRun, into: str = "") -> list[str]:
    """Return a dry run as lines of text. ``into`` names the cache."""
    dropped = f" and drop {counted(result.num_pruned, 'other')}" if result.num_pruned else ""
    lines = [
        f"would build {result.num_missing} of {counted(result.num_inputs, 'video')}{into} "
        f"(up to date {result.num_up_to_date}, failed before {result.num_failed}){dropped}"
        f"{index_effects(result.losses, result.num_unnamed)}"
    ]
    lines += [f"  {count:>7,} lose {printable(name)}, as --drop asks" for name, count in result.dropped.items()]
    lines += [f"  {printable(str(feature))}" for feature in result.stale]
    for reason, count in result.reasons.items():
        detail = f" ({printable(reason.detail)})" if reason.detail else ""
        lines.append(f"  {count:>7,} {printable(reason.kind)}{detail}")
    for tier, specs in _features(result).items():
        lines += [f"  {tier:<5} {printable(name):<8} {json.dumps(params)}" for name, params in specs.items()]
    lines += [f"  root  {printable(label):<8} {printable(root)}" for label, root in result.plan.roots.items()]
    return lines + ([] if result.estimate is None else _estimate_lines(result.estimate))


def _features(result: DryRun) -> dict[str, dict[str, Mapping[str, Any] | None]]:
    """Return the parameters of each requested feature, by tier."""
    specs = result.plan.specs
    return {
        tier: {name: dict(spec.params) if (spec := specs[name]) else None for name in names}
        for tier, names in result.plan.requested.items()
    }


def _estimate_lines(estimate: Estimate) -> list[str]:
    missing = (
        f", {counted(estimate.num_unreadable, 'video')} without a file left out" if estimate.num_unreadable else ""
    )
    failed = f", {estimate.num_failed} of them failed" if estimate.num_failed else ""
    rows = [(name, _range_text(size, human_bytes)) for name, size in estimate.sizes.items()]
    rows += [
        ("all files", _range_text(estimate.num_bytes, human_bytes)),
        ("CPU time", _range_text(estimate.cpu_seconds, exact_duration)),
        (f"time, {counted(estimate.jobs, 'worker')}", _range_text(estimate.elapsed_seconds, exact_duration)),
    ]
    return [
        f"sample: {counted(estimate.num_sampled, 'item')}{failed}{missing}",
        *(f"  failed: {printable(message)}" for message in estimate.failures[:3]),
        *(f"{name:26} {text}" for name, text in rows),
    ]


def _budget_lines(budget_bytes: float, fits: bool, others: Mapping[str, Estimate]) -> list[str]:
    """Return the lines about a budget, and the presets that make a smaller cache."""
    lines = [f"{human_bytes(budget_bytes)}: these settings {'fit' if fits else 'do not fit'}"]
    for name, other in others.items():
        size, time = _range_text(other.num_bytes, human_bytes), _range_text(other.elapsed_seconds, exact_duration)
        lines.append(
            f"  {'fits' if other.num_bytes.high <= budget_bytes else 'too much':8} {size:33} {time:33} -c {name}"
        )
    if not fits and all(other.num_bytes.high > budget_bytes for other in others.values()):
        lines.append("no preset fits; a smaller frames.short_side or frames.fps makes all features smaller")
    return lines


def _range_text(value: Range, text_of: Callable[[float], str]) -> str:
    """Return a number and its range."""
    middle, low, high = map(text_of, astuple(value))
    return f"{middle:12} ({low} to {high})"
