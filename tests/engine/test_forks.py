"""Forks in the main thread while another thread starts child processes, as a DataLoader forks its workers."""

from __future__ import annotations

import subprocess
import sys

import pytest

STARTS_WHILE_FORKING = """
import os, signal, sys, threading, time

from chordcache.engine.child import Worker
from chordcache.engine.limits import Limits

num_started, is_over = 0, False

def start_children():
    global num_started
    while not is_over:
        worker = Worker(abs, Limits())
        assert worker.run(-3) == 3
        worker.close()
        num_started += 1

thread = threading.Thread(target=start_children)
thread.start()
forked = []
for number in range(int(sys.argv[1])):
    time.sleep(0.0001 * number)
    pid = os.fork()
    if not pid:
        signal.pause()
        os._exit(0)
    forked.append(pid)
before, end = num_started, time.monotonic() + float(sys.argv[2])
while num_started < before + 2 and time.monotonic() < end:
    time.sleep(0.05)
print(num_started - before, flush=True)
is_over = True
for pid in forked:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
thread.join()
"""


@pytest.mark.slow
def test_a_forked_process_does_not_hold_up_the_start_of_a_child() -> None:
    """The forked processes live on, as the workers of a DataLoader do from one epoch to the next."""
    result = subprocess.run(
        [sys.executable, "-c", STARTS_WHILE_FORKING, "300", "60"], capture_output=True, text=True, timeout=300
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert int(result.stdout) >= 2
