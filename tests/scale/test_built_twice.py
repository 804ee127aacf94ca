"""One video built by two processes at once, on processors whose flow differs: each sidecar names its own files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.ffmpeg import copy_start

import chordcache as cc
from chordcache.storage.find_sidecars import write_catalog

ONE_BUILD = """
import pathlib, sys, time
from chordcache.index.index_files import read_index
from chordcache.index.grouping import IndexRows
from chordcache.building.build_options import BuildOptions
from chordcache.building.planning import make_plan
from chordcache.building.build_task import planned_files
from chordcache.media.versions import tool_versions
from chordcache.building.file_build import build_file
from chordcache.storage import atomic
from chordcache.storage.quarantine import Quarantine

index, cache, config, reached, go_on = sys.argv[1:]
publish_text = atomic.publish_text

def publish_text_later(cache, file, text):
    if file.startswith("videos/"):  # the sidecar: its artefacts are published
        pathlib.Path(reached).touch()
        while not pathlib.Path(go_on).exists():
            time.sleep(0.01)
    publish_text(cache, file, text)

atomic.publish_text = publish_text_later
options = BuildOptions()
plan = make_plan(pathlib.Path(cache), index, config, ("npz",), ("flow",), roots=None, options=options)
with IndexRows(plan.index) as rows:
    quarantine = Quarantine(plan.cache, tool_versions())
    for tasks in list(planned_files(plan, rows.by_file(), quarantine, options)):
        print(build_file(tasks)[0].features[0].file.digest)
"""
"""A build of one video without the cache's lock. Before the sidecar, it waits for a file."""

WITHOUT_AVX2 = {"OPENCV_CPU_DISABLE": "AVX2"}


def start(variables: dict[str, str], *paths: Path) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", ONE_BUILD, *map(str, paths)]
    return subprocess.Popen(arguments, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists():
        assert process.poll() is None
        os.sched_yield()


@pytest.mark.trials(20)
@pytest.mark.parametrize(("first", "second"), [({}, WITHOUT_AVX2), (WITHOUT_AVX2, {})], ids=["slow has AVX2", "not"])
def test_the_last_sidecar_names_its_own_files(tmp_path, clips, trial, first, second):
    (tmp_path / "videos").mkdir()
    copy_start(clips / "street/bikes.mp4", 0.4, tmp_path / "videos/a.mp4")
    config = tmp_path / "float32.yaml"
    config.write_text("features: {flow: {method: farneback, dtype: float32}}")
    index, cache, now = tmp_path / "index.json", tmp_path / "cache", tmp_path / "now"
    cc.scan([tmp_path / "videos"], output=index)
    cc.build(index, cache, tiers=["npz"], features=["motion"], config=config)  # the folder, its header and its index
    now.touch()
    slow = start(first, index, cache, config, tmp_path / "slow", tmp_path / "go on")
    wait_for(tmp_path / "slow", slow)
    quick = start(second, index, cache, config, tmp_path / "quick", now)
    digests = [quick.communicate(timeout=120)[0]]
    (tmp_path / "go on").touch()
    digests.append(slow.communicate(timeout=120)[0])
    assert digests[0] != digests[1], "this processor computes the same flow without AVX2"
    write_catalog(cache)
    report = cc.verify(cache, level="deep")
    assert not report.damage or {finding.kind for finding in report.damage} == {"orphan"}
    with cc.open_cache(cache) as opened:
        assert np.isfinite(opened.read(0, "flow").astype(np.float32)).all()
