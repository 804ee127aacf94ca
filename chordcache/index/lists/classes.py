"""Lists that classify whole files: UCF101, Something-Something V2 and the text lists of MMAction."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from chordcache.config.bounds import MAX_DIGITS
from chordcache.errors import UsageError, printable
from chordcache.index.file_names import VIDEO_SUFFIXES
from chordcache.index.lists.items import Item, ItemList, ListOptions
from chordcache.index.lists.tables import Row, json_object, json_records, row_error, text_lines
from chordcache.index.lists.templates import Template

# UCF101


def read_ucf101(path: Path, options: ListOptions) -> ItemList:
    """Read a list of UCF101: lines such as "ApplyEyeMakeup/v_ApplyEyeMakeup_g08_c01.avi 1".

    The label is the folder's name, which is the name of the class, also in test lists, which have no number. The number
    becomes the extra column ``class_id``, counted from 1. It has to agree with ``classInd.txt``, if that file lies
    beside the list.

    Source: https://www.crcv.ucf.edu/data/UCF101.php. Raises as ``read_table`` does.
    """
    names = _ucf101_classes(path.with_name("classInd.txt"))
    parse = partial(_ucf101_item, names, _template(options))
    return ItemList(path, "line", {"class_id": "int"}, partial(text_lines, path), parse)


def _ucf101_item(names: dict[int, str] | None, template: Template, line: str) -> Iterator[Item]:
    name, ids = split_line(line)
    label = os.path.dirname(name).rpartition("/")[2]
    if not label or len(ids) > 1:
        raise UsageError(f"got '{printable(line)}', expected CLASS/FILE and a number or none")
    if ids and names is not None and names.get(ids[0]) != label:
        expected = printable(names.get(ids[0], "no class"))
        raise UsageError(f"got '{printable(line)}', expected {expected} for class {ids[0]}")
    yield Item(_video_path(name, template), labels=(label,), extra={"class_id": ids[0]} if ids else {})


def _ucf101_classes(path: Path) -> dict[int, str] | None:
    if not path.is_file():
        return None
    names = {}
    for number, line in text_lines(path, "the name of a class"):
        first, _, name = line.partition(" ")
        if not first.isdecimal() or len(first) > MAX_DIGITS or not name:
            raise row_error(path, "line", number, f"got '{printable(line)}', expected a number and the name of a class")
        names[int(first)] = name.strip()
    return names


def split_line(line: str) -> tuple[str, list[int]]:
    """Return the path that a line begins with, and the whole numbers after it.

    Raises ``UsageError`` if a number has too many digits.

    Examples
    --------
    >>> split_line("a clip.mp4 1 3")
    ('a clip.mp4', [1, 3])
    """
    words = re.split(r"([ \t]+)", line)  # words and the spaces between them, in turn
    stop = len(words)
    while stop > 1 and words[stop - 1].isdecimal():
        stop -= 2
    numbers = words[stop + 1 :: 2]
    if any(len(number) > MAX_DIGITS for number in numbers):
        raise UsageError(f"got a number of more than {MAX_DIGITS} digits, expected the number of a class")
    return "".join(words[:stop]), list(map(int, numbers))


def _template(options: ListOptions) -> Template:
    return Template(options.video_template or "{path}", ("path", "stem"))


def _video_path(name: str, template: Template) -> str:
    """Return the path of the file, from the path in the list."""
    return template.path({"path": name, "stem": os.path.splitext(name)[0]})


# MMAction


def read_mmaction(path: Path, options: ListOptions) -> ItemList:
    """Read a text list of MMAction: a path and the numbers of its classes, from 0, such as "a.mp4 1 3".

    The numbers are the labels. A path without the suffix of a video is a folder of frames, as in lists of raw frames,
    or ``video_template`` names its video, such as "{path}.mp4". Its first number is the number of frames.

    Source: https://mmaction2.readthedocs.io/en/latest/user_guides/prepare_dataset.html. Raises as ``read_table`` does.
    """
    parse = partial(_mmaction_item, _template(options), 1 if options.video_template else 2)
    return ItemList(path, "line", {"num_frames": "int"}, partial(text_lines, path), parse)


def _mmaction_item(template: Template, least_numbers: int, line: str) -> Iterator[Item]:
    name, ids = split_line(line)
    extra: dict[str, Any] = {}
    if name.rpartition(".")[2].lower() not in VIDEO_SUFFIXES:
        if len(ids) < least_numbers:
            raise UsageError(
                f"got '{printable(line)}', expected a video and numbers, or a folder of frames, their number, and "
                "numbers. If the folders were videos, give video_template (--video-template), such as '{path}.mp4'."
            )
        extra["num_frames"] = ids.pop(0)
    yield Item(_video_path(name, template), labels=tuple(map(str, ids)), extra=extra)


# Something-Something V2


def read_ssv2(path: Path, options: ListOptions) -> ItemList:
    """Read a JSON list of Something-Something V2: id, label, template, placeholders. Test lists have the id only.

    The label is the template without brackets, as in ``labels.json``, and the caption is the list's "label", where the
    placeholders are filled in. If ``labels.json`` lies beside the list, the number of the class becomes the extra
    column ``class_id``, counted from 0. Files are ``{id}.webm``.

    Source: https://www.qualcomm.com/developer/software/something-something-v-2-dataset. Raises as ``read_table`` does.
    """
    ids = _ssv2_classes(path.with_name("labels.json"))
    template = Template(options.video_template or "{id}.webm", ("id",))
    columns = {"class_id": "int", "placeholders": "list[str]"}
    return ItemList(path, "record", columns, partial(json_records, path), partial(_ssv2_item, ids, template))


def _ssv2_item(ids: dict[str, int] | None, template: Template, row: Row) -> Iterator[Item]:
    if not isinstance(row.get("id"), str | int):
        columns = ", ".join(f"'{printable(name)}'" for name in row) or "none"
        raise UsageError(f"got the members {columns}, expected 'id'")
    label = str(row.get("template", "")).replace("[", "").replace("]", "")
    extra: dict[str, Any] = {name: row[name] for name in ("placeholders",) if name in row}
    if ids is not None and label:
        if label not in ids:
            raise UsageError(f"got the template '{printable(label)}', expected a class")
        extra["class_id"] = ids[label]
    caption = str(row.get("label", ""))
    labels, captions = ((text,) if text else () for text in (label, caption))
    yield Item(template.path(row), labels=labels, captions=captions, extra=extra)


def _ssv2_classes(path: Path) -> dict[str, int] | None:
    if not path.is_file():
        return None
    try:
        return {name: int(number) for name, number in json_object(path).items()}
    except UsageError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        expected = "expected a JSON object of names and numbers of classes"
        raise UsageError(f"'{printable(path)}': {expected} ({printable(str(error))})") from None
