"""Features that are made of a caption or a label: they are made again when it changes, and never read as they were."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import chordcache as cc
from chordcache.engine.choice import Engine
from chordcache.records import RunSummary

pytestmark = pytest.mark.usefixtures("inline")


@pytest.fixture
def work(tmp_path: Path, make_video: Callable[..., Path]) -> Path:
    """Two videos and the config of a feature "words" that is made of captions."""
    for name in ("a", "b"):
        make_video(tmp_path / f"videos/{name}.mp4", num_frames=6 if name == "a" else 9)
    config = {"features": {"words": {"extractor": "helpers.row_extractors:Words"}, "flow": None, "mel": None}}
    (tmp_path / "text.yaml").write_text(yaml.dump(config))
    return tmp_path


def build(work: Path, captions: dict[str, str], *features: str, **options: object) -> RunSummary:
    """Build the videos with these captions."""
    rows = [f"videos/{name}.mp4,{caption}" for name, caption in captions.items()]
    (work / "list.csv").write_text("\n".join(["path,caption", *rows]))
    tiers = ["npz"] if "words" in features else ["lmdb"]
    return cc.build(
        work / "list.csv", work / "cache", tiers=tiers, features=features, config=work / "text.yaml",
        jobs=Engine("inline"), options=cc.BuildOptions(**options),  # type: ignore[arg-type]
    )  # fmt: skip


def text_of(work: Path, name: str) -> str:
    with cc.open_cache(work / "cache") as opened:
        (video,) = [video for video in opened if video.path == f"videos/{name}.mp4"]
        return bytes(opened.read(video, "words")).decode()


def test_rows_of_an_earlier_caption_are_not_read(work: Path) -> None:
    """A build of frames alone takes over the new caption, but makes no text."""
    build(work, {"a": "a dog"}, "words")
    build(work, {"a": "a wolf"}, "frames")
    with pytest.raises(cc.NotFoundError, match="'words' of video .* was made of another value of caption, label"):
        text_of(work, "a")
    stale = [finding for finding in cc.verify(work / "cache", jobs=1).damage if finding.kind == "stale"]
    assert [finding.message for finding in stale] == ["its 'words' was made of other values of caption, label"]
    reasons = cc.dry_run(
        work / "list.csv", work / "cache", tiers=["npz"], features=["words"], config=work / "text.yaml"
    ).reasons
    assert reasons == {"label or caption (words depends on caption, label)": 1}
    assert build(work, {"a": "a wolf"}, "words").num_done == 1
    assert text_of(work, "a") == "a wolf"
    assert {finding.kind for finding in cc.verify(work / "cache", jobs=1).damage} == {"orphan"}  # the rows of the dog


def test_a_video_without_a_caption_gets_one(work: Path) -> None:
    build(work, {"a": ""}, "words")
    with pytest.raises(cc.NotFoundError, match="it has no caption"):
        text_of(work, "a")
    build(work, {"a": "a dog"}, "words")
    assert text_of(work, "a") == "a dog"


def test_fields_that_do_not_exist(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from helpers.row_extractors import Words

    monkeypatch.setattr(Words, "uses", ("caption", "mood"))
    with pytest.raises(cc.UsageError, match="uses caption, mood, expected some of root, path, segment, label"):
        build(work, {"a": "a dog"}, "words")
