"""Records are decoded by several threads at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

# msgspec evaluates annotations while it builds a type: here slowly, so that other threads come in between
PROGRAM = """
from __future__ import annotations

import sys
import threading
import time

import msgspec._utils

from chordcache.json_records import Record, from_json, parse_json

evaluate = msgspec._utils._eval_type


def evaluate_slowly(*arguments):
    time.sleep(0.05)
    return evaluate(*arguments)


msgspec._utils._eval_type = evaluate_slowly


class Inner(Record, frozen=True):
    number: int


class Outer(Record, frozen=True):
    inner: Inner
    name: str


def decode():
    data = {"inner": {"number": 3}, "name": "a"}
    text = str(data).replace("'", '"')
    decoded.append(from_json(data, Outer) if sys.argv[1] == "from_json" else parse_json(text, Outer))


decoded = []
threads = [threading.Thread(target=decode) for _ in range(15)]
for thread in threads:
    thread.start()
    time.sleep(0.02)
for thread in threads:
    thread.join()
assert decoded == [Outer(Inner(3), "a")] * 15
"""


@pytest.mark.parametrize("function", ["from_json", "parse_json"])
def test_threads_that_decode_a_type_for_the_first_time(function: str) -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM, function], capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stderr) == (0, "")
