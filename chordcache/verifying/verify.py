"""``verify``: the check that all files exist, are what was written, decode, and still match their source."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from chordcache.amounts import counted
from chordcache.arguments import check_choice, names_arguments
from chordcache.building.build_plan import resolve_features
from chordcache.building.build_task import is_stale
from chordcache.building.fix_commands import build_command, repair_command, unpack_command
from chordcache.building.requested import Features
from chordcache.config.config import Config, config_from_json, trusted_names
from chordcache.config.yaml_files import ConfigFiles, load_config
from chordcache.engine import pool
from chordcache.engine.choice import Engine, engine_of
from chordcache.engine.display import Display, display_of
from chordcache.engine.run_progress import Progress
from chordcache.engine.signals import stop_signals
from chordcache.errors import ChordcacheError, DamageError, MediaError, NotFoundError, StorageError, UsageError
from chordcache.features.frames import record_decoder
from chordcache.features.item_fields import fits
from chordcache.features.registry import check_trusted
from chordcache.media.source_file import check_unchanged, open_source, real_folder
from chordcache.storage import feature_files, layout
from chordcache.storage.artefacts.open_files import FRAME_ARRAYS, check_artefact
from chordcache.storage.cache_header import read_header, roots_now
from chordcache.storage.catalog_file import CATALOG
from chordcache.storage.feature_info import StoredFile
from chordcache.storage.find_sidecars import Sidecars, read_packed
from chordcache.storage.opener import unreadable
from chordcache.storage.part import Part
from chordcache.storage.quarantine import Quarantine
from chordcache.storage.run_log import recorded
from chordcache.storage.sidecar import Sidecar, read_sidecar
from chordcache.verifying.findings import Damage, VerifyReport
from chordcache.verifying.verify_lists import (
    added_by_readers,
    check_catalog,
    check_index,
    check_packed,
    check_runs,
    find_orphans,
    of_error,
)
from chordcache.verifying.verify_source import compare_with_source

VERIFY_LEVELS = ("quick", "default", "deep")
"""Levels of a check: sizes only, sizes and digests, or sizes, digests and a decode of every frame."""

_Results: TypeAlias = "Generator[tuple[_Check, list[Damage] | pool.Crash], None, None]"


@dataclass(frozen=True)
class _Check:
    """One video to check."""

    cache: Path
    key: str
    level: str
    config: Config
    """Config of the cache"""
    features: Features
    """Features that builds requested"""
    fingerprints: Mapping[str, str | None]
    """Fingerprints of these features"""
    roots: Mapping[str, str] | None
    """Root label to the folder of the sources, or None if the sources are not checked"""
    inside: Mapping[str, str]
    """Root label to the real folder that links must not lead out of, or empty if links may"""
    is_packed: bool = False
    """True if the sidecars are in the catalog alone"""


@names_arguments
def verify(
    cache: str | Path = "cache",
    *,
    level: str = "default",
    source: bool = False,
    jobs: int | Engine | None = None,
    roots: Mapping[str, str] | None = None,
    part: str | None = None,
    config: ConfigFiles | Config | None = None,
    progress: bool | Display = False,
) -> VerifyReport:
    """Check a cache. It changes nothing, except for one more line in ``runs.jsonl`` where that can be written.

    Parameters
    ----------
    cache : str or Path
        A folder that ``build`` made.
    level : {"quick", "default", "deep"}
        "quick" checks files and sizes. "default" also checks the digest of every file. "deep" also decodes every
        record, and compares counts and times.
    source : bool
        True to check also whether the sources changed, to compute a random sample of frames, flow and motion of each
        again, and all sound, and to compare them with the cache.
    jobs : int or Engine, optional
        Number of worker processes, by default one for each processor.
    roots : mapping of str to str, optional
        Root label to the folder where its data is now, if it moved.
    part : str, optional
        "I/N" checks the part I of N: each video is in one part. Only part 1 checks the lists and searches for extra
        files. All parts together find what a check of the whole cache finds.
    config : str, Path or Config, optional
        A config that names the plug-ins and the models of the cache. Those that only the cache names are not loaded,
        since a cache may come from anyone. A note then says that their features may be stale.
    progress : bool or Display
        True to show progress on standard error: a bar on a terminal, else a line every 30 seconds.

    Returns
    -------
    VerifyReport
        Its ``damage`` is empty if the cache is intact. ``repair`` accepts the damage.

    Raises
    ------
    UsageError
        If the level, the part or a root does not exist.
    NotFoundError, DamageError
        If the folder is not a cache, or its ``chordcache.json`` cannot be read.
    StorageError
        If the sidecars cannot be listed.
    """
    check_choice(VERIFY_LEVELS, level=level)
    share = Part.parse(part) if part is not None else Part(1, 1)
    engine = engine_of(jobs)  # raises for a wrong number, also where no worker is needed
    folder = layout.cache_folder(cache)
    trusted = trusted_names(load_config(config))
    read_header(folder)  # raises before a log is made in a folder that is not a cache
    engine = Engine(jobs=1) if level == "quick" and not source else pool.prepared(engine)
    with recorded(folder, "verify", jobs=engine.jobs) as notes:
        report = replace(_verify(folder, level, source, engine, roots, share, trusted, display_of(progress)), part=part)
        notes.exit_code = report.exit_code
        notes.counts = {"num_videos": report.num_videos, **report.counts()}
    return report


def verify_quickly(cache: Path) -> VerifyReport:
    """Check files and sizes of a cache for a report, without a line in ``runs.jsonl``. Raises as ``verify`` does."""
    return _verify(cache, "quick", False, Engine(jobs=1), None, Part(1, 1), frozenset(), display_of(False))


def _verify(
    folder: Path,
    level: str,
    source: bool,
    engine: Engine,
    roots: Mapping[str, str] | None,
    part: Part,
    trusted: Collection[str],
    display: Display,
) -> VerifyReport:
    header = read_header(folder)
    folders = roots_now(header.roots, roots, opens=source)
    where = folders if source else None
    try:
        sidecars = Sidecars(folder)
    except ChordcacheError as error:  # a packed cache has its sidecars in the catalog alone
        return VerifyReport([of_error(folder, CATALOG, error)], 0)
    all_keys = sidecars.sorted_keys()
    keys = [*filter(part.holds, all_keys)]
    findings: list[Damage] = []
    config = config_from_json(header.config, trusted=trusted)
    specs = resolve_features(header.features, config)
    fingerprints = {name: spec.fingerprint if spec else None for name, spec in specs.items()}
    if source and level == "quick":
        level = "default"  # an artefact must be intact before it is compared with its source
    inside = {} if header.follow_symlinks else {label: real_folder(path) for label, path in (where or {}).items()}
    of_all = _Check(folder, "", level, config, header.features, fingerprints, where, inside, header.is_packed)
    checks = (replace(of_all, key=key) for key in keys)
    display = replace(display, messages=display.messages and display.verbose)  # the findings are the result
    with stop_signals(), Progress("verify", display, total=len(keys), failed="damaged") as progress:
        if level == "quick":
            results: _Results = ((check, _check_video(check, sidecars)) for check in checks)
        else:
            results = pool.run(_check_video, checks, jobs=engine, ordered=True)
        with closing(results):
            for check, damage in results:
                damage = _of_crash(check, damage) if isinstance(damage, pool.Crash) else damage
                findings += damage
                if damage and damage[0].kind != "incomplete":  # it may be in quarantine, with the reason
                    progress.fail(damage[0].file, damage[0].kind, damage[0].message)
                else:
                    progress.done(check.key)
    findings = _counted(_without_quarantined(folder, findings), len(keys))
    notes = [*_unjudged(config, header.features)]
    if part.number == 1:
        added = set() if header.is_packed else added_by_readers(folder, set(all_keys))
        if added:
            what = f"{counted(len(added), 'video')} that readers built, such as '{min(added)}'"
            notes.append(f"the lists of the cache do not have {what}. The next 'chordcache build' adds them")
        findings += check_catalog(folder, sidecars, header.features, level=level, added=added)
        findings += check_index(folder, set(all_keys) - added, header.features)
        findings += check_runs(folder)
        findings += check_packed(folder, sidecars) if header.is_packed else find_orphans(folder)
    if header.is_packed:
        command = unpack_command(folder)
        findings = [replace(finding, fix_command=finding.fix_command and command) for finding in findings]
    return VerifyReport(findings, len(keys), notes=tuple(notes))


def _unjudged(config: Config, features: Features) -> Iterator[str]:
    """Yield a note about each feature whose class or model is not loaded, since only the cache names it."""
    for name in dict.fromkeys(name for names in features.values() for name in names if name in config.features):
        try:
            check_trusted(name, config)
        except UsageError as error:
            yield f"whether '{name}' is stale is not known, and --repair does not build it: {error}"


def _check_video(check: _Check, sidecars: Sidecars | None = None) -> list[Damage]:
    """Return all findings about one video. It runs in a worker. Each sidecar is read, unless some are known."""
    file = layout.sidecar_file(check.key)
    try:
        sidecar = sidecars.read(check.key) if sidecars else _read_sidecar(check)
    except (DamageError, NotFoundError) as error:  # not found: removed since it was listed
        kind = "damaged" if isinstance(error, DamageError) else "missing"
        return [Damage(kind, file, str(error), repair_command(check.cache), check.key)]
    except StorageError as error:
        return [Damage("unreadable", file, str(error), "", check.key)]
    damage: list[Damage] = []
    for stored in sidecar.files:
        damage += _check_artefact(check, sidecar, stored)
    findings = damage + _check_features(check, sidecar)
    if check.roots is not None and not damage:
        findings += _check_source(check, sidecar, check.roots)
    return findings


def _read_sidecar(check: _Check) -> Sidecar:
    return (read_packed if check.is_packed else read_sidecar)(check.cache, check.key)


def _of_crash(check: _Check, crash: pool.Crash) -> list[Damage]:
    """Return the damage of a video whose check ended its process. LMDB aborts on pages that contradict each other."""
    if crash.cause != "signal":
        raise ChordcacheError(f"cannot check '{check.key}': {crash.message}")
    sidecar = _read_sidecar(check)
    if check.roots is not None:  # the source may be what crashes the decoder
        check = replace(check, roots=None)
        ((_, result),) = pool.run(_check_video, [check], jobs=1)
        if not isinstance(result, pool.Crash):
            return result or [
                Damage("stale", sidecar.path, f"its source cannot be read: {crash.message}", "", check.key)
            ]
    what = f"the process that read the video died: {crash.message}"
    return [Damage("damaged", file.name, what, repair_command(check.cache), check.key) for file in sidecar.files]


def _without_quarantined(cache: Path, findings: list[Damage]) -> list[Damage]:
    """Leave out features that are missing because they could not be made: quarantine has them, with the reason."""
    try:
        quarantine = Quarantine(cache, {})
    except (DamageError, StorageError):  # reported by check_index
        return findings
    return [finding for finding in findings if finding.kind != "incomplete" or quarantine.get(str(finding.key)) is None]


def _counted(findings: list[Damage], num_videos: int) -> list[Damage]:
    """Join the findings about features that many videos lack: one finding for each feature of a tier."""
    lacking: dict[tuple[str, str], list[Damage]] = {}
    for finding in findings:
        if finding.kind == "incomplete":
            lacking.setdefault((finding.message, finding.fix_command), []).append(finding)
    rest = [finding for finding in findings if finding.kind != "incomplete"]
    for (message, fix_command), (first, *others) in lacking.items():
        count = len(others) + 1
        what = f"{count} of {counted(num_videos, 'video')}, such as this one: {message}"
        rest.append(Damage("incomplete", first.file, what, fix_command, count=count) if others else first)
    return rest


def _check_features(check: _Check, sidecar: Sidecar) -> list[Damage]:
    """Check that every requested feature exists and was made with the requested parameters."""
    findings, record = [], sidecar.record
    for info in sidecar.features:
        if info.feature in check.fingerprints and is_stale(info, check.fingerprints):
            what = f"its '{info.feature}' was made with other parameters than those of chordcache.json"
        elif not fits(info, record):
            what = f"its '{info.feature}' was made of other values of {', '.join(info.uses)}"
        else:
            continue
        fix_command = build_command(check.cache, [info.tier], check.features.get(info.tier, ()))
        findings.append(Damage("stale", info.file.name if info.file else sidecar.path, what, fix_command, check.key))
    for tier, names in check.features.items():
        for name in names:
            if sidecar.feature(name, tier) is None:
                fix_command = build_command(check.cache, [tier], names)
                what = f"'{name}' was requested for tier {tier}, but is not cached there"
                findings.append(Damage("incomplete", sidecar.path, what, fix_command, check.key))
    return findings


def _check_artefact(check: _Check, sidecar: Sidecar, file: StoredFile) -> list[Damage]:
    """Check one file and the features in it."""

    def of_file(kind: str, what: object) -> list[Damage]:
        command = "" if kind == "unreadable" else repair_command(check.cache)
        return [Damage(kind, file.name, str(what), command, check.key)]

    try:
        num_bytes = feature_files.size_of(check.cache, file, checks_holes=True)
        if num_bytes != file.num_bytes:
            return of_file("damaged", f"the file has {num_bytes} bytes, expected {file.num_bytes}")
        if check.level != "quick" and (digest := feature_files.digest_of(check.cache, file)) != file.digest:
            return of_file("damaged", f"its xxh3-128 is {digest}, expected {file.digest}")
    except FileNotFoundError:
        return of_file("missing", "the sidecar names it")
    except PermissionError as error:
        return of_file("unreadable", unreadable(check.cache / file.name, error))
    except StorageError as error:
        return of_file("unreadable" if error.errno in (errno.EACCES, errno.EPERM) else "damaged", error)
    except OSError as error:
        return of_file("damaged", f"the file cannot be read: {error.strerror}")
    return _check_rows(check, sidecar, file) if check.level == "deep" else []


def _check_rows(check: _Check, sidecar: Sidecar, file: StoredFile) -> list[Damage]:
    """Read every row, decode every frame, and compare counts and times."""
    infos = [info for info in sidecar.features if info.file is not None and info.file.name == file.name]
    frames = next((info for info in infos if info.feature == "frames"), None)
    decode = record_decoder(frames) if frames else None
    last = ""

    def look(name: str, number: int, row: Any) -> None:
        nonlocal last
        last = f"{name} {number}"
        if decode is not None and name == "frames":
            decode(number, row)

    try:
        artefact = feature_files.open_file(check.cache, file, sidecar.claims)
        pts_seconds, source_frames, _ = map(artefact.array, FRAME_ARRAYS)
        if pts_seconds[0] != sidecar.start_seconds or np.any(np.diff(source_frames) <= 0):
            raise DamageError("its times disagree with the sidecar's")
        num_rows = {name: count for info in infos for name, count in info.num_rows.items()}
        path, claims = check.cache / file.name, sidecar.claims
        check_artefact(path, file.num_bytes, num_rows, claims=claims, packed=file.packed, look=look)
    except DamageError as error:
        return [Damage("damaged", file.name, str(error), repair_command(check.cache), check.key, last or None)]
    return []


def _check_source(check: _Check, sidecar: Sidecar, roots: Mapping[str, str]) -> list[Damage]:
    """Check that the source is still the file that was cached, and shows what is cached."""
    path = os.path.join(roots[sidecar.root], sidecar.path)
    inside = check.inside.get(sidecar.root)
    try:
        with open_source(path, inside) as source:
            if source.state.identity != sidecar.source:
                what = "the source changed after it was cached"
                return [Damage("stale", path, what, build_command(check.cache, check.features), check.key)]
            what = ""
            try:  # the digests of the artefacts were checked, so any difference comes from the source
                folder = os.path.join(roots[sidecar.root], ""), inside
                compare_with_source(check.cache, sidecar, check.config, source.place, folder)
            except MediaError as error:
                what = f"the source, unchanged by its size and mtime: {error}"
            check_unchanged(path, source.state, inside)
            if what:
                return [Damage("stale", path, what, "", check.key)]
    except DamageError as error:  # its message names the file
        file = next((file.name for file in sidecar.files if file.name in str(error)), sidecar.path)
        return [Damage("damaged", file, str(error), repair_command(check.cache), check.key)]
    except MediaError as error:
        what = f"cannot be compared: {error}"
        if error.message == os.strerror(errno.ENOENT):
            what = f"is not found. If it moved, name its folder: --root {sidecar.root}=PATH"
        return [Damage("stale", path, f"the source {what}", "", check.key)]
    return []
