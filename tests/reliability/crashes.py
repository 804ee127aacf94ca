"""Kills and power cuts: what was published stays, what was not is made again."""

from __future__ import annotations

import os
import signal
import time

import rigs

import chordcache as cc
from reliability.harness import Figures, Trial, experiment
from reliability.rig import TIERS, build, build_args, differs, make_corpus


@experiment(
    "R1", "killed with -9 at a random moment, then the same command again",
    trials=200, slice_calls=2, variants=TIERS,
)  # fmt: skip
def killed_at_random(trial: Trial) -> Figures:
    """Every third kill hits one worker, which the build survives."""
    corpus = trial.once("corpus", make_corpus)
    with rigs.running(trial.folder, *build_args(corpus, trial.variant)) as run:
        rigs.wait_until(lambda: (trial.folder / "cache/index.jsonl").exists() or run.process.poll() is not None, 60)
        time.sleep(trial.rng.random() * 1.2)
        victims = run.workers()[:1] if trial.number % 3 == 2 else [run.process.pid]
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        run.wait()
        assert run.survivors() == []
        assert rigs.fine(run.stderr), run.stderr
    num_published = len(rigs.sidecars(trial.folder / "cache"))
    done = build(corpus, trial.variant, trial.folder)
    assert done.returncode == 0, done.stderr
    assert differs(trial.folder / "cache", corpus / "whole", trial.variant) == []
    assert rigs.partials(trial.folder / "cache") == []
    assert cc.verify(trial.folder / "cache", jobs=1) == []
    return {"sum_videos_kept": num_published, "max_videos_in_all": 4}
