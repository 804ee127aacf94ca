"""The remedies have an entry for each cause that the code names, and none for others. Each one helps a file."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
import yaml
from helpers.ffmpeg import ffmpeg
from helpers.inline import HERE

import chordcache as cc
from chordcache.building.fix_commands import REMEDIES, remedy
from chordcache.look.problems import iter_problems

PACKAGE = Path(__file__).resolve().parent.parent.parent / "chordcache"

POSITION_OF_CAUSE = {"MediaError": 1, "Crash": 0}


def causes_in_code() -> set[str]:
    """Return the causes that calls name as constants, and those of the checks of packets, which keep theirs."""
    causes = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                position = POSITION_OF_CAUSE.get(getattr(node.func, "id", getattr(node.func, "attr", "")))
                if position is not None and len(node.args) > position and isinstance(node.args[position], ast.Constant):
                    causes.add(node.args[position].value)
    return causes


def test_each_cause_in_the_code_has_a_remedy():
    assert causes_in_code() <= set(REMEDIES)


def test_each_cause_of_the_errors_documentation_has_a_remedy():
    documented = (PACKAGE / "errors.py").read_text().partition("cause : str")[2].partition("message : str")[0]
    assert {cause for cause in REMEDIES if f"``{cause}``" in documented} == set(REMEDIES)


def test_each_remedy_is_a_sentence_or_two():
    for text in REMEDIES.values():
        assert text[0].isupper()
        assert text.endswith(".")


def test_an_unknown_cause_has_a_general_remedy():
    assert remedy("of a later version").endswith(".")


# A file of each cause. A case writes it beside a good file, and yields the arguments of a build. Then it does what the
# remedy says, and yields the arguments of a build that succeeds.

Case: TypeAlias = Iterator[tuple[str, ...]]
Maker: TypeAlias = Callable[..., Path]

FOLDER = ("in",)
CASES: dict[str, Callable[[Path, Maker], Case]] = {}
ELSEWHERE = {
    "bug": "engine/test_pool.py::test_a_task_that_cannot_be_pickled_fails_alone",
    "changed": "building/test_regressions.py::test_a_source_that_is_replaced_while_it_waits_for_its_turn",
    "clock": "features/test_bad_features.py::test_every_video_of_a_faulty_extractor_is_quarantined",
    "edit-list": "media/test_edit_lists.py::test_a_list_that_sets_frames_back_in_time_is_refused",
    "extractor": "features/test_bad_features.py::test_an_extractor_cannot_change_what_others_get",
    "oom": "engine/test_limits.py::test_pictures_too_large_for_the_memory",
    "series": "features/test_series.py::test_a_table_that_is_wrong_is_named",
    "signal": "engine/test_limits.py::test_a_crash_names_the_line",
    "tables": "media/test_mp4_samples.py::test_tables_that_lie_are_refused",
    "timeout": "engine/test_limits.py::test_a_file_timeout_ends_it",
    "unsupported-color": "media/test_dolby_vision.py::test_only_a_base_layer_that_cannot_be_shown_is_refused",
}
"""Causes that no file has by itself, or whose files have a test of their own: the test, which compares the cause"""


def case(function: Callable[[Path, Maker], Case]) -> Callable[[Path, Maker], Case]:
    CASES[function.__name__.replace("_", "-")] = function
    return function


def replace(path: Path, old: bytes, new: bytes) -> bytes:
    data = path.read_bytes()
    path.write_bytes(data.replace(old, new))
    return data


def listed(folder: Path, *rows: str) -> tuple[str, ...]:
    (folder / "list.csv").write_text("\n".join(rows))
    return ("list.csv",)


def configured(folder: Path, text: str) -> tuple[str, ...]:
    (folder / "c.yaml").write_text(f"frames: {{{text}}}\n")
    return (*FOLDER, "-c", "c.yaml")


@case
def decode(folder: Path, make_video: Maker) -> Case:
    """The second command of docs/damaged-files.md saves what FFmpeg shows."""
    path = make_video(folder / "in/a.mp4", num_frames=40, size=(160, 120), codec="mpeg4")
    data = bytearray(path.read_bytes())
    for at in range(data.index(b"mdat") + 300, data.index(b"mdat") + 2000, 37):
        data[at] ^= 0x5A
    path.write_bytes(data)
    yield FOLDER
    assert "docs/damaged-files.md" in remedy("decode")
    how = ("-c:v", "libx264", "-crf", "16", "-fps_mode", "passthrough")
    ffmpeg("-fflags", "+discardcorrupt", "-i", path, *how, folder / "in/saved.mkv")
    path.unlink()
    yield FOLDER


@case
def truncated(folder: Path, make_video: Maker) -> Case:
    """The first command of docs/damaged-files.md keeps what is before the damage."""
    path = make_video(folder / "in/a.mkv", num_frames=60)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    yield FOLDER
    assert "docs/damaged-files.md" in remedy("truncated")
    ffmpeg("-i", path, "-t", "0.4", "-c", "copy", folder / "in/saved.mkv")
    path.unlink()
    yield FOLDER


@case
def short(folder: Path, make_video: Maker) -> Case:
    (folder / "in/a").mkdir()
    ffmpeg("-i", make_video(folder / "a.mp4", num_frames=5), folder / "in/a/%03d.png")
    third = (folder / "in/a/003.png").read_bytes()
    (folder / "in/a/003.png").unlink()
    yield listed(folder, "path", "in/good.mp4", "in/a")
    (folder / "in/a/003.png").write_bytes(third)
    yield ("list.csv",)


@case
def io(folder: Path, make_video: Maker) -> Case:
    yield listed(folder, "path", "in/good.mp4", "in/a.mp4")
    make_video(folder / "in/a.mp4")
    yield ("list.csv",)


@case
def segment(folder: Path, _make_video: Maker) -> Case:
    yield listed(folder, "path,start_seconds,end_seconds", "in/good.mp4,0,0.5", "in/good.mp4,70,80")
    yield listed(folder, "path,start_seconds,end_seconds", "in/good.mp4,0,0.5", "in/good.mp4,0.5,0.8")


@case
def no_video(folder: Path, _make_video: Maker) -> Case:
    ffmpeg("-f", "lavfi", "-i", "sine=d=1", folder / "in/a.mp4")
    yield FOLDER
    (folder / "in/a.mp4").unlink()
    yield FOLDER


@case
def no_frames(folder: Path, make_video: Maker) -> Case:
    path = make_video(folder / "in/a.mp4", options={"bf": "0"})
    data = bytearray(path.read_bytes())
    at = data.index(b"elst") + 16
    data[at : at + 4] = (1 << 30).to_bytes(4, "big")  # begin behind the last picture
    path.write_bytes(data)
    yield FOLDER
    path.unlink()
    yield FOLDER


@case
def no_decoder(folder: Path, make_video: Maker) -> Case:
    path = make_video(folder / "in/a.mp4")
    data = replace(path, b"avc1", b"xxxx")
    yield FOLDER
    path.write_bytes(data)
    yield FOLDER


@case
def encrypted(folder: Path, make_video: Maker) -> Case:
    key, path = "0123456789abcdef" * 2, folder / "in/a.mp4"
    scheme = ("-encryption_scheme", "cenc-aes-ctr", "-encryption_key", key, "-encryption_kid", key)
    ffmpeg("-i", make_video(folder / "plain.mp4"), "-c", "copy", *scheme, path)
    yield FOLDER
    ffmpeg("-decryption_key", key, "-i", path, "-c", "copy", folder / "in/b.mp4")
    path.unlink()
    yield FOLDER


@case
def refused_format(folder: Path, _make_video: Maker) -> Case:
    ffmpeg("-f", "lavfi", "-i", "testsrc2=s=64x48", "-frames:v", "1", folder / "a.png")
    path = (folder / "a.png").rename(folder / "in/a.mp4")
    yield FOLDER
    ffmpeg("-i", path, folder / "in/b.mkv")
    path.unlink()
    yield FOLDER


@case
def refused_link(folder: Path, make_video: Maker) -> Case:
    (folder / "in/a.mp4").symlink_to(make_video(folder.with_name(f"{folder.name} other") / "a.mp4"))
    yield listed(folder, "path", "in/good.mp4", "in/a.mp4")
    yield ("list.csv", "--follow-symlinks")


@case
def refused_size(folder: Path, _make_video: Maker) -> Case:
    ffmpeg("-f", "lavfi", "-i", "color=s=64x16400:d=0.08", "-c:v", "ffv1", folder / "in/a.mkv")
    yield FOLDER
    (problem,) = iter_problems(folder / "cache")
    assert problem.message.endswith("set frames.short_side")
    yield configured(folder, "short_side: 32")


@case
def not_regular(folder: Path, make_video: Maker) -> Case:
    os.mkfifo(folder / "in/a.mp4")
    yield listed(folder, "path", "in/good.mp4", "in/a.mp4")
    (folder / "in/a.mp4").unlink()
    make_video(folder / "in/a.mp4")
    yield ("list.csv",)


@case
def stereo(folder: Path, _make_video: Maker) -> Case:
    ffmpeg(
        "-f",
        "lavfi",
        "-i",
        "testsrc2=s=64x48:d=0.2",
        "-metadata:s:v",
        "stereo_mode=checkerboard_rl",
        folder / "in/a.mkv",
    )
    yield configured(folder, "stereo: left")
    yield configured(folder, "stereo: as_is")


@case
def bucket(folder: Path, make_video: Maker) -> Case:
    make_video(folder / "in/a.mp4", num_frames=5)
    yield configured(folder, "buckets: [[48, 64, 17]]")
    yield configured(folder, "buckets: [[48, 64, 17], [48, 64, 5]]")


@case
def frames(folder: Path, make_video: Maker) -> Case:
    """Another video of the same size and time stands for the same video in another version of FFmpeg."""
    path, other = folder / "in/a.mp4", make_video(folder / "a.mp4", num_frames=20)
    make_video(path, num_frames=30)
    size = max(path.stat().st_size, other.stat().st_size) + 64
    for file in (path, other):
        rest = size - file.stat().st_size
        file.write_bytes(file.read_bytes() + rest.to_bytes(4, "big") + b"free" + bytes(rest - 8))
        os.utime(file, (1e9, 1e9))
    cc.build(folder / "in", folder / "cache", jobs=HERE)
    other.rename(path)
    yield (*FOLDER, "--features", "frames,motion")
    path.touch()
    yield FOLDER


@case
def features(folder: Path, _make_video: Maker) -> Case:
    """A feature of a plug-in that the machine of the second build does not have."""
    mine = {"features": {"mine": {"extractor": "helpers.plug_in_rows:RowsOfAKind", "how": "one by one"}}}
    (folder / "mine.yaml").write_text(yaml.dump(mine))
    cc.build(folder / "in", folder / "cache", features=["frames", "mine"], config=folder / "mine.yaml", jobs=HERE)
    yield (*configured(folder, "fps: 5"), "--features", "frames")
    yield (*FOLDER, "--features", "frames", "--drop", "mine")


@pytest.mark.parametrize("cause", CASES)
def test_the_remedy_helps_a_file(cause, tmp_path, make_video, run_cli):
    make_video(tmp_path / "in/good.mp4", num_frames=30)
    builds = CASES[cause](tmp_path, make_video)
    done = run_cli("build", *next(builds), "-o", "cache", "-j1", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    (problem,) = iter_problems(tmp_path / "cache")
    assert (problem.cause, problem.remedy) == (cause, remedy(cause, problem.stage)), problem.message
    done = run_cli("build", *next(builds), "-o", "cache", "-j1", cwd=tmp_path)
    assert done.returncode == 0, (problem, done.stderr)


def test_each_cause_has_a_file():
    assert sorted([*CASES, *ELSEWHERE]) == sorted(REMEDIES)
    for cause, place in ELSEWHERE.items():
        name, _, test = place.partition("::")
        nodes = ast.parse((PACKAGE.parent / "tests" / name).read_text()).body
        (function,) = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == test]
        assert f"'{cause}'" in ast.unparse(function), cause


@pytest.mark.parametrize("content", [b"", b"not a video" * 99, b"<!DOCTYPE html>"])
def test_nothing_is_saved_of_what_cannot_be_opened(content, tmp_path, make_video, run_cli):
    make_video(tmp_path / "in/good.mp4")
    (tmp_path / "in/a.mp4").write_bytes(content)
    assert run_cli("build", "in", "-o", "cache", "-j1", cwd=tmp_path).returncode == 3
    (problem,) = iter_problems(tmp_path / "cache")
    assert (problem.stage, problem.cause, problem.remedy) == ("open", "decode", "Fetch the file again.")
