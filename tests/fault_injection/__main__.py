"""The process in which ``harness.run_calls`` makes the calls of an experiment."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from fault_injection.harness import load_experiments, make_calls

name, calls, *folders = sys.argv[1:]
(chosen,) = (experiment for experiment in load_experiments() if experiment.name == name)
make_calls(chosen, [(start, count) for start, count in json.loads(calls)], *map(Path, folders))
