"""``build --dry-run``: its output, and the presets that fit a budget."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

from chordcache.amounts import counted, exact_duration, human_bytes
from chordcache.building.dry_run import DryRun, dry_run
from chordcache.cli.options import index_effects
from chordcache.cli.output import echo_result
from chordcache.config.presets import preset_names
from chordcache.errors import UsageError, printable

_MARGIN = 1.15
"""Factor by which an estimate of the size may be too low"""

_EXCEEDS_BUDGET = 7
"""Exit code"""


def run(index: str, cache: str, budget: float | None, as_json: bool, **arguments: Any) -> int:
    """Print a dry run, whose ``arguments`` are those of ``dry_run``, and return the exit code.

    If its estimate exceeds a budget [bytes], each preset is tried on top of the settings.
    """
    if budget is not None and not budget > 0:
        raise UsageError(f"--budget: got {human_bytes(budget)}, expected more")
    if budget is not None and not arguments["sample"]:
        raise UsageError("--sample: got 0 with --budget, expected a positive number")
    result = dry_run(index, cache, **arguments)
    data, lines = asdict(replace(result, index=index)), _as_lines(result)
    if budget is None:
        echo_result(data, "\n".join(lines), as_json)
        return 0
    estimate, sizes = result.estimate, {}
    size = 0.0 if estimate is None else estimate.num_bytes
    if estimate is not None and not size:
        raise UsageError(f"--sample: got items that all failed ({estimate.failures[0]}), expected more. Raise it.")
    fits = _MARGIN * size <= budget
    features = [name for names in result.features.values() for name in names]
    for name in () if fits else preset_names():
        preset = {"config": (*(arguments["config"] or ()), name), "features": features}
        other = dry_run(result.index, cache, **{**arguments, **preset}).estimate
        if other is not None and other.num_bytes < 0.99 * size:
            sizes[name] = other.num_bytes
    presets = {name: sizes[name] for name in sorted(sizes, key=sizes.__getitem__)}
    lines.append(f"{human_bytes(budget)}: these settings {'fit' if fits else 'do not fit'}")
    for name, num_bytes in presets.items():
        verdict = "fits" if _MARGIN * num_bytes <= budget else "too much"
        lines.append(f"  {verdict:8} {human_bytes(num_bytes):12} -c {name}")
    if not fits and all(_MARGIN * num_bytes > budget for num_bytes in presets.values()):
        lines.append("no preset fits; a smaller frames.short_side or frames.fps makes all features smaller")
    exit_code = 0 if fits else _EXCEEDS_BUDGET
    echo_result({**data, "fits": fits, "presets": presets, "exit_code": exit_code}, "\n".join(lines), as_json)
    return exit_code


def _as_lines(result: DryRun) -> list[str]:
    lines = [
        f"would build {result.num_missing} of {counted(result.num_inputs, 'video')} into {printable(result.cache)} "
        f"(up to date {result.num_up_to_date}, failed before {result.num_failed})"
        f"{index_effects(result.losses, result.num_unnamed)}",
        *(f"  {count:>7,} {printable(reason)}" for reason, count in result.reasons.items()),
    ]
    for tier, specs in result.features.items():
        lines += [f"  {tier:<5} {printable(name):<8} {json.dumps(params)}" for name, params in specs.items()]
    lines += [f"  root  {printable(label):<8} {printable(root)}" for label, root in result.roots.items()]
    estimate = result.estimate
    if estimate is None:
        return lines
    failed = f", {len(estimate.failures)} of them failed" if estimate.failures else ""
    sizes = {**estimate.sizes, "all files": estimate.num_bytes}
    times = {"CPU time": estimate.cpu_seconds, f"time, {counted(estimate.jobs, 'worker')}": estimate.elapsed_seconds}
    return [
        *lines,
        f"sample: {counted(estimate.num_sampled, 'item')}{failed}",
        *(f"  failed: {printable(message)}" for message in [*dict.fromkeys(estimate.failures)][:3]),
        *(f"{name:26} {human_bytes(size)}" for name, size in sizes.items()),
        *(f"{name:26} {exact_duration(time)}" for name, time in times.items()),
    ]
