"""The output of a dry run, which ``build --dry-run`` and ``plan`` share."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple, fields
from typing import Any

from chordcache.amounts import counted, exact_duration, human_bytes
from chordcache.building.dry_run import DryRun
from chordcache.building.estimate import Estimate, Range
from chordcache.cli.options import index_effects
from chordcache.config.config import config_to_json
from chordcache.errors import printable
from chordcache.tools.plan import Budget, Plan


def dry_run_data(result: DryRun) -> dict[str, Any]:
    """Return a dry run as plain data for JSON."""
    data = {field.name: getattr(result, field.name) for field in fields(result) if field.name not in ("plan", "sample")}
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
        f"sample: {counted(estimate.num_sampled, 'file')}{failed}{missing}",
        *(f"  failed: {printable(message)}" for message in estimate.failures[:3]),
        *(f"{name:26} {text}" for name, text in rows),
    ]


def budget_lines(result: Plan, budget: Budget) -> list[str]:
    """Return the lines about the budget of a plan."""
    limits = [human_bytes(budget.budget_bytes)] if budget.budget_bytes is not None else []
    limits += [f"{budget.budget_hours:g} h"] if budget.budget_hours is not None else []
    if not limits:
        return []
    lines = [f"{' and '.join(limits)}: these settings {'fit' if result.fits else 'do not fit'}"]
    for other in result.alternatives:
        fits = "fits" if other.fits else "too much"
        size, time = _range_text(other.num_bytes, human_bytes), _range_text(other.elapsed_seconds, exact_duration)
        lines.append(f"  {fits:8} {size:33} {time:33} -c {other.preset}")
    if not result.fits and not any(other.fits for other in result.alternatives):
        lines.append("no preset fits; a smaller frames.short_side or frames.fps makes all features smaller")
    return lines


def _range_text(value: Range, text_of: Callable[[float], str]) -> str:
    """Return a number and its range."""
    middle, low, high = map(text_of, astuple(value))
    return f"{middle:12} ({low} to {high})"
