"""Networks in processes of their own: shared by all workers, and replaced when they die, at the cost of one video."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import processes
from helpers.faulty_extractor import ENVIRONMENT
from helpers.network_tasks import Faults, Task, expected, make_network, run_task

from chordcache.engine import pool
from chordcache.engine.choice import Engine
from chordcache.engine.inference.network import Network
from chordcache.engine.limits import NO_LIMITS, Limits
from chordcache.errors import UsageError, WorkersDiedError

pytestmark = pytest.mark.timeout(120)

NUM_TASKS = 9

BAD = 4
"""Number of the task whose inputs have the fault"""


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])


@pytest.fixture(autouse=True)
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which sockets are made. Nothing stays there."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)
        assert not list(Path(folder).iterdir())


@pytest.fixture
def faults(tmp_path: Path) -> Faults:
    return Faults(str(tmp_path / "log"))


def run(tasks: list[Task], *networks: Network, jobs: int | Engine = 3, limits: Limits = NO_LIMITS) -> dict[int, Any]:
    """Run tasks, and return the result of each."""
    results = pool.run(run_task, tasks, jobs=jobs, limits=limits, networks=networks)
    return {task.number: result for task, result in results}


def tasks_of(network: Network, **fields: Any) -> list[Task]:
    return [Task(number, network, **fields) for number in range(NUM_TASKS)]


def lines(faults: Faults, kind: str) -> list[list[str]]:
    """Return the words of the lines of the log that begin with a word, without it."""
    words = [line.split() for line in Path(faults.log).read_text().splitlines()]
    return [rest for first, *rest in words if first == kind]


def check(outputs: dict[int, Any], tasks: list[Task], *, without: tuple[int, ...] = ()) -> None:
    assert outputs.keys() == {task.number for task in tasks}
    for task in tasks:
        if task.number not in without:
            assert outputs[task.number] == expected(task)


@pytest.mark.parametrize("jobs", [1, 3, Engine("inline")])
def test_outputs_come_in_the_order_of_the_inputs(faults: Faults, jobs: Any) -> None:
    network = make_network(faults)
    tasks = [Task(number, network, num_inputs=number % 4 * 5, shape=(1 + number % 2,)) for number in range(NUM_TASKS)]
    check(run(tasks, network, jobs=jobs), tasks)
    assert len(lines(faults, "load")) == 1


def test_a_batch_holds_inputs_of_several_workers(faults: Faults) -> None:
    network = make_network(replace(faults, seconds=0.02), batch_size=6)
    tasks = tasks_of(network, num_inputs=3)
    check(run(tasks, network), tasks)
    batches = [numbers for _, *numbers in lines(faults, "batch")]
    assert max(map(len, batches)) <= 6
    assert any(len({int(number) // 1000 for number in numbers}) > 1 for numbers in batches)


def test_each_device_loads_the_weights_once(faults: Faults) -> None:
    one = make_network(replace(faults, seconds=0.01), devices=("a", "b"), name="one")
    other = make_network(faults, devices=("a",), name="other")
    tasks = [*tasks_of(one), *(Task(100 + number, other) for number in range(NUM_TASKS))]
    check(run(tasks, one, other), tasks)
    assert sorted(device for device, _ in lines(faults, "load")) == ["a", "a", "b"]
    assert {device for device, *_ in lines(faults, "batch")} == {"a", "b"}


def test_nothing_is_loaded_without_an_input(faults: Faults) -> None:
    network = make_network(faults)
    tasks = tasks_of(network, num_inputs=0)
    check(run(tasks, network), tasks)
    assert not Path(faults.log).exists()


@pytest.mark.parametrize("jobs", [3, Engine("inline")])
def test_inputs_that_make_the_network_raise_cost_their_task_only(faults: Faults, jobs: Any) -> None:
    network = make_network(replace(faults, of_task={BAD: "raises"}, seconds=0.01))
    tasks = tasks_of(network)
    outputs = run(tasks, network, jobs=jobs)
    check(outputs, tasks, without=(BAD,))
    assert outputs[BAD] == ("extractor", "ValueError: these inputs are bad")
    assert len(lines(faults, "load")) == 1


@pytest.mark.parametrize("jobs", [3, Engine("inline")])
def test_a_batch_for_which_memory_is_not_enough_is_halved(faults: Faults, jobs: Any) -> None:
    network = make_network(replace(faults, max_batch=2))
    tasks = tasks_of(network)
    check(run(tasks, network, jobs=jobs), tasks)
    sizes = [len(numbers) for _, *numbers in lines(faults, "batch")]
    assert sum(size > 2 for size in sizes) <= 2  # 4, or 3 if no more had come; then smaller ones only


@pytest.mark.parametrize("jobs", [3, Engine("inline")])
def test_inputs_for_which_memory_is_never_enough(faults: Faults, jobs: Any) -> None:
    network = make_network(replace(faults, of_task={BAD: "memory"}), batch_size=1)
    tasks = tasks_of(network)
    outputs = run(tasks, network, jobs=jobs)
    check(outputs, tasks, without=(BAD,))
    assert outputs[BAD][0] == "oom"


@pytest.mark.parametrize("fault", ["kills", "loses its device"])
def test_inputs_that_end_the_process_cost_their_task_only(faults: Faults, fault: str) -> None:
    network = make_network(replace(faults, of_task={BAD: fault}, seconds=0.01))
    tasks = tasks_of(network)
    outputs = run(tasks, network)
    check(outputs, tasks, without=(BAD,))
    cause, message = outputs[BAD]
    if fault == "kills":
        assert cause == "signal"
        assert message == "the process of the network on cpu died: SIGKILL(-9)"
    else:
        assert (cause, message) == ("extractor", "RuntimeError: CUDA error: an illegal memory access was encountered")
    assert len(lines(faults, "load")) == 3


@pytest.mark.parametrize("fault", ["kills", "loses its device", "hangs"])
def test_a_process_that_ends_once_costs_one_retry(faults: Faults, tmp_path: Path, fault: str) -> None:
    faults = replace(faults, of_task={BAD: fault}, once=str(tmp_path / "once"), seconds=0.01)
    network = make_network(faults)
    tasks = tasks_of(network)
    check(run(tasks, network, limits=replace(NO_LIMITS, stall_seconds=1.0)), tasks)
    assert len(lines(faults, "load")) == 2
    numbers = [number for _, *batch in lines(faults, "batch") for number in batch]
    assert len(numbers) - len(set(numbers)) <= network.batch_size


def test_a_batch_that_hangs_costs_its_task_only(faults: Faults) -> None:
    network = make_network(replace(faults, of_task={BAD: "hangs"}))
    tasks = tasks_of(network)
    outputs = run(tasks, network, limits=replace(NO_LIMITS, stall_seconds=0.5))
    check(outputs, tasks, without=(BAD,))
    cause, message = outputs[BAD]
    assert cause == "timeout"
    assert message.startswith("the network computed one batch: no progress for 0.5 s, at network_tasks.py:")


def test_a_slow_network_is_not_the_fault_of_a_task(faults: Faults) -> None:
    """A task waits longer than its limits for the network, which has a clock of its own."""
    network = make_network(replace(faults, seconds=0.3), batch_size=1)
    tasks = tasks_of(network)[:3]
    check(run(tasks, network, limits=replace(NO_LIMITS, stall_seconds=0.6, file_seconds=0.6)), tasks)


@pytest.mark.parametrize("fault", ["kills", "raises"])
def test_a_device_that_fails_is_replaced_by_another_one(
    faults: Faults, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    network = make_network(replace(faults, of_device={"bad": fault}, seconds=0.3), devices=("bad", "good"))
    tasks = tasks_of(network)
    check(run(tasks, network), tasks)
    num_loads = [device for device, _ in lines(faults, "load")].count("bad")
    assert 1 <= num_loads <= (5 if fault == "kills" else 1)
    if fault == "raises":
        said = "features.n: device bad is not used any more: ValueError: these inputs are bad"
        assert said in capsys.readouterr().err


def test_a_network_whose_devices_all_fail_ends_the_run(faults: Faults) -> None:
    network = make_network(replace(faults, of_device={"a": "kills", "b": "kills"}), devices=("a", "b"))
    with pytest.raises(
        WorkersDiedError, match=r"^features\.n: 5 processes of its network in a row died before .*SIGKILL"
    ):
        run(tasks_of(network), network)
    network = make_network(replace(faults, of_device={"a": "raises"}), devices=("a",))
    with pytest.raises(UsageError, match="these inputs are bad"):
        run(tasks_of(network), network)


def test_a_worker_that_is_killed_costs_one_retry(faults: Faults, tmp_path: Path) -> None:
    network = make_network(replace(faults, seconds=0.01))
    tasks = tasks_of(network)
    tasks[BAD] = replace(tasks[BAD], dies_at=str(tmp_path / "died"))
    check(run(tasks, network), tasks)
    assert Path(tasks[BAD].dies_at).exists()
    assert len(lines(faults, "load")) == 1


def test_a_network_that_has_started_a_process(faults: Faults, tmp_path: Path) -> None:
    """The process that it forked has its sockets, and ends with it."""
    faults = replace(faults, of_device={"cpu": "forks"}, of_task={BAD: "kills"}, once=str(tmp_path / "once"))
    network = make_network(faults)
    tasks = tasks_of(network)
    check(run(tasks, network), tasks)
    assert len(lines(faults, "load")) == 2


def test_inputs_that_cannot_be_pickled_cost_their_tasks_only(faults: Faults) -> None:
    network = make_network(faults, batch_size=1)
    bad = [Task(100 + number, network, is_unpicklable=True) for number in range(8)]
    tasks = tasks_of(network)
    outputs = run([*bad, *tasks], network, jobs=2)
    check({task.number: outputs[task.number] for task in tasks}, tasks)
    assert {outputs[task.number] for task in bad} == {("TypeError", "cannot pickle 'generator' object")}


def test_a_batch_is_halved_until_there_is_memory(faults: Faults) -> None:
    network = make_network(replace(faults, max_batch=1), batch_size=8)
    tasks = tasks_of(network)
    check(run(tasks, network), tasks)


def test_the_time_of_a_file_is_not_that_of_a_batch(faults: Faults) -> None:
    network = make_network(replace(faults, seconds=0.8), batch_size=8)
    tasks = tasks_of(network)[:2]
    check(run(tasks, network, limits=replace(NO_LIMITS, file_seconds=0.4)), tasks)


def test_a_long_path_of_sockets_is_refused(faults: Faults, sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (sockets / ("long" * 25)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(sockets / ("long" * 25)))
    network = make_network(faults)
    with pytest.raises(UsageError, match=r"^TMPDIR: got '.*', expected a path of at most 80 bytes"):
        run(tasks_of(network), network)
    (sockets / ("long" * 25)).rmdir()


def test_a_task_that_was_given_up_leaves_the_others_alone(faults: Faults, tmp_path: Path) -> None:
    """Each worker goes on with other tasks while outputs for the failed one still come."""
    network = make_network(replace(faults, of_task={0: "raises", 3: "raises"}, seconds=0.02))
    tasks = tasks_of(network, num_inputs=12)
    outputs = run(tasks, network, jobs=2)
    check(outputs, tasks, without=(0, 3))


MAIN = """
import sys
from chordcache.engine import pool
from helpers.network_tasks import Faults, make_network, Task, run_task
network = make_network(Faults(sys.argv[1], seconds=0.2), devices=("a", "b"))
tasks = (Task(number, network) for number in range(1000))
for _ in pool.run(run_task, tasks, jobs=2, networks=(network,)):
    print("done", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_that_is_killed_leaves_no_process_and_no_file(faults: Faults, sockets: Path, number: int) -> None:
    mark = uuid.uuid4().hex
    environment = {**os.environ, **ENVIRONMENT, processes.MARK: mark, "TMPDIR": str(sockets)}
    command = [sys.executable, "-c", MAIN, faults.log]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert len(processes.alive_with(mark)) >= 5
        process.send_signal(number)
        process.wait()
    assert processes.wait_until(lambda: not processes.alive_with(mark), 10)
    assert processes.wait_until(lambda: not list(sockets.iterdir()), 10)
