"""An object store, or a part of one: its objects are files of a cache or sources. The owner of obstore.

The threads of obstore do not survive a fork: a request in a process that was forked after one would hang.

A source in an object store has a path as a file has: ``/s3:/data/clips/a.mp4`` is ``s3://data/clips/a.mp4``.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from chordcache.arguments import absolute
from chordcache.errors import (
    ChordcacheError,
    DamageError,
    NotFoundError,
    StorageError,
    UsageError,
    cannot_write,
    match_of_object,
    printable,
)

_CREDENTIALS = {
    "s3": (
        *("AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE", "AWS_WEB_IDENTITY_TOKEN_FILE"),
        *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
    ),
    "gs": (
        *("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"),
        *("GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_SKIP_SIGNATURE"),
    ),
    "az": (
        *("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_SAS_TOKEN"),
        *("AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE", "AZURE_STORAGE_TOKEN"),
        *("AZURE_USE_AZURE_CLI", "AZURE_SKIP_SIGNATURE", "IDENTITY_ENDPOINT"),
    ),
}
"""Scheme of a URL to the environment variables of which one is enough, as obstore reads them"""

_GOOGLE_FILE = ".config/gcloud/application_default_credentials.json"
"""Credentials of Google that ``gcloud auth application-default login`` writes, in the home folder"""

_METADATA = ("169.254.169.254", 80)
"""Address at which a machine of a cloud has its own credentials"""

_METADATA_SECONDS = 1.0
"""[seconds] Longest wait for that address. obstore alone would wait for minutes"""

_RETRIES = {
    "max_retries": 3,
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=1), "base": 2},
    "retry_timeout": timedelta(seconds=20),
}
_TO_READ = {"connect_timeout": "5s", "read_timeout": "5s", "timeout": "24h"}
"""Four tries that stall end in 21 seconds. The time of a whole object has no limit"""

_TO_WRITE = {"connect_timeout": "5s", "timeout": "25s"}
"""For a part of an object. A limit on reading would count the time in which a part is sent"""

_MAX_READ_BYTES = 16 << 20
"""Largest object that is read as a whole [bytes]"""

_PART_BYTES = 8 << 20
"""Largest object that is sent with one request, and size of the parts of others [bytes]"""

_MAX_PARTS_AT_ONCE = 2
_BLOCK_BYTES = 1 << 20

_OTHER_REGION = ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException")
"""Codes of S3 for an object store in another region"""

_BAD_NAME = re.compile(r'invalid path: (?:Error parsing )?Path "(.*?)"(?::| contained)', re.DOTALL)
"""Error of obstore about the name of an object in a listing"""

_CODE = re.compile(r"<Code>([^<]*)</Code>")

_first_user = 0
"""Process that sent the first request, this one or one that it was forked from"""


def object_path(url: str) -> str | None:
    """Return the path of an object or a folder, or None for what is not a URL of an object store.

    Examples
    --------
    >>> object_path("s3://data/clips/")
    '/s3:/data/clips'
    """
    scheme, separator, rest = url.partition("://")
    path = os.path.normpath(f"/{scheme}:/{rest}") if separator else ""
    return path if is_in_store(path) else None


def source_folder(path: str | os.PathLike[str]) -> str:
    """Return the absolute path of a root that a person wrote: a folder, or the URL of an object store."""
    return object_path(os.fspath(path)) or str(absolute(path))


def is_in_store(path: str) -> bool:
    """Return whether an absolute path is of a source in an object store, or of a folder there."""
    return match_of_object(path) is not None


def split_path(path: str) -> tuple[str, str]:
    """Return the URL of an object store, and the name of an object or a folder in it."""
    match = match_of_object(path)
    assert match is not None
    return f"{match[1]}://{match[2]}", match[3] or ""


class StoredObject(NamedTuple):
    """An object of an object store, as a listing has it."""

    num_bytes: int
    etag: str | None
    """Tag that differs for other content. For an object that S3 got with one request, the MD5 of its content"""


class ObjectStore:
    """The objects below a URL such as ``s3://data/prefix``. Endpoint and credentials come from the environment.

    Several threads may share it. Raises ``UsageError`` if obstore is not installed, does not know the URL, or has no
    credentials.
    """

    def __init__(self, url: str) -> None:
        try:
            import obstore.store
        except ModuleNotFoundError:
            raise UsageError(
                f"url: got '{printable(url)}' without the package obstore, expected it to be installed. Run "
                "pip install 'chordcache[store]'."
            ) from None
        self.url = url.rstrip("/")
        self._obstore: Any = obstore
        scheme = url.partition("://")[0]
        cloud = {"s3a": "s3", "gcs": "gs"}.get(scheme, "az" if scheme[:2] in ("az", "ab", "ad") else scheme)
        if cloud not in _CREDENTIALS:
            raise UsageError(f"url: got '{printable(url)}', expected s3://NAME/PREFIX, gs://... or az://...")
        endpoints = [value for name, value in os.environ.items() if name.startswith("AWS_ENDPOINT")]
        allowed = {"allow_http": any(endpoint.startswith("http://") for endpoint in endpoints)}
        try:
            self._to_read, self._to_write = (
                self._obstore.store.from_url(url, client_options={**options, **allowed}, retry_config=_RETRIES)
                for options in (_TO_READ, _TO_WRITE)
            )
        except (self._obstore.exceptions.BaseError, ValueError) as error:
            raise UsageError(f"url: got '{printable(url)}', expected an object store: {_reason(error)}") from None
        if not _has_credentials(cloud):
            raise self._no_credentials(cloud)

    def _no_credentials(self, cloud: str) -> UsageError:
        first, *others = _CREDENTIALS[cloud]
        also = ' With profiles of the AWS CLI, run eval "$(aws configure export-credentials --format env)".'
        return UsageError(
            f"{first}: got nothing, expected credentials for '{printable(self.url)}'. Set it, or one of "
            f"{', '.join(others[:4])}.{also * (cloud == 's3')}"
        )

    def check_exists(self) -> None:
        """Raise ``NotFoundError`` if the object store does not exist. A missing object does not say so."""
        with self._errors("."):
            self._obstore.list_with_delimiter(self._to_read, "packs")

    def entries(self, below: str | None = None) -> dict[str, StoredObject]:
        """Return all objects by name, or those in a folder. Raises as ``check_exists`` does."""
        with self._errors("."):
            stream = self._obstore.list(self._to_read, below)
            return {item["path"]: StoredObject(item["size"], item["e_tag"]) for items in stream for item in items}

    def folder(self, name: str) -> dict[str, StoredObject]:
        """Return the objects directly in a folder, by the ends of their names. Raises as ``check_exists`` does."""
        with self._errors("."):
            items = self._obstore.list_with_delimiter(self._to_read, name or None)["objects"]
            return {item["path"].rpartition("/")[2]: StoredObject(item["size"], item["e_tag"]) for item in items}

    def entry(self, name: str) -> StoredObject:
        """Return one object. Raises ``NotFoundError``, also if the object store does not exist."""
        with self._errors(name):
            item = self._obstore.head(self._to_read, name)
            return StoredObject(item["size"], item["e_tag"])

    def blocks(self, name: str, start: int, num_bytes: int, etag: str | None = None) -> Iterator[bytes]:
        """Read bytes of an object. There are fewer if the object ends before them.

        Raises ``NotFoundError``, ``StorageError`` if the object store does not answer, and ``DamageError`` if the
        object has another tag than ``etag``.
        """
        if not num_bytes:
            return
        options = {"range": (start, start + num_bytes), **({"if_match": etag} if etag else {})}
        with self._errors(name):
            rest = num_bytes
            for block in self._obstore.get(self._to_read, name, options=options).stream(min_chunk_size=_BLOCK_BYTES):
                rest -= len(block)
                if rest < 0:  # a server that ignores the range
                    raise DamageError(f"'{printable(self.url)}/{name}': got more bytes than were asked for")
                yield bytes(block)

    def whole(self, name: str, entry: StoredObject) -> Iterator[bytes]:
        """Read a whole object as it was when it was listed. Raises as ``blocks`` does, also if it changes."""
        rest = entry.num_bytes
        for block in self.blocks(name, 0, rest, entry.etag):
            rest -= len(block)
            yield block
        if rest:
            raise DamageError(f"'{printable(self.url)}/{name}': got {rest} bytes fewer than {entry.num_bytes}")

    def read(self, name: str) -> bytes | None:
        """Return the content of a small object, or None if there is none. Raises as ``blocks`` does."""
        try:
            entry = self.entry(name)
        except NotFoundError:
            return None
        if entry.num_bytes > _MAX_READ_BYTES:
            raise DamageError(f"'{printable(self.url)}/{name}': got {entry.num_bytes} bytes, expected a small file")
        return b"".join(self.whole(name, entry))

    def write(self, name: str, blocks: Iterable[bytes]) -> None:
        """Write an object. It appears complete or not at all, and not if ``blocks`` raises.

        Raises ``StorageError`` if the object store does not take it.
        """
        blocks, first = iter(blocks), b""
        while len(first) <= _PART_BYTES and (block := next(blocks, b"")):
            first += block
        content: Any = first if len(first) <= _PART_BYTES else chain([first], blocks)
        with self._errors(name, writes=True):
            self._obstore.put(
                self._to_write, name, content, chunk_size=_PART_BYTES, max_concurrency=_MAX_PARTS_AT_ONCE,
                use_multipart=content is not first,
            )  # fmt: skip

    def remove(self, names: list[str]) -> None:
        """Remove objects."""
        if names:
            with self._errors(names[0], writes=True):
                self._obstore.delete(self._to_write, names)

    @contextmanager
    def _errors(self, name: str, *, writes: bool = False) -> Iterator[None]:
        """Send requests, and turn the errors of obstore into those of this package."""
        _check_not_forked()
        try:
            yield
        except (FileNotFoundError, PermissionError, self._obstore.exceptions.BaseError) as error:
            if isinstance(error, ChordcacheError):
                raise
            raise self._error(name, error, writes) from None

    def _error(self, name: str, error: BaseException, writes: bool) -> ChordcacheError:
        what, text, reason = f"'{printable(self.url)}/{name}'", str(error), _reason(error)
        if reason == "NoSuchBucket" or (name == "." and "status code: 404" in text):
            store = printable("/".join(self.url.split("/")[:3]))
            return NotFoundError(f"no object store '{store}'; make it, or check the URL '{printable(self.url)}'")
        if isinstance(error, FileNotFoundError):
            return NotFoundError(f"no such object {what}")
        if match := _BAD_NAME.search(text):
            return UsageError(
                f"url: got '{printable(self.url)}' with an object '{printable(match[1])}', expected names without '.', "
                "'..' and empty parts. Rename the object, or name a folder without it."
            )
        if reason in _OTHER_REGION or "redirect without LOCATION" in text:
            region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
            return UsageError(
                f"AWS_REGION: got {printable(region)}, and '{printable(self.url)}' is in another region. Set the "
                "region of the object store."
            )
        if _METADATA[0] in text:
            return self._no_credentials("s3")
        if isinstance(error, PermissionError) or "status code: 401" in text or "status code: 403" in text:
            return UsageError(f"{what}: got {reason}, expected credentials that may {'write' if writes else 'read'} it")
        if "status code: 412" in text or isinstance(error, self._obstore.exceptions.PreconditionError):
            return DamageError(f"{what}: it changed while it was read. Run the same command again.")
        if writes:
            return cannot_write(f"{what}: the object store does not take it: {reason}. The same command resumes.")
        return StorageError(f"{what}: got {reason}, expected its content. Run the same command again.")


def _check_not_forked() -> None:
    """Raise ``UsageError`` if this process was forked after a request."""
    global _first_user
    if _first_user not in (0, os.getpid()):
        raise UsageError(
            "start_method: got 'fork' after a request to an object store, whose threads do not survive it, expected "
            "'forkserver' or 'spawn' (multiprocessing_context= of a DataLoader). Set it, or read and copy nothing of "
            "an object store before the fork."
        )
    _first_user = os.getpid()


def _reason(error: BaseException) -> str:
    """Return the reason of an error of obstore in a few words."""
    text = str(error).partition("\nDebug source")[0]
    if code := _CODE.search(text):
        return printable(code[1])
    return printable(text.strip().partition(": <")[0].rpartition(" - ")[2].strip()[:200])


def _has_credentials(cloud: str) -> bool:
    """Return whether the environment or this machine has credentials for a cloud."""
    if any(os.environ.get(name) for name in _CREDENTIALS[cloud]):
        return True
    if cloud == "gs" and os.path.exists(Path.home() / _GOOGLE_FILE):
        return True
    with suppress(OSError), socket.create_connection(_METADATA, _METADATA_SECONDS):
        return True
    return False
