"""The process that builds one part on a node of a cluster: ``python -m chordcache.building.part_process``.

It reads its order from the first line of its standard input. The end of that pipe ends the build, as SIGTERM does: the
process that started it is gone. So does the removal of the file of the run, by the driver or by the next one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from chordcache.building.build import build
from chordcache.building.build_options import BuildOptions
from chordcache.config.config import config_from_json
from chordcache.engine.display import Display
from chordcache.errors import ChordcacheError, UsageError
from chordcache.json_records import from_json
from chordcache.media.versions import content_versions

_LOG_SECONDS = 1.0
"""Time from one line about the progress to the next, and from one look at the run to the next, [seconds]"""


def main() -> int:
    """Build the part, print the error if there is one, and return the exit code."""
    order = json.loads(sys.stdin.buffer.readline().decode())
    options, config = from_json(order.pop("options"), BuildOptions), config_from_json(order.pop("config"))
    threading.Thread(target=_end_with_pipe, daemon=True).start()
    threading.Thread(target=_end_with_run, args=[Path(order.pop("run"))], daemon=True).start()
    display = Display(False, False, log_file=order.pop("log_file"), interval_seconds=_LOG_SECONDS)
    try:
        expected, mine = order.pop("versions"), content_versions()
        for name, version in expected.items():
            if version != mine.get(name):
                raise UsageError(f"{name}: got {mine.get(name, 'none')}, expected {version}, as on the other nodes")
        build(**order, config=config, options=options, progress=display)
    except ChordcacheError as error:
        sys.stdout.write(f"{error}\n")
        return error.exit_code
    return 0


def _end_with_pipe() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _end_with_run(file: Path) -> None:
    try:
        while True:
            file.open().close()  # NFS remembers for a while that a file exists, but not when it is opened
            time.sleep(_LOG_SECONDS)
    except FileNotFoundError:
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
