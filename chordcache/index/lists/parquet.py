"""Lists in Parquet files, with pyarrow. Only this module imports it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from chordcache.errors import UsageError, printable

_ROWS_PER_BATCH = 4096


def open_parquet(path: Path) -> tuple[dict[str, str], Callable[[], Iterator[tuple[int, dict[str, Any]]]]]:
    """Return the type of each column of a Parquet file, and a function that yields number and values of each row.

    Raises
    ------
    UsageError
        If pyarrow is not installed, or the file is not Parquet.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet as pq
    except ModuleNotFoundError:
        raise UsageError(
            f"'{printable(path)}': a Parquet list needs pyarrow: pip install 'chordcache[parquet]'"
        ) from None
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"'{printable(path)}': not Parquet: {printable(str(error))}") from None

    def batches() -> Iterator[Any]:
        try:
            with pq.ParquetFile(path) as file:
                yield from file.iter_batches(_ROWS_PER_BATCH)
        except (pa.ArrowException, OSError) as error:
            raise UsageError(f"'{printable(path)}': damaged Parquet: {printable(str(error))}") from None

    def rows() -> Iterator[tuple[int, dict[str, Any]]]:
        number = 0
        for batch in batches():
            for row in _rows_of(batch, path, number):
                number += 1
                yield number, {name: _text_of(value) for name, value in row.items() if value is not None}

    return {field.name: _type_of(field.type, pa.types) for field in schema}, rows


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
