"""Commands below "Keep it": ``verify``, ``passport``, ``merge``, ``pack``, ``unpack``, ``gc``."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from typing import Any

import click

import chordcache as cc
from chordcache.amounts import counted, human_bytes
from chordcache.cli.commands import GroupedCommand
from chordcache.cli.options import (
    cache_argument,
    config_option,
    display_options,
    jobs_option,
    json_option,
    keys_of_splits,
    leaks_of_splits,
    limits_options,
    roots_option,
    splits_option,
)
from chordcache.cli.output import echo, echo_result
from chordcache.cli.values import FOLDER, PATH
from chordcache.engine.display import Display
from chordcache.engine.limits import Limits
from chordcache.errors import UsageError, printable
from chordcache.verifying.findings import Damage, VerifyReport


@click.command(cls=GroupedCommand)
@cache_argument()
@click.option("--quick", "level", flag_value="quick", default=None, help="Only compare file names and sizes.")
@click.option(
    "--deep", "level", flag_value="deep", help="Also decode every stored frame, and compare counts and times."
)
@click.option(
    "--source",
    is_flag=True,
    help="Also compute random frames, flow, motion and all sound again from the videos, and compare.",
)
@splits_option
@click.option(
    "--against", type=PATH, metavar="PASSPORT",
    help="Also compare with a passport: contents, settings, labels, and with --splits the splits 'train' and 'val'.",
)  # fmt: skip
@click.option("--repair", is_flag=True, help="Build damaged and missing files again, and nothing else.")
@click.option("--dry-run", is_flag=True, help="With --repair: only print the findings.")
@click.option(
    "--part", metavar="I/N",
    help="Check only part I of N, while other processes or machines check the others. Part 1 also checks the lists.",
)  # fmt: skip
@config_option("Config that names the plug-ins and models of CACHE, to check and repair their features too.")
@limits_options
@roots_option
@jobs_option
@display_options
@json_option
def verify(
    cache: str,
    level: str | None,
    splits: tuple[str, str] | None,
    repair: bool,
    dry_run: bool,
    limits: Limits,
    as_json: bool,
    display: Display,
    **options: Any,
) -> None:
    """Check a cache for damage.

    Every file of CACHE must exist with the size and the checksum that were written, and other files must not exist.
    Findings are printed with the command that fixes them, if there is one. --stall-timeout, --file-timeout and
    --file-memory apply to --repair only.

    Exit code 0: intact; 5: data is damaged or missing; 15: a file cannot be read; 6: the data is intact, but videos are
    not cached yet, a video changed, a file is left over, two splits share seconds, or the passport is another one.

    \b
    Example:
      chordcache verify cache --deep --source
    """
    if dry_run and not repair:
        raise UsageError("--dry-run: got no --repair, expected both. Add --repair.")
    if repair and options["part"] is not None:
        raise UsageError("--part: got --repair too, expected one of the two. Repair the whole cache on one machine.")
    against: str | None = options.pop("against")
    if against is not None:
        from chordcache.verifying.passport import check_against, read_passport  # --help does not need it

        expected = read_passport(against)
    keys: dict[str, list[str]] = {}
    with contextlib.suppress(cc.DamageError):  # which the check reports
        keys = keys_of_splits(cache, splits)
    check = functools.partial(cc.verify, cache, level=level or "default", progress=display, **options)
    report = check()
    if repair and not dry_run and report.exit_code == cc.DamageError.exit_code:
        how = {name: options[name] for name in ("jobs", "roots", "config")}
        summary = cc.repair(cache, report.damage, limits=limits, progress=display, **how)
        if display.progress:
            see = f"; see {printable(cache)}/quarantine.jsonl" if summary.num_failed else ""
            restored = f", {summary.num_up_to_date} needed only a sidecar" if summary.num_up_to_date else ""
            built = f"built {summary.num_done} of {counted(summary.num_inputs, 'video')} again"
            echo(f"chordcache verify: {built}{restored}{see}", err=True)
        report = check()
    if report.exit_code != cc.DamageError.exit_code:
        keys = keys or keys_of_splits(cache, splits)  # a repair may have made them readable
        leaks = leaks_of_splits(cache, keys)
        findings = [*report.damage, *(Damage("leak", leak.train_path, str(leak), "", key=leak.train) for leak in leaks)]
        if against is not None:
            findings += check_against(cache, expected, keys)
        report = dataclasses.replace(report, damage=findings)
    elif splits or against:
        note = "the splits are not compared, nor is a passport. Repair the damage first"
        report = dataclasses.replace(report, notes=(*report.notes, note))
    checked = f"all {'sizes' if level == 'quick' else 'checksums'} match"
    checked += ", the splits share no seconds" * bool(splits) + ", all is as in the passport" * bool(against)
    _echo(report, as_json, display.progress, checked)
    click.get_current_context().exit(report.exit_code)


def _echo(report: VerifyReport, as_json: bool, has_summary: bool, checked: str) -> None:
    if as_json:
        echo_result(report, "", as_json)
        return
    for note in report.notes:
        echo(f"chordcache verify: note: {note}", err=True)
    for finding in report.damage:
        echo(f" {finding}", lead=f"{finding.kind}:", color="red")
    if has_summary:
        part = f" in part {report.part}" if report.part else ""
        if report.damage:
            echo(counted(len(report.damage), "finding") + part)
        else:
            echo(f" {counted(report.num_videos, 'video')}{part}, {checked}", lead="intact:", color="green")


@click.command()
@cache_argument(has_option=False)
@click.argument("splits", nargs=-1, metavar="[NAME=SPLIT]...")
@click.option("-o", "--output", type=PATH, required=True, metavar="FILE", help="Passport to write.")
@click.option("--source", is_flag=True, help="Add the SHA-256 of the videos, and the findings of 'verify --source'.")
@roots_option
@jobs_option
@json_option
def passport(cache: str, splits: tuple[str, ...], output: str, as_json: bool, **options: Any) -> None:
    """Write what a cache has, with one digest over all of it.

    The file has the content, the settings and the labels of each video, and the splits, in the format of Croissant.
    Anyone with the cache can check it with 'chordcache verify CACHE --against FILE'. A SPLIT is a file of names.

    \b
    Example:
      chordcache passport cache train=train.txt val=val.txt -o passport.json
    """
    named = dict(split.partition("=")[::2] for split in splits)
    if len(named) < len(splits) or not all(named.values()):
        raise UsageError(f"splits: got {', '.join(map(printable, splits))}, expected NAME=FILE, each name once")
    written = cc.passport(cache, output, splits=named, **options)
    videos = counted(len(written.rows), "video")
    data = {
        "root": written.root,
        "num_videos": len(written.rows),
        "splits": written.splits,
        "findings": written.findings,
    }
    echo_result(data, f"{printable(output)}: {videos}, root {written.root}", as_json)
    if written.findings:
        click.get_current_context().exit(6)


@click.command()
@click.argument("caches", nargs=-1, required=True, type=FOLDER, metavar="CACHE...")
@click.option("-o", "--output", type=FOLDER, required=True, metavar="CACHE", help="Folder of the new cache.")
@click.option("--move", is_flag=True, help="Join all parts that 'build --part' made, and remove them at the end.")
@json_option
def merge(caches: tuple[str, ...], output: str, move: bool, as_json: bool) -> None:
    """Join caches into a new one, without decoding.

    The caches need the same config, tiers and options, and stay as they are. Files of the new cache are hard links to
    theirs, or copies if it is on another disk. Run the same command again to resume.

    \b
    Example:
      chordcache merge monday tuesday -o week
      chordcache merge parts/* -o cache --move
    """
    summary = cc.merge(caches, output, move=move, progress=True)
    line = (
        f"merged {summary.num_done}, up to date {summary.num_up_to_date}, quarantined {summary.num_failed} of "
        f"{summary.num_inputs} in {summary.elapsed_seconds:.1f} s"
    )
    echo_result(summary, line, as_json)


@click.command()
@cache_argument(has_option=False)
@click.option("-o", "--output", type=FOLDER, required=True, metavar="PACKED", help="Folder of the packed cache.")
@click.option("--move", is_flag=True, help="Remove CACHE when the packed one is complete.")
@json_option
def pack(cache: str, output: str, move: bool, as_json: bool) -> None:
    """Copy a cache into a read-only one of few large files.

    A million videos have two million files and more, which many shared disks do not take. A packed cache has a few
    thousand. It is read, verified and pushed as before. To build on it, unpack it first.

    \b
    Example:
      chordcache pack cache -o packed
      chordcache pack cache -o packed --move
    """
    from chordcache.building import pack as packing  # --help does not need it

    summary = packing.pack(cache, output, move=move, progress=True)
    videos, packs = counted(summary.num_videos, "video"), counted(summary.num_packs, "pack")
    echo_result(summary, f"packed {videos}, {human_bytes(summary.num_bytes)}, into {packs}", as_json)


@click.command()
@click.argument("packed", type=FOLDER)
@click.option("-o", "--output", type=FOLDER, required=True, metavar="CACHE", help="Folder of the new cache.")
@click.option("--move", is_flag=True, help="Remove PACKED when the cache is complete.")
@json_option
def unpack(packed: str, output: str, move: bool, as_json: bool) -> None:
    """Copy a packed cache into one that can be built on.

    Videos whose files are damaged come without these. 'chordcache verify --repair' then builds them again.

    \b
    Example:
      chordcache unpack packed -o cache
    """
    from chordcache.building import pack as packing  # --help does not need it

    summary = packing.unpack(packed, output, move=move, progress=True)
    videos = counted(summary.num_videos, "video")
    echo_result(summary, f"unpacked {videos}, {human_bytes(summary.num_bytes)}", as_json)


@click.command()
@cache_argument()
@click.option("--dry-run", is_flag=True, help="List the files and remove nothing.")
@json_option
def gc(cache: str, dry_run: bool, as_json: bool) -> None:
    """Remove files that a cache does not use any more.

    Such files stay after a video was built again with other settings, and after a build was killed. The command prints
    the names of those that it removes. Other files that 'verify' calls orphans stay: they are named, and the exit code
    is 6.

    \b
    Example:
      chordcache gc cache --dry-run
    """
    from chordcache.verifying.repair import kept_orphans  # the import is not for --help

    files = cc.collect_garbage(cache, dry_run=dry_run)
    for file in files:
        echo(printable(file), err=as_json)
    is_removed = bool(files) and not dry_run
    kept = kept_orphans(cache)
    data = {"files": files, "num_removed": len(files) if is_removed else 0, "kept": [orphan.file for orphan in kept]}
    if as_json or is_removed or not (files or kept):
        echo_result(data, f"removed {counted(len(files), 'file')}" if is_removed else "nothing to remove", as_json)
    for orphan in kept:
        echo(f"chordcache gc: left {orphan}", err=True)
    if kept:
        click.get_current_context().exit(6)
