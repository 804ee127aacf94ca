"""A rank that runs an example whole, and stopped and resumed. Arguments: a folder, and the path of the example.

The folder has ``cache``, and a folder of the name of the example. There, ``rank-N.json`` has the lines that each run
printed: "whole", "stopped after n" and "resumed after n". With a number of steps as third argument, 0 for all,
``moved-STEPS-N.json`` has the lines of one run, or the error that refused it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed

STOPS = (3, 4)
"""Batches after which a run stops: at the border of an epoch, and in the middle of the next one"""


def printed(train: Any, *arguments: Any, **options: Any) -> list[str]:
    torch.manual_seed(0)  # the same weights at the start of each run
    with contextlib.redirect_stdout(io.StringIO()) as text:
        train(*arguments, **options)
    distributed.barrier()
    return [line for line in text.getvalue().splitlines() if line.startswith("epoch ")]


if __name__ == "__main__":
    folder, path = map(Path, sys.argv[1:3])
    torch.set_num_threads(1)
    os.environ |= {"LOCAL_RANK": os.environ["RANK"], "LOCAL_WORLD_SIZE": os.environ["WORLD_SIZE"]}
    distributed.init_process_group("gloo")
    spec = importlib.util.spec_from_file_location("example", path)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    cache = str(folder / "cache")
    folder /= path.stem
    if sys.argv[3:]:
        options = {"max_steps": int(sys.argv[3])} if sys.argv[3] != "0" else {}
        if "devices" in inspect.signature(example.train).parameters:
            options["devices"] = distributed.get_world_size()
        try:
            lines = printed(example.train, cache, str(folder / "moved"), **options)
        except ValueError as error:
            lines = [str(error)]
        (folder / f"moved-{sys.argv[3]}-{distributed.get_rank()}.json").write_text(json.dumps(lines))
        sys.stdout.flush()
        os._exit(0)  # other ranks may have ended
    runs = {"whole": printed(example.train, cache, str(folder / "whole"))}
    for stop in STOPS:
        checkpoint = str(folder / f"stopped-{stop}")
        runs[f"stopped after {stop}"] = printed(example.train, cache, checkpoint, max_steps=stop)
        runs[f"resumed after {stop}"] = printed(example.train, cache, checkpoint)
    (folder / f"rank-{distributed.get_rank()}.json").write_text(json.dumps(runs))
    distributed.destroy_process_group()
