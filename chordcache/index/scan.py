"""``scan``: from folders of media to an index, in sorted order and with bounded memory."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from chordcache.amounts import counted, first_few
from chordcache.arguments import check_choice, names_arguments
from chordcache.choices import SCAN_LEVELS
from chordcache.engine import pool, terminal
from chordcache.engine.choice import Engine, engine_of
from chordcache.engine.display import Display, display_of
from chordcache.engine.limits import Limits
from chordcache.engine.run_progress import Progress
from chordcache.engine.signals import stop_signals
from chordcache.errors import NotFoundError, UsageError, printable
from chordcache.index.index_files import Index, IndexWriter, check_output, read_index, temporary_index
from chordcache.index.labels import Labels
from chordcache.index.previous import ReusableRecords
from chordcache.index.walk import Corpus, CorpusFile, check_apart, parse_roots
from chordcache.media.probe import probe
from chordcache.media.source_file import look_or_none, real_folder
from chordcache.object_stores.client import is_in_store, object_path
from chordcache.object_stores.sources import ObjectLooks
from chordcache.records import Identity, RunSummary, VideoRecord
from chordcache.storage.run_log import RunNotes, recorded
from chordcache.temporary import keep_with, temporary_folder

_LISTED = {"frames": (".jpg", ".jpeg", ".png"), "webdataset": (".tar",)}
"""Format of lists to the suffixes of files that it has videos of"""


@dataclass(frozen=True)
class _ScanTask:
    """One file to scan."""

    root: str
    path: str
    folder: str
    level: str
    inside: str | None
    """Real folder that no link may lead the file out of, or None if links may"""
    identity: Identity | None = None
    """Identity of the file when the task was planned, or None if the file cannot be read"""
    known: VideoRecord | None = None
    """Record that is known without a scan: of an unchanged file, or of a folder's problem"""
    attempt: int = 1
    """Number of times that the task was sent, including this one"""


class ScanResult(Index):
    """The index that a scan wrote, with the counts and warnings of the scan.

    Attributes
    ----------
    summary : RunSummary
        Counts: ``num_up_to_date`` is of records taken from the earlier index, ``num_failed`` of those with an error.
    warnings : tuple of str
        One sentence for each thing that a person should look at, such as links that were skipped.
    """

    def __init__(self, index: Index, summary: RunSummary, warnings: tuple[str, ...], taken: str = "") -> None:
        super().__init__(index.path, index.source)
        self.summary, self.warnings, self.taken = summary, warnings, taken


@names_arguments
def scan(
    roots: str | Path | Sequence[str | Path],
    *,
    output: str | Path | None = None,
    level: str = "packets",
    labels: str | None = None,
    jobs: int | Engine | None = None,
    follow_symlinks: bool = False,
    limits: Limits | None = None,
    progress: bool | Display = False,
) -> ScanResult:
    """Scan every video below some folders.

    Parameters
    ----------
    roots : str, Path, or sequence of str or Path
        Folders, files, or NAME=PATH. A single one is one root.
    output : str or Path, optional
        Index to write, ``.json``, ``.jsonl`` or ``.csv``. If it exists, records of unchanged files are reused,
        but not those of a CSV file. By default a temporary file, which is deleted with the result.
    level : {"headers", "packets", "content"}
        "headers" reads the headers only, "packets" also all packets, and "content" also decodes.
    labels : str, optional
        "dir" to label by parent folder, or a CSV file with columns path, label, caption.
    jobs : int or Engine, optional
        Number of worker processes, by default one for each processor.
    follow_symlinks : bool
        True to follow links that lead out of a root too.
    limits : Limits, optional
        Limits for one file, by default those of ``Limits()``.
    progress : bool or Display
        True to show progress on standard error: a bar on a terminal, else a line every 30 seconds. At the end, the
        first failures are named there.

    Returns
    -------
    ScanResult
        An ``Index``: an iterable of ``VideoRecord`` in the order of their paths, read from the file as a stream.
        ``build`` accepts it, and ``write(path)`` converts it. Broken files are records with an ``error``. Its
        ``summary`` and ``warnings`` say what the scan did. If ``output`` is CSV, its ``path`` is that of a temporary
        file with the facts.

    Raises
    ------
    UsageError
        If an argument is wrong, or two roots have the same label.
    NotFoundError
        If a root or the labels file does not exist, or no root has a video.
    StorageError, StoppedError
        As their names say. An earlier index at ``output`` stays unchanged.
    """
    check_choice(SCAN_LEVELS, level=level)
    items = (roots,) if isinstance(roots, str | Path) else roots
    corpora = parse_roots([os.fspath(root) for root in items])
    check_apart(corpora)
    joined = Labels(os.fspath(labels), {corpus.label: corpus.folder for corpus in corpora}) if labels else None
    run = _Scan(corpora, level, joined, follow_symlinks, limits or Limits())
    engine = pool.prepared(engine_of(jobs))
    with ExitStack() as stack:
        if output is not None:
            check_output(output)
        paths = [] if output is None else [Path(output)]
        if not paths or paths[0].suffix.lower() == ".csv":  # the result has facts, which are not read from CSV
            paths.append(stack.enter_context(temporary_folder()) / "index.jsonl")
        log = nullcontext(RunNotes()) if output is None else recorded(paths[0], "scan", jobs=engine.jobs)
        with stop_signals(), log as notes:
            summary = run.write(paths, engine, display_of(progress))
            notes.take(summary)
            notes.video_seconds = run.video_seconds
        result = ScanResult(read_index(paths[-1]), summary, tuple(run.warnings()), joined.taken if joined else "")
        keep_with(result, stack)
    return result


def scanned(
    index: str | Path | Index,
    check: Callable[[Index], object],
    *,
    jobs: int | Engine | None = None,
    follow_symlinks: bool = False,
    limits: Limits | None = None,
    progress: bool | Display = False,
) -> str | Path | Index:
    """Return the index of a scan if ``index`` is a folder of videos, or else ``index`` as it is.

    ``check`` is called before the scan, with an index of the folder that has no records. It raises for other arguments.
    The other parameters and the errors are those of ``scan``. Its warnings are printed as messages of ``progress``.
    """
    if isinstance(index, Index) or not (os.path.isdir(index) or object_path(os.fspath(index))):
        return index
    if os.path.lexists(os.path.join(index, "chordcache.json")):
        got = f"index: got the cache '{printable(index)}'"
        raise UsageError(f"{got}, expected an index, or a folder of videos. Name the cache as the output.")
    roots = {corpus.label: corpus.folder for corpus in parse_roots([os.fspath(index)])}
    with temporary_index((), roots=roots, level=None) as nothing:
        check(nothing)
    result = scan(index, jobs=jobs, follow_symlinks=follow_symlinks, limits=limits, progress=progress)
    display = display_of(progress)
    line = f"scanned {counted(len(result), 'video')} of '{printable(index)}'"
    terminal.say(f"{line}; 'chordcache scan' keeps an index for later builds", shown=display.progress)
    for warning in result.warnings:
        terminal.say(warning, shown=display.messages)
    return result


def index_of_files(files: object) -> Index:
    """Write an index without facts of folders and files, which is removed with the result.

    Raises ``UsageError`` if they have no video, and ``NotFoundError``.
    """
    if isinstance(files, (str, Path)):
        files = [files]
    if not isinstance(files, Iterable) or callable(files):
        raise UsageError(f"files: got {files!r}, expected a folder, or a sequence of paths")
    corpora = parse_roots([os.fspath(path) for path in files])
    records = [VideoRecord(corpus.label, file.path) for corpus in corpora for file in corpus.files() if file.is_video]
    if not records:
        raise UsageError("files: got no video, expected a folder with videos, or a sequence of paths")
    with ExitStack() as stack:
        roots = {corpus.label: corpus.folder for corpus in corpora}
        index = stack.enter_context(temporary_index(records, roots=roots, level=None))
        keep_with(index, stack)
    return index


class _Scan:
    """One run of a scan over the corpora."""

    def __init__(
        self, corpora: Sequence[Corpus], level: str, labels: Labels | None, follow_symlinks: bool, limits: Limits
    ) -> None:
        self._corpora = corpora
        self._level = level
        self._labels = labels
        self._follow_symlinks = follow_symlinks
        self._limits = limits
        self._skipped: Counter[str] = Counter()
        """Suffix of files that are not videos to their number"""
        self._num_links = 0
        self._with_videos: set[str] = set()
        self._earlier_problem: str | None = None
        self.video_seconds = 0.0

    def write(self, paths: Sequence[Path], engine: Engine, display: Display) -> RunSummary:
        """Write the index to each path and return the counts. The first path may have an earlier index."""
        started = time.monotonic()
        roots = {corpus.label: corpus.folder for corpus in self._corpora}
        num_done = num_reused = num_failed = num_frames_skipped = 0
        with (
            ReusableRecords(paths[0]) as earlier,
            ExitStack() as stack,
            Progress("scan", display, see=printable(paths[0])) as progress,
            closing(self._outcomes(earlier, engine)) as outcomes,
        ):
            writers = [
                stack.enter_context(
                    IndexWriter(
                        path,
                        roots=roots,
                        level=self._level,
                        follow_symlinks=self._follow_symlinks,
                        whole_roots=[corpus.label for corpus in self._corpora if not corpus.names],
                        columns=self._labels.column_types if self._labels else earlier.columns,
                    )
                )
                for path in paths
            ]
            if progress.needs_total:  # it takes a separate walk
                progress.expect(sum(file.is_video for corpus in self._corpora for file in self._files(corpus)))
            for task, outcome in outcomes:
                record = _crashed(task, outcome) if isinstance(outcome, pool.Crash) else outcome
                described = self._labels.apply(record) if self._labels else earlier.described(record)
                for writer in writers:
                    writer.write(described)
                num_reused += task.known is not None and record.error is None
                num_failed += record.error is not None
                num_frames_skipped += record.packets.num_frames_skipped if record.packets else 0
                num_done += task.known is None and record.error is None
                self.video_seconds += 0.0 if task.known else record.known_seconds or 0.0
                _report(progress, task, record)
            if not self._with_videos:
                raise NotFoundError(self._nothing())
        self._earlier_problem = earlier.problem
        return RunSummary(
            num_inputs=num_done + num_reused + num_failed,
            num_done=num_done,
            num_up_to_date=num_reused,
            num_failed=num_failed,
            num_skipped=self._skipped.total() + self._num_links,
            num_frames_skipped=num_frames_skipped,
            elapsed_seconds=time.monotonic() - started,
        )

    def _outcomes(
        self, earlier: ReusableRecords, engine: Engine
    ) -> Generator[tuple[_ScanTask, VideoRecord | pool.Crash], None, None]:
        return pool.run(
            _scan_file,
            self._tasks(earlier),
            jobs=engine,
            ordered=True,
            limits=self._limits,
            retry=self._once_more,
        )

    def _once_more(self, task: _ScanTask, record: VideoRecord) -> _ScanTask | None:
        """Return another attempt if the file's disk failed and attempts are left, else None."""
        if record.error_cause == "io" and task.known is None and task.attempt < pool.MAX_ATTEMPTS:
            return replace(task, attempt=task.attempt + 1)
        return None

    def _tasks(self, earlier: ReusableRecords) -> Iterator[_ScanTask]:
        objects = ObjectLooks()
        for corpus in self._corpora:
            inside = None if self._follow_symlinks else real_folder(corpus.folder)
            for file in self._files(corpus):
                path = os.path.join(corpus.folder, file.path)
                identity = None
                if file.is_video and is_in_store(path):
                    identity = objects.identity_or_none(path)
                elif file.is_video and (state := look_or_none(path, inside)):
                    identity = state.identity
                task = _ScanTask(corpus.label, file.path, corpus.folder, self._level, inside, identity)
                if file.problem is not None or file.is_video:
                    self._with_videos.add(corpus.label)
                if file.problem is not None:
                    record = VideoRecord(
                        corpus.label, file.path, error=file.problem, error_cause="io", error_stage="open"
                    )
                    yield replace(task, known=record)
                elif file.is_video:
                    yield replace(task, known=self._unchanged(task, earlier))
                elif file.is_unfollowed_link:
                    self._num_links += 1
                else:
                    self._skipped[os.path.splitext(file.path)[1].lower()] += 1

    def _files(self, corpus: Corpus) -> Iterator[CorpusFile]:
        return corpus.files(follow_symlinks=self._follow_symlinks)

    def _unchanged(self, task: _ScanTask, earlier: ReusableRecords) -> VideoRecord | None:
        if task.identity is None:
            return None
        record = earlier.get(task.root, task.path, task.identity, task.level)
        if record is None or record.error is not None:  # another version of the tools may be able to read it
            return None
        return record.replace(label=None, caption=None, extra={}, erased=()) if self._labels else record

    def _nothing(self) -> str:
        """Return the message about roots without videos."""
        folders = ", ".join(first_few([f"'{printable(corpus.folder)}'" for corpus in self._corpora], 3))
        kinds = [f"{count:,} {printable(kind) or 'without a suffix'}" for kind, count in self._skipped.most_common()]
        kinds = first_few(kinds, 5)
        if self._num_links:
            kinds.append(f"{counted(self._num_links, 'link')} out of the root, see --follow-symlinks")
        num_others = self._skipped.total() + self._num_links
        others = f"{counted(num_others, 'other file')}: {', '.join(kinds)}" if kinds else "no files"
        hints = (
            f" If they hold videos, list them with 'chordcache index FOLDER --format {name}'."
            for name, suffixes in _LISTED.items()
            if sum(self._skipped[suffix] for suffix in suffixes) > num_others / 2
        )
        return f"roots: got {folders} with {others}, expected at least one video.{next(hints, ' Name their folder.')}"

    def warnings(self) -> Iterator[str]:
        """Yield one sentence for each thing of the run that a person should look at."""
        for corpus in self._corpora:
            if corpus.label not in self._with_videos:
                yield f"no videos in root '{printable(corpus.label)}', {printable(corpus.folder)}"
        if self._earlier_problem:
            yield self._earlier_problem
        if self._num_links:
            yield (
                f"skipped {counted(self._num_links, 'symbolic link')} out of the root, "
                "since follow_symlinks (--follow-symlinks) is off"
            )
        if self._labels and self._labels.problem:
            yield f"label: {self._labels.problem}"
        if self._labels and self._labels.num_unmatched:
            yield (
                f"got {counted(self._labels.num_unmatched, 'row')} of the labels file without a video, "
                f"such as '{self._labels.unmatched_example}'"
            )


def _report(progress: Progress, task: _ScanTask, record: VideoRecord) -> None:
    name, seconds = f"{record.root}/{record.path}", record.known_seconds
    if record.error is not None:
        progress.fail(name, record.error_cause or "", record.error, seconds=seconds)
    elif task.known is not None:
        progress.skip(seconds)
    else:
        progress.done(name, seconds=seconds)


def _scan_file(task: _ScanTask) -> VideoRecord:
    if task.known is not None:
        return task.known
    path = os.path.join(task.folder, task.path)
    return probe(path, root=task.root, relative_path=task.path, level=task.level, inside=task.inside)


def _crashed(task: _ScanTask, crash: pool.Crash) -> VideoRecord:
    return VideoRecord(
        task.root, task.path, identity=task.identity, level=task.level,
        error=crash.message, error_cause=crash.cause, error_stage="probe",
    )  # fmt: skip
