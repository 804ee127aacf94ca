"""Parts of JPEGs equal the same parts of the whole picture, with libturbojpeg and without it."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from helpers.scaled import frames as frames_of

from chordcache.errors import DamageError, UsageError
from chordcache.media import jpeg, turbojpeg
from chordcache.media.cropping import Rectangle

SIZES = [(256, 456), (271, 453), (130, 70), (17, 33), (8, 8), (1, 1)]
LIBRARY = turbojpeg.load_library(turbojpeg.candidates())
needs_library = pytest.mark.skipif(LIBRARY is None, reason="needs libturbojpeg 3: pip install 'chordcache[turbojpeg]'")


@pytest.fixture(params=[pytest.param(True, marks=needs_library), False], ids=["library", "fallback"])
def with_library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Decode parts by the library, or without one as on a machine that does not have it."""
    if not request.param:
        monkeypatch.setattr(turbojpeg, "candidates", list)
    jpeg.part_decoder.cache_clear()
    assert (jpeg.part_decoder() is not None) == request.param
    yield request.param
    jpeg.part_decoder.cache_clear()


@pytest.fixture(scope="module")
def picture(clips: Path) -> np.ndarray:
    """A natural frame, with noise at its right and lower border, where the decoder has to make up neighbors."""
    rgb = frames_of(clips / "street/bikes.mp4", 30, short_side=None)[-1].rgb()[-271:, -456:].copy()
    rgb[-40:] ^= np.random.default_rng(1).integers(0, 256, rgb[-40:].shape, np.uint8)
    rgb[:, -40:] ^= np.random.default_rng(2).integers(0, 256, rgb[:, -40:].shape, np.uint8)
    return rgb


def encoded(picture: np.ndarray, subsampling: str = "420", quality: int = 90) -> bytes:
    data: bytes = simplejpeg.encode_jpeg(np.ascontiguousarray(picture), quality, "RGB", subsampling, False)
    return data


def parts_of(height: int, width: int, count: int) -> Iterator[Rectangle]:
    """Parts of any size and place, among them those at each border, and the whole picture."""
    random = np.random.default_rng(height * width)
    yield Rectangle(0, 0, height, width)
    for number in range(count - 1):
        rows, columns = int(random.integers(1, height + 1)), int(random.integers(1, width + 1))
        top, left = int(random.integers(height - rows + 1)), int(random.integers(width - columns + 1))
        top, left = ((top, left), (0, left), (top, 0), (height - rows, left), (top, width - columns))[number % 5]
        yield Rectangle(top, left, rows, columns)


def decoded_part(data: bytes, part: Rectangle, size: tuple[int, int]) -> np.ndarray:
    """A part as the features' module decodes it."""
    region = jpeg.region_around(part, size) or Rectangle(0, 0, *size)
    out = np.full((1, region.height, region.width, 3), 77, np.uint8)
    jpeg.decode_region_into(data, region, size, out[0])
    return part.within(region).of(out)[0]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("subsampling", ["420", "444", "422", "440", "411", "gray"])
def test_parts_equal_those_of_the_whole(
    picture: np.ndarray, size: tuple[int, int], subsampling: str, with_library: bool
) -> None:
    """Caches hold 4:2:0. Others have to be right as well, since nothing says so in a record."""
    pixels = picture[-size[0] :, -size[1] :]
    data = encoded(pixels, subsampling)
    if subsampling == "gray":
        data = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels[..., :1]), 90, "GRAY", "gray", False)
    whole = np.empty((1, *size, 3), np.uint8)
    jpeg.decode_into(data, whole[0])
    for part in parts_of(*size, 70 if subsampling == "420" else 15):
        np.testing.assert_array_equal(decoded_part(data, part, size), part.of(whole)[0], err_msg=f"{part}")


@needs_library
def test_only_the_part_is_decoded(picture: np.ndarray) -> None:
    """At most 17 columns more on the left, and 16 on the right: up to the blocks of chroma beside the part."""
    size = (256, 448)
    for part in parts_of(*size, 50):
        region = jpeg.region_around(part, size)
        assert region is not None
        assert (region.top, region.height) == (part.top, part.height)
        assert part.left - 16 <= region.left <= max(0, part.left - 1)
        right, right_of_part = region.left + region.width, part.left + part.width
        assert min(448, right_of_part + 1) <= right <= right_of_part + 16
    decoder = jpeg.part_decoder()
    assert decoder is not None
    out = np.empty((20, 32, 3), np.uint8)
    assert decoder.decode(encoded(picture[:256, :448]), size, Rectangle(9, 16, 20, 32), out)


def damages(picture: np.ndarray) -> dict[str, bytes]:
    data = encoded(picture[:200, :300])
    return {
        "empty": b"",
        "no JPEG": b"chord" * 100,
        "another size": encoded(picture[:200, :304]),
        "cut in the header": data[:200],
        "cut in the picture": data[: len(data) // 2],
    }


@pytest.mark.parametrize("damage", ["empty", "no JPEG", "another size", "cut in the header", "cut in the picture"])
def test_damage_is_named(picture: np.ndarray, damage: str, with_library: bool) -> None:
    data, part = damages(picture)[damage], Rectangle(110, 50, 90, 120)
    with pytest.raises(DamageError, match="^not the expected JPEG|^the JPEG is 304x200, expected 300x200$"):
        decoded_part(data, part, (200, 300))
    good = encoded(picture[:200, :300])  # nothing of the damage stays in the decoder
    whole = np.empty((1, 200, 300, 3), np.uint8)
    jpeg.decode_into(good, whole[0])
    np.testing.assert_array_equal(decoded_part(good, part, (200, 300)), part.of(whole)[0])


def test_threads_do_not_share_a_decoder(picture: np.ndarray, with_library: bool) -> None:
    sizes = [(256, 448), (100, 200)]
    data = {size: encoded(picture[: size[0], : size[1]]) for size in sizes}
    expected = {size: decoded_part(data[size], Rectangle(10, 20, 70, 90), size) for size in sizes}
    wrong: list[object] = []

    def decode(size: tuple[int, int]) -> None:
        for _ in range(100):
            part = decoded_part(data[size], Rectangle(10, 20, 70, 90), size)
            if not np.array_equal(part, expected[size]):
                wrong.append(size)

    threads = [threading.Thread(target=decode, args=(size,)) for size in sizes * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_forked_process_decodes_parts(picture: np.ndarray, with_library: bool) -> None:
    data, part = encoded(picture[:256, :448]), Rectangle(3, 5, 60, 70)
    expected = decoded_part(data, part, (256, 448))
    child = os.fork()
    if not child:
        os._exit(0 if np.array_equal(decoded_part(data, part, (256, 448)), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_libraries_that_cannot_decode_parts() -> None:
    """One that is not there, one with other functions, one that is not a library."""
    assert turbojpeg.load_library(["libturbojpeg-that-is-not-there.so.0", "libc.so.6", __file__]) is None
    assert turbojpeg.load_library([]) is None


def test_the_wheel_is_found_in_any_folder_of_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "turbojpeg.libs").mkdir()
    (tmp_path / "turbojpeg.libs" / "libturbojpeg-1.so.0").touch()
    (tmp_path / "turbojpeg.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert turbojpeg.candidates()[-1] == str(tmp_path / "turbojpeg.libs" / "libturbojpeg-1.so.0")


@needs_library
def test_a_library_of_other_pixels_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def brighter(load: Callable[..., bool]) -> Callable[..., bool]:
        def decode(self: turbojpeg.PartDecoder, data: bytes, *arguments: object) -> bool:
            # A JPEG of the same size and other pixels stands for a decoder that rounds in another way
            other = np.random.default_rng(9).integers(0, 256, (40, 70, 3), np.uint8)
            return load(self, encoded(other), *arguments)

        return decode

    monkeypatch.setattr(turbojpeg.PartDecoder, "decode", brighter(turbojpeg.PartDecoder.decode))
    jpeg.part_decoder.cache_clear()
    assert jpeg.part_decoder() is None
    jpeg.part_decoder.cache_clear()
    monkeypatch.undo()
    assert jpeg.part_decoder() is not None


# Forged JPEGs, and memory that does not fit


def forged(picture: np.ndarray, height: int, width: int) -> bytes:
    """A JPEG whose header states another size."""
    data = bytearray(encoded(picture))
    start = data.index(b"\xff\xc0") + 5
    data[start : start + 4] = struct.pack(">HH", height, width)
    return bytes(data)


@pytest.mark.parametrize("size", [(30000, 30000), (65500, 65500), (271, 457), (270, 456)])
def test_a_jpeg_that_claims_another_size(picture: np.ndarray, size: tuple[int, int], with_library: bool) -> None:
    """Its size is compared before anything is decoded: the decoder does not bound one of 2 GiB by the memory."""
    data = forged(picture, *size)
    height, width = picture.shape[:2]
    with pytest.raises(DamageError, match=f"the JPEG is {size[1]}x{size[0]}, expected {width}x{height}"):
        jpeg.decode_into(data, np.empty((height, width, 3), np.uint8))
    with pytest.raises(DamageError, match=f"the JPEG is {size[1]}x{size[0]}, expected {width}x{height}"):
        decoded_part(data, Rectangle(8, 16, 64, 64), (height, width))


@pytest.mark.parametrize("channels", [0, 1, 2, 4])
def test_memory_of_other_channels_is_refused(picture: np.ndarray, channels: int, with_library: bool) -> None:
    """A decoder writes three of them, behind the end of an array of fewer."""
    size, region = picture.shape[:2], Rectangle(0, 0, 64, 64)
    with pytest.raises(UsageError, match="out: got uint8 of shape"):
        jpeg.decode_into(encoded(picture), np.empty((*size, channels), np.uint8))
    with pytest.raises(UsageError, match="out: got uint8 of shape"):
        jpeg.decode_region_into(encoded(picture), region, size, np.empty((64, 64, channels), np.uint8))


def test_memory_of_another_kind_is_refused(picture: np.ndarray, with_library: bool) -> None:
    size = picture.shape[:2]
    read_only = np.empty((*size, 3), np.uint8)
    read_only.flags.writeable = False
    outs = [read_only, np.empty((*size, 3), np.int8), np.empty((size[0], 2 * size[1], 3), np.uint8)[:, ::2]]
    for out in outs:
        with pytest.raises(UsageError, match="out: got"):
            jpeg.decode_into(encoded(picture), out)
        with pytest.raises(UsageError, match="out: got"):
            jpeg.decode_region_into(encoded(picture), Rectangle(0, 0, *size), size, out)
    with pytest.raises(UsageError, match="out: got"):
        jpeg.decode_region_into(encoded(picture), Rectangle(0, 0, 64, 64), size, np.empty((64, 32, 3), np.uint8))
