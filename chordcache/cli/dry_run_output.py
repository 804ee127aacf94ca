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

_MARGIN, _EXCEEDS_BUDGET = 1.15, 7
"""Factor by which an estimate of the size may be too low, and exit code"""


def run(index: str, cache: str, budget: float | None, as_json: bool, **arguments: Any) -> int:
    """Print a dry run, whose ``arguments`` are those of ``dry_run``, and return the exit code.

    If its estimate exceeds a budget [bytes], each preset is tried on top of the settings.
    """
    if budget is not None and not arguments["sample"]:
        raise UsageError("--sample: got 0 with --budget, expected a positive number")
    result = dry_run(index, cache, **arguments)
    data, rows, exit_code = asdict(replace(result, index=index)), _rows(result), 0
    if budget is not None:
        size = result.estimate.num_bytes if result.estimate else 0.0
        if result.estimate and not size:
            failure = result.estimate.failures[0]
            raise UsageError(f"--sample: got items that all failed ({failure}), expected more. Raise it.")
        fits, sizes = _MARGIN * size <= budget, {}
        for name in () if fits else preset_names():
            features = [name for names in result.features.values() for name in names]
            preset = {"config": (*(arguments["config"] or ()), name), "features": features}
            other = dry_run(result.index, cache, **{**arguments, **preset}).estimate
            if other is not None and other.num_bytes < 0.99 * size:
                sizes[name] = other.num_bytes
        presets = dict(sorted(sizes.items(), key=lambda item: item[1]))
        exit_code = 0 if fits else _EXCEEDS_BUDGET
        data |= {"fits": fits, "presets": presets, "exit_code": exit_code}
        advice = "too small: take a preset that fits, or a smaller frames.short_side or frames.fps"
        rows.append((f"budget {human_bytes(budget)}", "these settings fit" if fits else advice))
        for name, num_bytes in presets.items():
            rows.append((f"-c {name}", f"{human_bytes(num_bytes)}{', fits' * (_MARGIN * num_bytes <= budget)}"))
    lines = [f"{printable(name):26} {printable(value)}" for name, value in rows]
    head = (
        f"would build {result.num_missing} of {counted(result.num_inputs, 'video')} into {printable(result.cache)} "
        f"(up to date {result.num_up_to_date}, failed before {result.num_failed})"
        f"{index_effects(result.losses, result.num_unnamed)}"
    )
    echo_result(data, "\n".join([head, *lines]), as_json)
    return exit_code


def _rows(result: DryRun) -> list[tuple[str, str]]:
    """Return name and value of each line about what would be made and why, its size and its time."""
    rows = [(counted(count, "video"), reason) for reason, count in result.reasons.items()]
    for tier, specs in result.features.items():
        rows += [(f"{name} in {tier}", json.dumps(params)) for name, params in specs.items()]
    if (estimate := result.estimate) is not None:
        rows.append(("sample", counted(estimate.num_sampled, "item")))
        rows += [("failed in the sample", message) for message in estimate.failures]
        rows += [(name, human_bytes(size)) for name, size in estimate.sizes.items()]
        rows += [
            ("all files", human_bytes(estimate.num_bytes)),
            ("CPU time", exact_duration(estimate.cpu_seconds)),
            (f"time, {counted(estimate.jobs, 'worker')}", exact_duration(estimate.elapsed_seconds)),
        ]
    return rows
