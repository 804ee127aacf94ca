"""Time of a task that does nothing, and memory of the process that sends the tasks, with each engine of a build.

The clusters run on this machine, with two nodes of one slot. Part of ``make bench-engines``.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from helpers import clusters

TARGETS_MS = {"local": 1.0, "dask": 12.0, "ray": 5.0}
"""[milliseconds of wall time a task]"""

MAX_GROWTH_MIB = 20.0

DRIVER = """
import resource, sys, time
from chordcache.engine import pool
from chordcache.engine.choice import Engine

name, address, num_tasks, num_first = sys.argv[1], sys.argv[2] or None, int(sys.argv[3]), int(sys.argv[4])

def mib():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 2**20

engine = Engine("local", jobs=2) if name == "local" else Engine(name, address)
wall = cpu = first = most = 0.0
for number, _ in enumerate(pool.run(abs, iter(range(num_tasks + 20)), jobs=engine)):
    if number == 20:  # the processes are there
        wall, cpu = time.perf_counter(), time.process_time()
    if number == num_first:
        first = mib()
    if number >= num_first and number % 100 == 0:
        most = max(most, mib())
print(time.perf_counter() - wall, time.process_time() - cpu, first, max(most, mib()))
"""
"""Runs tasks, and prints wall time and CPU time, then the memory after the first tasks and the most after that"""


def drive(name: str, address: str, num_tasks: int, num_first: int) -> list[float]:
    """Run tasks in a process of their own, and return what it prints."""
    command = [sys.executable, "-c", DRIVER, name, address, str(num_tasks), str(num_first)]
    return [float(each) for each in subprocess.check_output(command, text=True).split()]


def compare_times(addresses: dict[str, str], num_tasks: int, rounds: int) -> None:
    """Print the time of each engine for a task, all engines in turn in each round."""
    found: dict[str, list[list[float]]] = {name: [] for name in addresses}
    for _ in range(rounds):
        for name, address in addresses.items():
            found[name].append(drive(name, address, num_tasks, num_tasks))
    for name, results in found.items():
        wall, cpu = ([1000 * result[column] / num_tasks for result in results] for column in (0, 1))
        print(
            f"{name:6} {num_tasks:,} empty tasks: {statistics.median(wall):.2f} ms each "
            f"({min(wall):.2f} to {max(wall):.2f}; target {TARGETS_MS[name]}), "
            f"CPU of the driver {statistics.median(cpu):.2f} ms",
            flush=True,
        )


def measure_memory(addresses: dict[str, str], num_first: int, num_tasks: int) -> None:
    """Print the memory of the driver after the first tasks, and the most until the last one."""
    for name, address in addresses.items():
        _, _, first, most = drive(name, address, num_tasks, num_first)
        print(
            f"{name:6} memory of the driver: {first:.0f} MiB after {num_first:,} tasks, at most {most:.0f} MiB until "
            f"{num_tasks:,}: +{most - first:.1f} (target {MAX_GROWTH_MIB})",
            flush=True,
        )


def main() -> None:
    """Measure all engines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", default="local,dask,ray")
    parser.add_argument("--tasks", type=int, default=2000, help="tasks of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory-tasks", type=int, default=0, help="tasks of the measurement of memory, 0 for none")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        addresses = {}
        for name in options.engines.split(","):
            addresses[name] = ""
            if name in clusters.CLUSTERS:
                nodes = [{"slots": 1}, {"slots": 1}]
                addresses[name] = stack.enter_context(clusters.CLUSTERS[name](folder / name, nodes)).address
        if options.rounds:
            compare_times(addresses, options.tasks, options.rounds)
        if options.memory_tasks:
            measure_memory(addresses, options.memory_tasks // 10, options.memory_tasks)


if __name__ == "__main__":
    main()
