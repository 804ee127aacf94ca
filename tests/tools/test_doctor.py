"""The doctor reads the kernel's files as they are on machines of many kinds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import chordcache as cc
from chordcache.engine.pool import default_jobs
from chordcache.media.versions import library_versions
from chordcache.tools import doctor
from chordcache.tools.doctor import Finding, diagnose

MOUNTS = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
30 27 0:25 / {top}/dev/shm rw,relatime - tmpfs tmpfs rw,size=24684084k
31 27 {device} / {top}/my\\040data rw,relatime shared:7 - {kind} server:/export rw,vers=4.2
"""


class Machine:
    """Folders with the files that a kernel shows."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.folder = top / "my data" / "cache"
        for folder in (self.folder, top / "dev/shm"):
            folder.mkdir(parents=True)
        self.write("proc/meminfo", "MemTotal:       49368172 kB\nMemAvailable:   24684084 kB\n")
        self.mount("ext4")

    def write(self, name: str, text: str) -> None:
        path = self.top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def mount(self, kind: str, device: str = "0:77") -> None:
        self.write("proc/self/mountinfo", MOUNTS.format(top=self.top, kind=kind, device=device))

    def findings(self, jobs: int | None = 1) -> dict[str, Finding]:
        return {finding.name: finding for finding in diagnose(self.folder, jobs=jobs, root=self.top)}


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
    assert machine.findings()["file system"].what == "not known at /"


@pytest.mark.parametrize(
    ("cgroup", "files"),
    [
        ("0::/app\n", {"app/memory.max": "3221225472\n"}),
        ("0::/app/job\n", {"app/memory.max": "3221225472\n", "app/job/memory.max": "max\n"}),
        ("4:memory:/docker/1f\n0::/\n", {"memory/memory.limit_in_bytes": "3221225472\n"}),  # the path of the host
    ],
    ids=["version 2", "the group above", "version 1"],
)  # fmt: skip
def test_memory_of_a_container(machine: Machine, cgroup: str, files: dict[str, str]) -> None:
    machine.write("proc/self/cgroup", cgroup)
    for name, text in files.items():
        machine.write(f"sys/fs/cgroup/{name}", text)
    memory = machine.findings(jobs=8)["memory"]
    assert (memory.severity, memory.action) == ("warning", "chordcache build -j 6")
    assert memory.what == "3.22 GB for 8 workers"
    assert machine.findings(jobs=2)["memory"].action == "chordcache build --file-memory 1536"


@pytest.mark.parametrize("cgroup", [None, "", "0::/\n", "5:cpu:/\n4:memory:/a/b\n"])
def test_a_container_without_cgroup_files(machine: Machine, cgroup: str | None) -> None:
    if cgroup is not None:
        machine.write("proc/self/cgroup", cgroup)
    assert machine.findings()["memory"].severity == "ok"


def test_no_limit_in_version_1_is_a_large_number(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "4:memory:/\n")
    machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert machine.findings()["memory"].what == "25.3 GB for 1 worker"


def test_more_workers_than_processors(machine: Machine) -> None:
    finding = machine.findings(jobs=1000)["processors"]
    assert (finding.severity, finding.action) == ("warning", f"chordcache build -j {default_jobs()}")
    assert machine.findings(jobs=None)["processors"].severity == "ok"


def test_limits_of_the_process(tmp_path: Path) -> None:
    command = f"ulimit -n 1024; {sys.executable} -m chordcache doctor --json"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, check=True)
    findings = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert (findings["open files"]["severity"], findings["open files"]["what"]) == ("warning", "at most 1024")


def test_memory_that_is_not_known(machine: Machine) -> None:
    (machine.top / "proc/meminfo").unlink()
    assert machine.findings()["memory"].severity == "note"


def test_without_shared_memory(machine: Machine) -> None:
    (machine.top / "dev/shm").rmdir()
    finding = machine.findings()["/dev/shm"]
    assert (finding.severity, finding.what) == ("warning", "does not exist")
    assert "--shm-size" in finding.action


def test_a_disk_with_little_room(small_disk, machine: Machine) -> None:
    folder, _, _ = small_disk
    if not os.path.ismount(folder):
        pytest.skip("disks cannot be mounted here")
    findings = {finding.name: finding for finding in diagnose(folder, jobs=1)}
    assert findings["free space"].severity == "warning"
    assert findings["free space"].what.endswith("free of 3.15 MB")
    assert findings["file system"].what == f"tmpfs at {folder}"


PACKAGE = """
import sys
from chordcache.tools.doctor import diagnose
for finding in diagnose():
    if finding.name == "OpenCV":
        print(finding.severity, finding.what, finding.action, sep="|")
"""


@pytest.mark.parametrize("has_library", [True, False])
def test_libturbojpeg(machine: Machine, monkeypatch: pytest.MonkeyPatch, has_library: bool) -> None:
    monkeypatch.setattr(doctor, "part_decoder", lambda: object() if has_library else None)
    finding = machine.findings()["libturbojpeg"]
    if has_library:
        assert finding == Finding("libturbojpeg", "ok", "version 3")
    else:
        assert (finding.severity, finding.what) == ("note", "version 2, or not installed")
        assert "11 to 14 % less CPU time" in finding.why
        assert finding.action.startswith("pip install 'chordcache[turbojpeg]'")


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
        assert f"{finding['severity']:8} {finding['name']:17} " in result.stdout
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
