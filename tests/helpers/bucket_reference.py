"""Pictures cut to a bucket by the command ``ffmpeg``, which crops the turned picture and then scales it."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import islice, product
from pathlib import Path

from helpers import ffmpeg_reference
from helpers.ffmpeg_reference import Decoded, jpeg_planes, psnr_db, records

_CHROMA = {"420": (2, 2), "nv12": (2, 2), "422": (2, 1), "411": (4, 1), "410": (4, 4)}
"""Part of the name of a pixel format to the luma pixels (across, down) of a sample of chroma"""


def upright(source: Path) -> tuple[int, int, Fraction]:
    """Return (width, height, sample aspect ratio) of the picture as ffmpeg turns it, in stored pixels."""
    return _upright(source)[:3]


def _upright(source: Path) -> tuple[int, int, Fraction, int, int]:
    """Return ``upright``, and the pixels (across, down) of a sample of chroma."""
    video = ffmpeg_reference.probe(source).video
    assert video is not None
    aspect = Fraction(video.get("sample_aspect_ratio", "1:1").replace(":", "/").replace("0/1", "1/1"))
    size = video["width"], video["height"]
    turn = next((data["rotation"] for data in video.get("side_data_list", ()) if "rotation" in data), 0)
    steps = next((chroma for name, chroma in _CHROMA.items() if name in video["pix_fmt"]), (1, 1))
    return (*size, aspect, *steps) if turn % 180 == 0 else (*size[::-1], 1 / aspect, *steps[::-1])


def nearest(source: Path, buckets: list[tuple[int, int, int]], num_frames: int) -> tuple[int, int, int]:
    """Return the bucket that an item belongs to, by exact fractions: aspect ratio, then area, then length."""
    width, height, aspect = upright(source)

    def apart(a: Fraction, b: Fraction) -> Fraction:
        return max(a / b, b / a)

    def distance(bucket: tuple[int, int, int]) -> tuple[Fraction, Fraction, int]:
        ratio = apart(Fraction(bucket[1], bucket[0]), width * aspect / height)
        return ratio, apart(Fraction(bucket[0] * bucket[1]), width * aspect * height), -bucket[2]

    return min((bucket for bucket in buckets if bucket[2] <= num_frames), key=distance)


def crops(source: Path, bucket: tuple[int, int, int]) -> Iterator[str]:
    """Yield the centered parts of a bucket's aspect ratio, in whole samples of chroma if they are cut.

    There are two if the middle is between samples: the picture may be turned or mirrored after it is cut.
    """
    width, height, aspect, across, down = _upright(source)
    ratio = Fraction(bucket[1], bucket[0]) / (width * aspect / height)
    cut_width, cut_height = width, height
    if ratio < 1:
        cut_width = min(width, max(across, across * round(width * ratio / across)))
    else:
        cut_height = min(height, max(down, down * round(height / ratio / down)))
    starts = [
        {start := (whole - part) // 2 // step * step, whole - part - start}
        for whole, part, step in ((width, cut_width, across), (height, cut_height, down))
    ]
    for left, top in product(*starts):
        yield f"{cut_width}:{cut_height}:{left}:{top}"


def worst_psnr_db(source: Path, artefact: Path, bucket: tuple[int, int, int]) -> float:
    """Return the lowest PSNR of the planes of all frames [dB], cut to a bucket as JPEGs in LMDB."""
    video = ffmpeg_reference.probe(source).video
    assert video is not None
    location = video.get("chroma_location", "center") if "420" in video.get("pix_fmt", "") else None
    planes = [jpeg_planes(record) for record in records(artefact)]
    assert len(planes) == bucket[2]
    best = 0.0
    for crop in crops(source, bucket):
        expected = Decoded(
            source,
            video["index"],
            (bucket[1], bucket[0]),
            "yuvj420p",
            chroma_location=location,
            is_strict=video.get("codec_name") == "h264",
            crop=crop,
        )
        pairs = zip(planes, islice(expected, len(planes)), strict=True)
        best = max(best, min(psnr_db(one, other) for one, other in pairs))
    return best
