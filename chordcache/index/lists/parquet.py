"""Lists in Parquet files, with pyarrow.

A small file may hold values that take all memory: one page of 2 GB, or a text of 1 MB that each row names. Therefore
the headers of all pages are read first. They have the sizes that pyarrow allocates, and set how many rows are read at
once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from chordcache.config.bounds import MAX_ROW_BYTES, too_many_columns
from chordcache.errors import UsageError, printable

_MAX_ROWS_PER_BATCH = 1024
_BATCH_BYTES = 1 << 28
"""Size of the columns of some rows together, however they are encoded"""

_MAX_PAGE_BYTES = 1 << 26
"""Size of an unpacked page. Writers make pages of 1 MB"""

_MAX_GROUP_VALUES = 1 << 25
"""Largest number of values in the lists of one column of a row group. All may be those of one row"""

_MAX_ROW_VALUES = MAX_ROW_BYTES // 8
"""Largest number of values of one row"""

_MAX_FIXED_SIZE = 1 << 16
"""Largest size of a fixed-size list or text, which empty rows take too"""

_MAX_ROWS = 100_000_000
"""Largest number of rows. Repeated values take no bytes in the file"""

_FREE_BYTES, _MAX_RATIO = 1 << 30, 1000
"""Size of all unpacked values: the first, and beyond it the second times the size of the file"""

Rows = Iterator[tuple[int, dict[str, Any]]]


def open_parquet(path: Path) -> tuple[dict[str, str], Callable[[], Rows]]:
    """Return the type of each column of a Parquet file, and a function that yields number and values of each row.

    Raises ``UsageError`` if pyarrow is not installed, the file is not Parquet, or its values are too large.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet as pq
    except ModuleNotFoundError:
        raise UsageError(
            f"'{printable(path)}': a Parquet list needs pyarrow: pip install 'chordcache[build]'"
        ) from None
    with _usage_errors(path, "not Parquet", pa), pq.ParquetFile(path) as file:
        schema = file.schema_arrow
        problem = _problem(file, pa.types)
        num_rows = 0
        if problem is None:
            with _usage_errors(path, "damaged Parquet", pa), open(path, "rb") as raw:
                problem, num_rows = _survey(file, raw)
    if problem:
        raise UsageError(f"'{printable(path)}': {problem}")

    def batches() -> Iterator[Any]:
        with _usage_errors(path, "damaged Parquet", pa), pq.ParquetFile(path) as file:
            yield from file.iter_batches(num_rows)

    def rows() -> Rows:
        number, num_left = 0, _FREE_BYTES + _MAX_RATIO * os.path.getsize(path)
        for batch in batches():
            for part in _parts(batch, pa.types):
                num_left -= part.nbytes
                if part.num_rows == 1 and (
                    part.nbytes > MAX_ROW_BYTES or _num_values(part, pa.types) > _MAX_ROW_VALUES
                ):
                    raise _too_large(path, number + 1, f"a row of more than {MAX_ROW_BYTES:,} bytes")
                if num_left < 0:
                    raise _too_large(path, number + 1, f"values of more than {_MAX_RATIO:,} times the file's size")
                for row in _rows_of(part, path, number):
                    number += 1
                    yield number, {name: _text_of(value) for name, value in row.items() if value is not None}

    return {field.name: _type_of(field.type, pa.types) for field in schema}, rows


@contextmanager
def _usage_errors(path: Path, what: str, pyarrow: Any) -> Iterator[None]:
    """Turn the errors of a file that cannot be read into ``UsageError``. ``what`` says what it is."""
    try:
        yield
    except UsageError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, LookupError) as error:
        raise UsageError(f"'{printable(path)}': {what}: {printable(str(error))}") from None


def _too_large(path: Path, row: int, got: str) -> UsageError:
    return UsageError(f"'{printable(path)}', record {row}: got {got}, expected fewer. Shorten its texts and lists.")


# What the file claims


def _problem(file: Any, types: Any) -> str | None:
    """Return the reason why the schema of a file is not accepted, or None."""
    if file.metadata.num_rows > _MAX_ROWS:
        return f"got {file.metadata.num_rows:,} rows, expected at most {_MAX_ROWS:,}. Split the list."
    for field in file.schema_arrow:
        if _fixed_size(field.type, types) > _MAX_FIXED_SIZE:
            expected = f"expected at most {_MAX_FIXED_SIZE:,}"
            return f"column '{printable(field.name)}': got values of a large fixed size, {expected}"
    return too_many_columns(len(file.schema))


def _fixed_size(kind: Any, types: Any) -> int:
    """Return how many bytes or values an empty row of a type takes."""
    if types.is_fixed_size_binary(kind):
        return int(kind.byte_width)
    inner = max((_fixed_size(kind.field(number).type, types) for number in range(kind.num_fields)), default=1)
    return int(inner * kind.list_size) if types.is_fixed_size_list(kind) else inner


def _survey(file: Any, raw: BinaryIO) -> tuple[str | None, int]:
    """Return the reason why the pages of a file are not accepted, or None, and the number of rows to read at once."""
    largest = [1] * file.metadata.num_columns
    for group in range(file.metadata.num_row_groups):
        for number in range(file.metadata.num_columns):
            chunk = file.metadata.row_group(group).column(number)
            name = f"column '{printable(chunk.path_in_schema)}'"
            num_values = 0
            for num_bytes, values in _pages(raw, chunk):
                num_values += values
                largest[number] = max(largest[number], num_bytes)
                if num_bytes > _MAX_PAGE_BYTES:
                    return f"{name}: got a page of {num_bytes:,} bytes, expected at most {_MAX_PAGE_BYTES:,}", 0
            if num_values > _MAX_GROUP_VALUES and file.schema.column(number).max_repetition_level:
                expected = f"at most {_MAX_GROUP_VALUES:,}. Write it with smaller row groups."
                return f"{name}: got {num_values:,} values in lists of one row group, expected {expected}", 0
    if sum(largest) > 2 * _BATCH_BYTES:
        return f"got pages of {sum(largest):,} bytes together, expected at most {2 * _BATCH_BYTES:,}", 0
    return None, max(1, min(_MAX_ROWS_PER_BATCH, _BATCH_BYTES // sum(largest)))


def _pages(raw: BinaryIO, chunk: Any) -> Iterator[tuple[int, int]]:
    """Yield the unpacked size and the number of values of each page of a chunk, as pyarrow goes through them.

    Raises ValueError and LookupError if they are not pages.

    Source: https://parquet.apache.org/docs/file-format/data-pages, PageHeader of parquet.thrift.
    """
    start, left = chunk.data_page_offset, chunk.num_values
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
        start = chunk.dictionary_page_offset
    stop = start + chunk.total_compressed_size
    raw.seek(start)
    while left > 0 and raw.tell() < stop:
        header = _struct(raw)
        num_bytes, num_packed = header[2], header[3]
        data = header.get(5) or header.get(8) or {1: 0}
        if not all(0 <= value < 1 << 31 for value in (num_bytes, num_packed, data[1])):
            raise ValueError("a page has a wrong size")
        left -= data[1]
        yield num_bytes, data[1]
        raw.seek(num_packed, os.SEEK_CUR)


def _struct(raw: BinaryIO, num_levels: int = 3) -> dict[int, Any]:
    """Read numbers and structures of a structure in the compact protocol of Thrift. Other values are skipped."""
    fields: dict[int, Any] = {}
    number = 0
    while head := raw.read(1)[0]:
        number = number + (head >> 4) if head >> 4 else _whole(raw)
        kind = head & 15
        if kind in (4, 5, 6):
            fields[number] = _whole(raw)
        elif kind == 8:  # bytes, such as the smallest value of a page
            raw.seek(_varint(raw), os.SEEK_CUR)
        elif kind == 12 and num_levels:
            fields[number] = _struct(raw, num_levels - 1)
        elif kind not in (1, 2):  # true and false have no bytes
            raise ValueError("a page has a header of an unknown form")
    return fields


def _varint(raw: BinaryIO) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = raw.read(1)[0]
        value |= (byte & 127) << shift
        if byte < 128:
            return value
    raise ValueError("a page has too large a number")


def _whole(raw: BinaryIO) -> int:
    value = _varint(raw)
    return value >> 1 ^ -(value & 1)


# Rows


def _parts(batch: Any, types: Any) -> Iterator[Any]:
    """Yield a batch whole, or row by row if its values would take much memory. Dictionaries are expanded."""
    for number, column in enumerate(batch.columns):
        if types.is_dictionary(column.type):
            batch = batch.set_column(number, batch.schema.names[number], column.dictionary_decode())
    if batch.nbytes <= MAX_ROW_BYTES and _num_values(batch, types) <= _MAX_ROW_VALUES:
        yield batch
    else:
        yield from (batch.slice(number, 1) for number in range(batch.num_rows))


def _num_values(batch: Any, types: Any) -> int:
    """Return the number of values of a batch, with those inside of lists and structures."""
    waiting, number = list(batch.columns), 0
    while waiting:
        array = waiting.pop()
        number += len(array)
        if types.is_map(array.type):
            number += 2 * (array.offsets[-1].as_py() - array.offsets[0].as_py())
        elif types.is_nested(array.type):
            parts = array.flatten()
            waiting += parts if isinstance(parts, list) else [parts]
    return number


def _rows_of(batch: Any, path: Path, number: int) -> list[dict[str, Any]]:
    """Return the rows of a batch after ``number`` others. Raises ``UsageError`` for text that is not UTF-8."""
    try:
        rows: list[dict[str, Any]] = batch.to_pylist()
        return rows
    except UnicodeDecodeError:
        for place in range(batch.num_rows):
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                try:
                    column[place].as_py()
                except UnicodeDecodeError as error:
                    raise UsageError(
                        f"'{printable(path)}', record {number + place + 1}: column '{printable(name)}': got the byte "
                        f"0x{error.object[error.start]:02x} at byte {error.start} of its text, expected UTF-8. "
                        "Save the list as UTF-8."
                    ) from None
        raise


def _text_of(value: Any) -> Any:
    """Return the text of a column of bytes, as some programs write text. Other values stay as they are."""
    return os.fsdecode(value) if isinstance(value, bytes) else value


def _type_of(kind: Any, types: Any) -> str:
    """Return the type of ``COLUMN_TYPES`` for a type of Arrow. Those that have none are text."""
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = _type_of(kind.value_type, types)
        is_text = types.is_string(kind.value_type) or types.is_large_string(kind.value_type)
        return f"list[{inner}]" if inner in ("int", "float") or is_text else "str"
    if types.is_boolean(kind):
        return "bool"
    if types.is_integer(kind):
        return "int"
    return "float" if types.is_floating(kind) else "str"
