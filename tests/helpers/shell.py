"""Real shells on a terminal: a user who types a command, presses TAB and then Enter."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

START = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "--interactive"],
}

_PROGRAM = """#!/bin/sh
[ -n "$_CHORDCACHE_COMPLETE" ] && exec {python} -m chordcache "$@"
printf 'got'
printf '<%s>' "$@"
printf '%s\\n' end-of-words
"""
"""The program on the PATH of the shell. It completes as chordcache does, and otherwise prints its arguments"""


class Shell:
    """A shell in a folder, with the completion of chordcache."""

    def __init__(self, name: str, folder: Path, home: Path) -> None:
        program = home / "bin" / "chordcache"
        program.parent.mkdir(parents=True)
        program.write_text(_PROGRAM.format(python=sys.executable))
        program.chmod(0o755)
        script = subprocess.run(
            [sys.executable, "-m", "chordcache", "completion", name], capture_output=True, check=True
        ).stdout
        (home / "script").write_bytes(script)
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("CHORDCACHE_")},
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "HOME": str(home),
            "ZDOTDIR": str(home),
            "TERM": "dumb",
            "LC_ALL": "C.UTF-8",
        }
        self._terminal, child = pty.openpty()
        self._process = subprocess.Popen(
            START[name], cwd=folder, env=environment, preexec_fn=lambda: os.login_tty(child), pass_fds=[child]
        )
        os.close(child)
        before = "autoload -Uz compinit; compinit -i -D; " if name == "zsh" else ""
        self._run(f"{before}source {home / 'script'}; chordcache ready")

    def words(self, typed: str) -> list[str]:
        """Return the arguments of ``chordcache`` after some text was typed, then TAB, then Enter."""
        return self._run(f"{typed}\t")

    def _run(self, typed: str) -> list[str]:
        assert self._process.poll() is None, "the shell has ended"
        os.write(self._terminal, typed.encode() + b"\r")
        text = self._read_until(b"end-of-words\r\n")
        return text.rpartition("got<")[2].partition(">end-of-words")[0].split("><")

    def _read_until(self, end: bytes) -> str:
        received = b""
        limit = time.monotonic() + 30
        while not received.endswith(end) and end not in received:
            readable, _, _ = select.select([self._terminal], [], [], max(0, limit - time.monotonic()))
            if not readable:
                self._process.kill()  # what comes next could not be understood either
                raise AssertionError(f"the shell does not answer: {received!r}")
            received += os.read(self._terminal, 65536)
        return received.decode(errors="replace")

    def close(self) -> None:
        """End the shell."""
        os.close(self._terminal)
        self._process.kill()
        self._process.wait()


def make_files(folder: Path, names: Sequence[str]) -> None:
    """Make empty files, and folders where a name ends with a slash."""
    for name in names:
        path = folder / name
        path.mkdir() if name.endswith("/") else path.write_bytes(b"")
