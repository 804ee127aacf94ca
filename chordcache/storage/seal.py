"""The seal of a line of JSON: its last member is the digest of all bytes before it."""

from __future__ import annotations

from chordcache.digests import hex128

_SEAL = b', "xxh3_128": "'


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
