"""A Parquet file with a row for each item, as Hugging Face datasets reads it: the frames are a list of images.

Source: datasets 4, ``List(Image())``: a list of structs with the fields "bytes" and "path". The metadata of the schema
states the features as JSON, under the key "huggingface".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chordcache.errors import UsageError, printable
from chordcache.formats.item import facts
from chordcache.formats.items import Items

_COLUMNS = {
    "key": "str",
    "root": "str",
    "path": "str",
    "start_seconds": "float",
    "end_seconds": "float",
    "start_frame": "int",
    "end_frame": "int",
    "label": "str",
    "labels": "list[str]",
    "caption": "str",
    "captions": "list[str]",
    "width": "int",
    "height": "int",
    "source_frames": "list[int]",
    "pts_seconds": "list[float]",
}
"""Columns of every file but the frames, with their types, see ``COLUMN_TYPES``. Extra columns of the index follow"""

_DTYPES = {"str": "string", "int": "int64", "float": "float64", "bool": "bool"}
"""Type of a column to its name in datasets. Boxes are JSON text"""

_GROUP_BYTES = 32 << 20
"""Size of the frames of a row group [bytes]. A reader has a whole row group in memory"""


def write(items: Items, numbers: Sequence[int], path: Path) -> None:
    """Write items to a Parquet file, in row groups of about 32 MiB."""
    import pyarrow as pa
    from pyarrow import parquet

    columns = _COLUMNS | {f"extra.{name}": kind for name, kind in items.columns.items()}
    schema = _schema(columns)
    with parquet.ParquetWriter(path, schema, use_dictionary=False, compression="NONE") as file:
        rows, num_bytes = [], 0
        for number in numbers:
            item = items[number]
            frames = list(items.jpegs(item))
            rows.append(_row(facts(item), columns) | {"frames": [{"bytes": data, "path": None} for data in frames]})
            num_bytes += sum(map(len, frames))
            if num_bytes >= _GROUP_BYTES or number == numbers[-1]:
                try:
                    table = pa.Table.from_pylist(rows, schema=schema)
                except (OverflowError, UnicodeEncodeError, pa.ArrowException) as error:  # such as a path in Latin-1
                    what = f"to: got parquet for a video with a value that it cannot hold: {printable(str(error))}"
                    raise UsageError(f"{what}. Take webdataset or folder.") from None
                file.write_table(table)
                rows, num_bytes = [], 0


def _row(of_item: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    segment = of_item.get("segment", {})
    extra = {f"extra.{name}": value for name, value in of_item.get("extra", {}).items()}
    values = {**of_item, **extra, **segment}
    return {name: _value(values.get(name), kind) for name, kind in columns.items()}


def _value(value: Any, kind: str) -> Any:
    return json.dumps(value) if value is not None and kind.endswith("boxes") else value


def _feature(kind: str) -> dict[str, Any]:
    """Return the feature of datasets that a column is."""
    inner = kind.removeprefix("list[").removesuffix("]")
    value = {"dtype": _DTYPES.get(inner, "string"), "_type": "Value"}
    return value if inner == kind else {"feature": value, "_type": "List"}


def _schema(columns: Mapping[str, str]) -> Any:
    import pyarrow as pa

    def arrow(feature: Mapping[str, Any]) -> pa.DataType:
        if feature["_type"] == "List":
            return pa.list_(arrow(feature["feature"]))
        if feature["_type"] == "Image":
            return pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        return pa.type_for_alias(feature["dtype"])

    features = {name: _feature(kind) for name, kind in columns.items()}
    features["frames"] = {"feature": {"_type": "Image"}, "_type": "List"}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    return pa.schema([(name, arrow(feature)) for name, feature in features.items()], metadata=metadata)
