"""Checksums of records, lines and files. xxh3 is as fast as reading memory.

The seal of a line of JSON is its last member: the digest of all bytes before it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xxhash

from chordcache import progress

_CHUNK_BYTES = 1 << 20

_SEAL = b', "xxh3_128": "'


def digest64(data: Any) -> int:
    """Return the xxh3-64 of a buffer, the checksum of one record."""
    return xxhash.xxh3_64_intdigest(data)


def digest_of_parts() -> xxhash.xxh3_64:
    """Return an xxh3-64 to update with the parts of a buffer. Its ``intdigest`` is the ``digest64`` of the whole."""
    return xxhash.xxh3_64()


def hex64(data: bytes) -> str:
    """Return the xxh3-64 of a buffer as 16 hex digits, for names."""
    return xxhash.xxh3_64_hexdigest(data)


def hex128(data: bytes) -> str:
    """Return the xxh3-128 of a buffer as 32 hex digits, for lines of JSON."""
    return xxhash.xxh3_128_hexdigest(data)


def file_digest() -> xxhash.xxh3_128:
    """Return an xxh3-128 to update with the bytes of a file."""
    return xxhash.xxh3_128()


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
