"""``build``: makes what the index asks for and the cache lacks, with worker processes."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from chordcache.arguments import as_items, names_arguments
from chordcache.building.build_options import BuildOptions
from chordcache.building.build_plan import BuildPlan
from chordcache.building.build_run import run_plan
from chordcache.building.existing_cache import earlier_header
from chordcache.building.parts import part_plan
from chordcache.building.planning import make_plan
from chordcache.config.config import Config
from chordcache.config.yaml_files import ConfigFiles
from chordcache.engine import pool, terminal
from chordcache.engine.choice import Engine, engine_of
from chordcache.engine.cluster import check_address
from chordcache.engine.display import Display, display_of
from chordcache.engine.signals import stop_signals
from chordcache.errors import UsageError
from chordcache.index.index_files import Index
from chordcache.index.scan import scanned
from chordcache.records import RunSummary
from chordcache.storage import layout
from chordcache.storage.lock import locked
from chordcache.storage.run_log import adopt_last_scan, recorded


@names_arguments
def build(
    index: str | Path | Index,
    cache: str | Path = "cache",
    *,
    tiers: str | Sequence[str] | None = None,
    features: str | Sequence[str] | None = None,
    config: ConfigFiles | Config | None = None,
    jobs: int | Engine | None = None,
    roots: Mapping[str, str] | None = None,
    options: BuildOptions | None = None,
    progress: bool | Display = False,
) -> RunSummary:
    """Cache every video of an index. Videos that are up to date stay unchanged.

    Parameters
    ----------
    index : str, Path or Index
        An index that ``scan`` made, a hand-written CSV with a column ``path``, or a folder of videos, which is
        scanned first.
    cache : str or Path
        Folder to build in. It is made if it does not exist.
    tiers : str or sequence of {"lmdb", "npz", "hdf5"}, optional
        Tiers to build. The config defines which features go into each. By default they follow from the features.
    features : str or sequence of str, optional
        Build only these features. By default those that the cache has and that ``config`` names, or else frames.
    config : str, Path, sequence of them, or Config, optional
        YAML files or presets, merged in order onto the config of an existing cache, or else onto the packaged defaults.
        A feature that the cache has stays in it, see ``BuildOptions.drop``.
    jobs : int or Engine, optional
        Number of worker processes, by default one for each processor, or an engine such as a Dask cluster.
    roots : mapping of str to str, optional
        Root label to the folder where its data is now, if it moved.
    options : BuildOptions, optional
        Options of the build: when to stop (by default never), whether to wait for another build, and others.
    progress : bool or Display
        True to show progress on standard error: a bar on a terminal, else a line every 30 seconds. At the end, the
        first failures are named there. While the build waits, a line there names the other process.

    Returns
    -------
    RunSummary
        Counts of the run. ``num_failed`` counts the inputs of this index that are in quarantine.

    Raises
    ------
    UsageError
        If an argument is wrong.
    NotFoundError
        If the index does not exist, or has no videos.
    LockedError
        If another process writes to the cache.
    StorageError
        If the disk takes no data, or cannot be read. The same call resumes.
    StoppedError
        If ``options.max_failures`` was exceeded, workers died in a row, or SIGHUP, SIGINT or SIGTERM came. The same
        call resumes.
    """
    folder, options, display = layout.cache_folder(cache), options or BuildOptions(), display_of(progress)
    cluster = jobs if isinstance(jobs, Engine) and jobs.is_cluster else None
    engine = pool.prepared(engine_of(None if cluster else jobs))
    if cluster is not None:
        check_address(cluster)
        if options.part is not None:
            raise UsageError(f"part: got {options.part} with engine '{cluster.name}', expected none. Leave it out.")
        options = replace(options, part="1/1")  # what a part refuses, and a driver too

    def planned(index: str | Path | Index) -> BuildPlan:
        plan = make_plan(folder, index, config, tiers, features, roots=roots, options=options)
        for step in plan.passes() if cluster is None else ():  # else each node is checked
            if step.device.startswith("cuda"):  # else torch is not loaded
                step.devices()  # raises if this machine lacks them
        return plan

    links = options.follow_symlinks
    index = scanned(index, planned, jobs=engine, follow_symlinks=links, limits=options.limits, progress=progress)
    part = None if cluster else options.part
    plan = part_plan(planned(index), part)  # reports wrong arguments before any wait
    say = functools.partial(terminal.say, shown=display.messages)
    for note in filter(None, (plan.index.taken, *plan.index.notes)):
        say(note)
    wait = say if options.wait else None
    if cluster is not None:
        from chordcache.building.cluster_build import build_on_cluster  # most builds do not need it

        arguments = {"tiers": [*as_items(tiers or ())] or None, "features": [*as_items(features or ())] or None}
        with stop_signals(resumes=True):
            return build_on_cluster(plan, arguments, options, cluster, display, wait)
    with stop_signals(resumes=True), locked(folder, wait) as has_waited:
        if has_waited or earlier_header(folder) != plan.earlier:  # cache or index may have changed meanwhile
            plan = part_plan(planned(index), part)
        adopt_last_scan(folder, plan.index.path)
        with recorded(folder, "build", jobs=engine.jobs) as notes:
            return run_plan("build", plan, engine, options, display, notes)
