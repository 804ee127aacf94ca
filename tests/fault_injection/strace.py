"""Files and addresses that a command opens, removes and connects to, according to the kernel."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from helpers import processes

_CALLS = "open,openat,openat2,creat,unlink,unlinkat,rename,renameat,renameat2,link,linkat,symlinkat,connect,socket"

_OPENED = re.compile(r'(?:open|openat|openat2|creat)\((?:(?:AT_FDCWD|\d+)<([^>]*)>, )?"((?:[^"\\]|\\.)*)"')
_CHANGED = re.compile(r"(?:unlink|unlinkat|rename|renameat|renameat2|link|linkat|symlinkat)\(.*")
_PATH = re.compile(r'(?:(?:AT_FDCWD|\d+)<([^>]*)>, )?"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Traced:
    """A command that has ended, and what it asked of the kernel, successful or not, its workers included."""

    returncode: int
    stdout: str
    stderr: str
    opened: frozenset[str]
    """Absolute, links not followed"""
    changed: frozenset[str]
    """Removed, renamed or linked"""
    num_internet: int
    """Sockets of the internet that were made"""

    def touched_below(self, folder: Path) -> set[str]:
        """Paths that were opened or changed there, relative to it."""
        top = os.path.join(folder, "")
        return {path.removeprefix(top) for path in self.opened | self.changed if path.startswith(top)}


def traced(folder: Path, *args: str | Path, program: Sequence[str] = ("-m", "chordcache")) -> Traced:
    """Run ``python -m chordcache ARGS`` in ``folder`` under strace."""
    trace = folder.with_name(f"{folder.name}.trace")
    done = subprocess.run(
        ["strace", "--seccomp-bpf", "-f", "-qq", "-y", "-s", "5000", "-e", f"trace={_CALLS}", "-o", trace,
         sys.executable, *program, *map(os.fspath, args)],
        cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="surrogateescape", timeout=300,
    )  # fmt: skip
    text = trace.read_text(errors="replace")
    assert processes.fine(done.stderr), done.stderr
    return Traced(
        done.returncode,
        done.stdout,
        done.stderr,
        frozenset(_absolute(*match.groups()) for match in _OPENED.finditer(text)),
        frozenset(_absolute(*path.groups()) for line in _CHANGED.findall(text) for path in _PATH.finditer(line)),
        len(re.findall(r"socket\(AF_INET6?,", text)),
    )


def _absolute(folder: str | None, escaped: str) -> str:
    name = escaped.encode().decode("unicode_escape").encode("latin-1")
    return os.path.normpath(os.path.join(folder or "/", os.fsdecode(name)))


@contextmanager
def web_server() -> Iterator[tuple[str, list[str]]]:
    """Its address, and what was asked of it so far."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}", requests
        finally:
            server.shutdown()
            thread.join()
