"""The writer of the NPZ tier: a zip file that ``np.load`` opens, with the values of each array in one piece.

An array is a member ``<name>.npy``, uncompressed. The table of ``array_file`` is the comment of the zip.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from typing import Any

from chordcache.errors import UsageError
from chordcache.storage.artefacts import npy
from chordcache.storage.artefacts.array_writer import ArrayFileWriter, Values
from chordcache.storage.artefacts.writer import StreamedArray


class NpzArtefactWriter(ArrayFileWriter):
    """A writer of one ``.npz``."""

    def _begin(self, name: str, stream: StreamedArray) -> None:
        if stream.dtype is None:
            raise UsageError(f"NPZ holds arrays, but '{name}' is of records: put it into lmdb or hdf5")
        super()._begin(name, stream)

    def _write_file(self, arrays: Mapping[str, Values], attributes: Mapping[str, Mapping[str, Any]]) -> None:
        offsets = {}
        with open(self.path, "wb") as file, zipfile.ZipFile(file, "w") as archive:
            for name, values in arrays.items():
                info = zipfile.ZipInfo(f"{name}.npy")  # no date: equal arrays make equal files
                with archive.open(info, "w", force_zip64=True) as member:
                    member.write(npy.header_of(values.shape, values.dtype))
                    offsets[name] = file.tell()
                    for block in values.blocks:
                        member.write(block)
            archive.comment = self._table(arrays, offsets)
