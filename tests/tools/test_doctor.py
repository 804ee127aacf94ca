"""The doctor reads the kernel's files as they are on machines of many kinds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import chordcache as cc
from chordcache.media.versions import library_versions
from chordcache.tools.doctor import Finding, diagnose
from chordcache.tools.system import System

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max stack size            8388608              unlimited            bytes
Max processes             {processes}                96365                processes
Max open files            {files}                 524288               files
"""

MOUNTS = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
30 27 0:25 / {top}/shm rw,relatime - tmpfs tmpfs rw,size=24684084k
31 27 {device} / {top}/my\\040data rw,relatime shared:7 - {kind} server:/export rw,vers=4.2
"""


class Machine:
    """Folders with the files that a kernel shows."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.folder = top / "my data" / "cache"
        for folder in (self.folder, top / "shm", top / "sys"):
            folder.mkdir(parents=True)
        self.write("proc/meminfo", "MemTotal:       49368172 kB\nMemAvailable:   24684084 kB\n")
        self.limits()
        self.mount("ext4")

    def write(self, name: str, text: str) -> None:
        path = self.top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def limits(self, files: str = "524288", processes: str = "96365") -> None:
        self.write("proc/self/limits", LIMITS.format(files=files, processes=processes))

    def mount(self, kind: str, device: str = "0:77") -> None:
        self.write("proc/self/mountinfo", MOUNTS.format(top=self.top, kind=kind, device=device))

    def findings(self, jobs: int | None = 1) -> dict[str, Finding]:
        system = System(self.top / "proc", self.top / "sys", self.top / "shm")
        return {finding.name: finding for finding in diagnose(self.folder, jobs=jobs, system=system)}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("kind", "severity"),
    [
        ("ext4", "ok"),
        ("xfs", "ok"),
        ("nfs4", "warning"),
        ("nfs", "warning"),
        ("fuse.sshfs", "warning"),
        ("cifs", "warning"),
        ("overlay", "note"),
        ("tmpfs", "note"),
    ],
)
def test_file_systems(machine: Machine, kind: str, severity: str) -> None:
    machine.mount(kind)
    finding = machine.findings()["file system"]
    assert (finding.severity, finding.what) == (severity, f"{kind} at {machine.top}/my data")
    assert bool(finding.why and finding.action) == (severity != "ok")


def test_the_longest_mount_wins_and_a_later_one_hides_it(machine: Machine) -> None:
    with (machine.top / "proc/self/mountinfo").open("a") as file:
        file.write(f"32 27 0:78 / {machine.top}/my rw - nfs a:/b rw\n")
        file.write(f"33 31 0:79 / {machine.top}/my\\040data rw - tmpfs none rw\n")
    assert machine.findings()["file system"].what.startswith("tmpfs at")


def test_without_mounts(machine: Machine) -> None:
    (machine.top / "proc/self/mountinfo").unlink()
    assert machine.findings()["file system"].severity == "note"
    assert machine.findings()["read-ahead"].severity == "ok"


@pytest.mark.parametrize(
    ("cgroup", "files"),
    [
        ("0::/app\n", {"app/cpu.max": "150000 100000\n", "app/memory.max": "3221225472\n"}),
        (
            "0::/app/job\n",
            {
                "app/cpu.max": "150000 100000\n",
                "app/memory.max": "3221225472\n",
                "app/job/cpu.max": "max 100000\n",
                "app/job/memory.max": "max\n",
            },
        ),
        (
            "5:cpu,cpuacct:/docker/1f\n4:memory:/docker/1f\n0::/\n",  # the paths of the host, in a container
            {
                "cpu/cpu.cfs_quota_us": "150000\n",
                "cpu/cpu.cfs_period_us": "100000\n",
                "memory/memory.limit_in_bytes": "3221225472\n",
            },
        ),
    ],
    ids=["version 2", "the group above", "version 1"],
)  # fmt: skip
def test_limits_of_a_container(machine: Machine, cgroup: str, files: dict[str, str]) -> None:
    machine.write("proc/self/cgroup", cgroup)
    for name, text in files.items():
        machine.write(f"sys/fs/cgroup/{name}", text)
    findings = machine.findings(jobs=8)
    assert findings["container"].what == "limited to 1.5 processors and 3 GiB of memory"
    cpus = min(1.5, len(os.sched_getaffinity(0)))
    assert findings["processors"].severity == "warning"
    assert findings["processors"].what.startswith(f"8 workers, {cpus:g} of ")
    assert findings["processors"].action == "chordcache build -j 1"
    assert (findings["memory"].severity, findings["memory"].action) == ("warning", "chordcache build -j 6")
    assert machine.findings(jobs=2)["memory"].action == "chordcache build --file-memory 1536"
    assert machine.findings(jobs=None)["processors"].severity == "ok"


@pytest.mark.parametrize("cgroup", [None, "", "0::/\n", "5:cpu:/\n4:memory:/a/b\n"])
def test_a_container_without_cgroup_files(machine: Machine, cgroup: str | None) -> None:
    if cgroup is not None:
        machine.write("proc/self/cgroup", cgroup)
    findings = machine.findings()
    assert (findings["container"].severity, findings["memory"].severity, findings["processors"].severity) == ("ok",) * 3


def test_no_limit_in_version_1_is_a_large_number(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "4:memory:/\n5:cpu:/\n")
    machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert machine.findings()["container"].what == "no limit of CPU or memory"


def test_limits_of_the_process(machine: Machine) -> None:
    machine.limits(files="1024", processes="1000")
    findings = machine.findings()
    for name, what in (("open files", "at most 1024"), ("processes", "at most 1000")):
        assert (findings[name].severity, findings[name].what) == ("warning", what)
    machine.limits(files="unlimited")
    assert machine.findings()["open files"].what == "no limit"


def test_limits_that_are_not_known(machine: Machine) -> None:
    for name in ("proc/self/limits", "proc/meminfo"):
        (machine.top / name).unlink()
    findings = machine.findings()
    assert {findings[name].severity for name in ("open files", "processes", "memory")} == {"note"}


def test_without_shared_memory(machine: Machine) -> None:
    (machine.top / "shm").rmdir()
    finding = machine.findings()["/dev/shm"]
    assert (finding.severity, finding.what) == ("warning", "does not exist")
    assert "--shm-size" in finding.action


@pytest.mark.parametrize("place", ["dev/block/8:1/queue", "devices/sda/queue", "class/bdi/8:1"])
def test_read_ahead(machine: Machine, place: str) -> None:
    machine.mount("ext4", device="8:1")
    if place.startswith("devices"):  # a partition has the queue of its disk
        (machine.top / "sys/devices/sda/sda1").mkdir(parents=True)
        (machine.top / "sys/dev/block").mkdir(parents=True)
        (machine.top / "sys/dev/block/8:1").symlink_to(machine.top / "sys/devices/sda/sda1")
    machine.write(f"sys/{place}/read_ahead_kb", "128\n")
    assert machine.findings()["read-ahead"].what == "128 KiB"
    machine.write(f"sys/{place}/read_ahead_kb", "8192\n")
    finding = machine.findings()["read-ahead"]
    assert finding.severity == "note"
    assert finding.action == f"echo 128 | sudo tee {(machine.top / 'sys' / place / 'read_ahead_kb')}"


def test_a_disk_with_little_room(small_disk, machine: Machine) -> None:
    folder, _, _ = small_disk
    if not os.path.ismount(folder):
        pytest.skip("disks cannot be mounted here")
    findings = {finding.name: finding for finding in diagnose(folder, jobs=1)}
    assert findings["free space"].severity == "warning"
    assert findings["free space"].what.endswith("free of 3 MiB")
    assert findings["file system"].what == f"tmpfs at {folder}"


@pytest.mark.parametrize("variable", ["missing", "there", None])
def test_a_folder_of_tmpdir_that_python_does_not_take(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    (machine.top / "there").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.delenv("TMPDIR", raising=False)
    if variable is not None:
        monkeypatch.setenv("TMPDIR", str(machine.top / variable))
    finding = machine.findings()["TMPDIR"]
    used = tempfile.gettempdir()
    if variable == "missing":
        assert finding.severity == "warning"
        assert finding.what == f"{used}, although TMPDIR is {machine.top / variable}"
    else:
        assert (finding.severity, finding.what) == ("ok", used)


PACKAGE = """
import sys
from chordcache.tools.doctor import diagnose
for finding in diagnose():
    if finding.name == "OpenCV":
        print(finding.severity, finding.what, finding.action, sep="|")
"""


def test_a_second_opencv(tmp_path: Path) -> None:
    for name in ("opencv_python-4.10.0.84", "opencv_contrib_python-4.11.0.86"):
        folder = tmp_path / f"{name}.dist-info"
        folder.mkdir()
        distribution, version = name.rsplit("-", 1)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    path = [str(tmp_path), str(Path(cc.__file__).parent.parent)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run([sys.executable, "-c", PACKAGE], env=env, capture_output=True, text=True, timeout=60)
    severity, what, action = done.stdout.strip().split("|")
    assert severity == "warning"
    assert "opencv-python 4.10.0.84" in what
    assert "opencv-contrib-python 4.11.0.86" in what
    assert action.startswith("pip uninstall -y opencv-contrib-python opencv-python")


def test_the_command_on_this_machine(run_cli, tmp_path: Path) -> None:
    result = run_cli("doctor", tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    findings = json.loads(run_cli("doctor", tmp_path, "--json", "-j", "2").stdout)["findings"]
    assert {finding["severity"] for finding in findings} <= {"ok", "note", "warning"}
    for finding in findings:
        assert f"{finding['severity']:8} {finding['name']:12} " in result.stdout
        assert finding["what"]
        assert finding["severity"] == "ok" or all((finding["why"], finding["action"]))
    versions = next(finding["what"] for finding in findings if finding["name"] == "versions")
    assert f"chordcache {cc.__version__}" in versions
    assert all(f"{name} {version}" in versions for name, version in library_versions().items())
    assert "libavcodec " in versions


def test_wrong_arguments(run_cli, tmp_path: Path) -> None:
    result = run_cli("doctor", "nowhere", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (10, "")
    assert result.stderr.startswith("chordcache doctor: error: PATH: got 'nowhere', which does not exist")
    with pytest.raises(cc.UsageError, match="jobs: got 0, expected an integer"):
        diagnose(tmp_path, jobs=0)
