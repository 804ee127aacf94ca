"""The process that builds one part on a node of a cluster: ``python -m chordcache.building.part_process``.

It reads its order from the first line of its standard input. The end of that pipe ends the build, as SIGTERM does: the
process that started it is gone. So does the end of the plan.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from chordcache.building.build import build
from chordcache.building.build_options import BuildOptions
from chordcache.config.config import config_from_json
from chordcache.engine.display import Display
from chordcache.errors import ChordcacheError
from chordcache.json_records import from_json
from chordcache.storage.atomic import machine
from chordcache.storage.opener import exists
from chordcache.storage.part import Part
from chordcache.storage.part_folders import PLAN_FILE
from chordcache.storage.quarantine import Quarantine

_LOG_SECONDS = 1.0
"""Time from one line about the progress to the next, [seconds]"""


def main() -> int:
    """Build the part, print its counts and the causes of its failures as JSON, and return the exit code."""
    order = json.loads(sys.stdin.buffer.readline().decode())
    folder, options = Path(order.pop("folder")), from_json(order.pop("options"), BuildOptions)
    if isinstance(order["config"], dict):
        order["config"] = config_from_json(order["config"]["config"])
    threading.Thread(target=_end_with_pipe, daemon=True).start()
    threading.Thread(target=_end_with_plan, args=[folder], daemon=True).start()
    display = Display(False, False, log_file=order.pop("log_file"), interval_seconds=_LOG_SECONDS)
    try:
        summary = build(folder / "index.jsonl", **order, options=options, progress=display)
        part = Part.parse(str(options.part))
        failures = Quarantine(folder / f"{part.name}.{machine()}", {})
    except ChordcacheError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    causes = Counter(failure.cause for failure in failures)
    sys.stdout.write(json.dumps({"counts": asdict(summary), "causes": causes}) + "\n")
    return 0


def _end_with_pipe() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _end_with_plan(plan: Path) -> None:
    """End the build when its plan is removed, since a driver has begun another one."""
    while exists(plan, PLAN_FILE):
        time.sleep(_LOG_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
