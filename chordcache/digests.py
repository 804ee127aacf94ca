"""Checksums of records, lines and files. xxh3 is as fast as reading memory.

The seal of a line of JSON is its last member: the digest of all bytes before it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import xxhash

from chordcache import progress

_CHUNK_BYTES = 1 << 20

_SEAL = b', "xxh3_128": "'


digest64: Callable[[Any], int] = xxhash.xxh3_64_intdigest
"""Function of a buffer that returns its xxh3-64, the checksum of one record"""

digest_of_parts = xxhash.xxh3_64
"""Class of an xxh3-64 to update with the parts of a buffer. Its ``intdigest`` is the ``digest64`` of the whole"""

hex64 = xxhash.xxh3_64_hexdigest
"""Function of a buffer that returns its xxh3-64 as 16 hex digits, for names"""

hex128 = xxhash.xxh3_128_hexdigest
"""Function of a buffer that returns its xxh3-128 as 32 hex digits, for lines of JSON"""

file_digest = xxhash.xxh3_128
"""Class of an xxh3-128 to update with the bytes of a file"""


def digest_file(path: str | Path | int) -> str:
    """Return the xxh3-128 of a file's bytes as 32 hex digits. A descriptor is closed."""
    digest = file_digest()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            progress.beat()
            digest.update(chunk)
    return digest.hexdigest()


def fingerprint(name: str, version: int, params: Mapping[str, Any]) -> str:
    """Return 16 hex digits that change if the extractor, its version or a parameter changes."""
    return hex64(json.dumps([name, version, dict(params)], sort_keys=True).encode())


def sealed(body: str) -> str:
    """Return a line of ASCII JSON, an object, with the digest as its last member."""
    body = body[:-1]
    return f'{body}{_SEAL.decode()}{hex128(body.encode())}"}}'


def sealed_body(line: bytes) -> bytes | None:
    """Return the JSON that a line seals, without the digest, or None if its bytes changed."""
    body, seal, tail = line.rstrip(b"\n").rpartition(_SEAL)
    if not seal or tail != b'%b"}' % hex128(body).encode():
        return None
    return body + b"}"
