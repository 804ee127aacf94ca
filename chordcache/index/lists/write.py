"""``index_list``: from a published list to an index. No file is opened but the list."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from chordcache.amounts import counted
from chordcache.arguments import as_items
from chordcache.config.bounds import MAX_PATH_CHARS, too_long
from chordcache.engine.signals import stop_signals
from chordcache.errors import ChordcacheError, NotFoundError, UsageError, printable
from chordcache.index.class_labels import NumberCheck
from chordcache.index.column_types import extra_problem
from chordcache.index.encoding import texts_problem
from chordcache.index.file_names import roots_note
from chordcache.index.index_files import IndexWriter, check_output
from chordcache.index.lists.formats import open_list
from chordcache.index.lists.items import Item, ItemList, ListOptions, described
from chordcache.index.lists.locate import NUM_EXAMPLES, Locator
from chordcache.index.lists.tables import as_text
from chordcache.index.walk import parse_roots
from chordcache.object_stores.client import object_path
from chordcache.records import VideoRecord
from chordcache.storage import layout


@dataclass(frozen=True)
class ListSummary:
    """The counts of ``index_list``."""

    num_items: int
    """Items in the index"""
    num_files: int
    """Files of these items"""
    num_missing_items: int
    """Items that were left out because their file does not exist"""
    num_missing_files: int
    missing_files: tuple[str, ...]
    """Paths of the first five missing files"""
    num_merged: int
    """Rows that only add labels or captions to the row before"""
    num_not_chosen: int
    """Items that ``where`` left out"""
    elapsed_seconds: float
    taken: str = ""
    """Sentence about the meanings of the columns"""
    notes: tuple[str, ...] = ()
    """Sentences about how the list was read"""


def index_list(
    source: str | Path,
    output: str | Path,
    *,
    format: str = "csv",  # the option's name
    videos: str | Path | Sequence[str | Path] = (),
    where: Mapping[str, str] = MappingProxyType({}),
    options: ListOptions | None = None,
) -> ListSummary:
    """Write an index of the items of a published list. Videos are not opened, and missing ones are left out.

    Rows of one item are merged if they add labels or captions: MSR-VTT names each video once for each caption. Other
    repeated items are errors.

    Parameters
    ----------
    source : str or Path
        The list: a file, or a folder for the formats that are folders. The URL of an object store, such as
        "s3://data/clips", stands for all videos below it, by their suffixes, and takes no further arguments.
    output : str or Path
        Index to write, ``.json``, ``.jsonl`` or ``.csv``.
    format : str
        Name of ``LIST_FORMATS``.
    videos : sequence of str or Path
        Folders of the videos, or NAME=PATH; one path is one folder. Relative paths of the list begin in the first,
        absolute paths lie in any. By default the folder of the list, and the folders of the paths outside of it.
    where : Mapping[str, str]
        Extra column to the value that an item needs to be in the index, such as ``{"split": "train"}``.
    options : ListOptions, optional
        Options of the format.

    Returns
    -------
    ListSummary
        Counts of items and files. ``read_index(output)`` or ``build(output, ...)`` reads the index.

    Raises
    ------
    NotFoundError
        If the list or a folder does not exist, or none of the files does.
    UsageError
        If an argument is wrong, or a row of the list. The message names the row.
    StorageError
        If the disk is full. An earlier index at ``output`` stays unchanged.
    StoppedError
        If a signal stopped the run. An earlier index stays unchanged too.
    """
    check_output(output)
    if object_path(os.fspath(source)):
        if format != "csv" or videos or where or options not in (None, ListOptions()):
            raise UsageError(
                f"source: got '{printable(source)}' with further arguments, expected them with a list. Give the list, "
                "and the object store with videos (--videos)."
            )
        return _index_store(os.fspath(source), output)
    if os.path.realpath(source) == os.path.realpath(output):
        raise UsageError(f"output: got '{printable(output)}', which is the list itself, expected another file")
    layout.check_local("source", source)
    listed = open_list(Path(source), format, options or ListOptions())
    folders = [os.fspath(folder) for folder in as_items(videos)]
    with stop_signals():
        return _ListReader(listed, Locator(folders, listed.folder), where).write(output, may_add_roots=not folders)


def _index_store(url: str, output: str | Path) -> ListSummary:
    """Write an index of the videos below a URL, of one listing."""
    started = time.monotonic()
    (corpus,) = parse_roots([url])
    num_items = 0
    with (
        stop_signals(),
        IndexWriter(output, roots={corpus.label: corpus.folder}, level=None, whole_roots=[corpus.label]) as writer,
    ):
        for file in corpus.files():
            if file.is_video:
                writer.write(VideoRecord(corpus.label, file.path))
                num_items += 1
        if not num_items:
            raise NotFoundError(f"no videos at '{printable(url)}'; check the URL")
    return ListSummary(num_items, num_items, 0, 0, (), 0, 0, time.monotonic() - started)


class _ListReader:
    """One run over a list."""

    def __init__(self, listed: ItemList, locator: Locator, where: Mapping[str, str]) -> None:
        self._listed, self._locator, self._where = listed, locator, where
        self._seen_values: dict[str, set[str]] = {name: set() for name in where}
        self._numbers = NumberCheck()
        self._needs_captions = False
        """True if an item has a caption, or neither a caption nor a label"""
        self._num_bare = 0
        """Items of a list of captions that have none"""
        self._bare: list[str] = []
        self._num_merged = self._num_not_chosen = 0

    def write(self, output: str | Path, *, may_add_roots: bool) -> ListSummary:
        """Write the index of all items. Paths outside of all roots get roots of their own if it ``may_add_roots``."""
        started = time.monotonic()
        num_items = num_missing_items = 0
        last: dict[int, int] = {}
        paths = self._survey(last)
        added = self._locator.places.add_outer_roots(paths) if may_add_roots else {}
        for _ in paths:  # those that are left
            pass
        self._num_not_chosen = 0
        with IndexWriter(
            output,
            roots=self._locator.places.roots,
            level=None,
            columns=self._listed.columns,
            stated=self._listed.stated,
        ) as writer:
            for item in self._merged(last):
                record = self._record(item)
                if record is None:
                    num_missing_items += 1
                else:
                    writer.write(record)
                    self._count_remarks(item)
                    num_items += 1
            if not num_items:
                raise self._nothing()
        return ListSummary(
            num_items=num_items,
            num_files=self._locator.num_files,
            num_missing_items=num_missing_items,
            num_missing_files=self._locator.num_missing,
            missing_files=tuple(self._locator.missing),
            num_merged=self._num_merged,
            num_not_chosen=self._num_not_chosen,
            elapsed_seconds=time.monotonic() - started,
            taken=self._listed.taken,
            notes=(*([roots_note(added)] if added else []), *self._notes_on_items(), *self._listed.notes()),
        )

    def _survey(self, last: dict[int, int]) -> Iterator[str]:
        """Yield the paths of all items, and note the number of the last row of each."""
        for number, item in enumerate(self._chosen()):
            last[self._key(item)] = number
            yield item.path

    def _count_remarks(self, item: Item) -> None:
        """Count what a person should look at."""
        self._numbers.add(item.labels)
        if self._listed.has_captions:
            self._needs_captions = self._needs_captions or bool(item.captions) or not item.labels
            if not item.captions:
                self._num_bare += 1
                self._bare += [item.path] if len(self._bare) < NUM_EXAMPLES else []

    def _notes_on_items(self) -> Iterator[str]:
        if self._numbers.problem:
            yield f"label: {self._numbers.problem}"
        if self._num_bare and self._needs_captions:
            more = ", ..." if self._num_bare > len(self._bare) else ""
            yield f"{counted(self._num_bare, 'video')} without a caption: {', '.join(map(printable, self._bare))}{more}"

    def _nothing(self) -> ChordcacheError:
        """Return the error of a list without items whose files exist."""
        name, missing = printable(self._listed.path), self._locator.missing
        if missing:
            return NotFoundError(
                f"videos: got folders with none of the {self._locator.num_missing} files of '{name}', such as "
                f"'{printable(missing[0])}', expected the folder that the paths begin in. Give it with videos "
                "(--videos), or the names with video_template (--video-template)."
            )
        if self._num_not_chosen:
            column, value = next(iter(self._where.items()))
            values = printable(", ".join(sorted(self._seen_values[column])))
            expected = f"one of {values}" if values else "an extra column that the items have"
            return UsageError(f"where: got {printable(column)}={printable(value)}, expected {expected}")
        return UsageError(f"'{name}': got a list without items, expected at least one")

    def _chosen(self) -> Iterator[Item]:
        """Yield the items that ``where`` does not leave out, and rows without its columns, which others may have."""
        return (item for item in self._listed.items() if self._is_chosen(item, ""))

    def _is_chosen(self, item: Item, *others: str) -> bool:
        """Return whether the columns of ``where`` have its values, or one of ``others``."""
        texts = {name: as_text(item.extra.get(name)) for name in self._where}
        is_chosen = all(texts[name] in (value, *others) for name, value in self._where.items())
        for name, text in texts.items() if not is_chosen else ():
            if text and len(self._seen_values[name]) < 10:
                self._seen_values[name].add(text)
        self._num_not_chosen += not is_chosen
        return is_chosen

    def _merged(self, last: Mapping[int, int]) -> Iterator[Item]:
        """Yield the items. All rows of one item are one, with all labels and captions, at the place of the last."""
        waiting: dict[int, Item] = {}
        for number, item in enumerate(self._chosen()):
            key = self._key(item)
            if key in waiting:
                item = self._joined(waiting.pop(key), item)
            if last[key] != number:
                waiting[key] = item
            elif self._is_chosen(item):
                yield item

    def _key(self, item: Item) -> int:
        return hash((self._locator.places.real(item.path), item.segment))

    def _joined(self, first: Item, item: Item) -> Item:
        labels = tuple(dict.fromkeys(first.labels + item.labels))
        captions = tuple(dict.fromkeys(first.captions + item.captions))
        joined = first._replace(labels=labels, captions=captions, extra={**item.extra, **first.extra})
        others = [name for name, value in item.extra.items() if joined.extra[name] != value]
        if others or (joined == first and not self._listed.may_repeat):
            raise self._duplicate(item, first.row, others)
        self._num_merged += 1
        return joined

    def _record(self, item: Item) -> VideoRecord | None:
        """Return the record of an item, or None if its file does not exist."""
        if problem := too_long("path", item.path, MAX_PATH_CHARS):
            raise self._listed.error(item.row, problem)
        try:
            place = self._locator.find(item.path)
        except UsageError as error:
            raise self._listed.error(item.row, str(error)) from None
        problem = texts_problem(item.labels, item.captions, item.extra)
        if problem := problem or extra_problem(item.extra, self._listed.columns):
            raise self._listed.error(item.row, problem)
        if place is None:
            return None
        return VideoRecord(
            place.root,
            place.path,
            segment=item.segment,
            extra=item.extra,
            **described(item.labels, item.captions),
        )

    def _duplicate(self, item: Item, first: int, others: Sequence[str]) -> UsageError:
        part = f" {item.segment}" if item.segment else ""
        names = ", ".join(f"'{printable(name)}'" for name in others)
        remedy = f"They differ in {names}. Leave it out with ignore (--ignore), or correct the list."
        return self._listed.error(
            item.row,
            f"got '{printable(item.path)}'{part} twice, expected it once; {self._listed.unit} {first} has it too. "
            + (remedy if others else "Rows of one item add labels or captions to it."),
        )
