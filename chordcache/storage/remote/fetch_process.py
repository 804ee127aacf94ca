"""The process that fetches files from a bucket for another one, which may fork, as the threads of obstore may not.

It reads a request from each line of standard input, answers on standard output in any order, and ends with its input.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from chordcache.errors import ChordcacheError, describe
from chordcache.json_records import parse_json
from chordcache.storage.remote.local_store import LocalStore
from chordcache.storage.remote.mark import Mark
from chordcache.storage.remote.messages import Answer, Request, to_line

_NUM_THREADS = 32
"""Files that are fetched at a time. Most threads wait for the bucket"""


def main(folder: str, url: str, limit: str) -> None:
    """Serve a folder that fills itself from a bucket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the end of the input ends this process
    answers, lock = os.fdopen(os.dup(1), "wb"), threading.Lock()
    os.dup2(2, 1)  # a library may print
    store: list[LocalStore] = []
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        for line in sys.stdin.buffer:
            pool.submit(_serve, Path(folder), Mark(url, int(limit)), store, parse_json(line, Request), answers, lock)
        os._exit(0)  # the process that asked has ended


def _serve(
    folder: Path, mark: Mark, store: list[LocalStore], request: Request, answers: BinaryIO, lock: threading.Lock
) -> None:
    error = message = ""
    try:
        with lock:
            if not store:
                store.append(LocalStore(folder, mark))
        if request.file is None:
            store[0].fetch_lists()
        elif request.spans is None:
            store[0].fetch(request.file)
        else:
            store[0].fetch_ranges(request.file, request.spans)
    except ChordcacheError as failure:
        error, message = type(failure).__name__, str(failure)
    except Exception as failure:  # noqa: BLE001 # item boundary: the process that asked raises it
        error, message = "ChordcacheError", describe(failure)
    with lock:
        answers.write(b"%b\n" % to_line(Answer(request.number, error, message)))
        answers.flush()
