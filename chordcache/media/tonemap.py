"""HDR to SDR: PQ and HLG codes become BT.709 ones, by the formulas of ffmpeg's ``zscale`` and ``tonemap=hable``."""

from __future__ import annotations

from functools import cache

import numpy as np

TRANSFERS = {16: "PQ", 18: "HLG"}
"""Short names of the transfers that are tone-mapped: AVCOL_TRC_SMPTE2084 and AVCOL_TRC_ARIB_STD_B67"""

REFERENCE_WHITE_NITS = 100.0
"""[cd/m2] Luminance of linear light of 1.0: ``npl=100`` of zscale"""

DEFAULT_PEAK = 10.0
"""[times the reference white] Peak if the file does not state it: a 1000 nit display. ffmpeg's ``tonemap`` is meant
to use 10000 for PQ, but it reads the transfer, which is linear at that point."""

_D65 = (0.3127, 0.3290)
_BT709 = ((0.640, 0.330), (0.300, 0.600), (0.150, 0.060))
_BT2020 = ((0.708, 0.292), (0.170, 0.797), (0.131, 0.046))
_PRIMARIES = {
    1: _BT709,
    5: ((0.640, 0.330), (0.290, 0.600), (0.150, 0.060)),
    6: ((0.630, 0.340), (0.310, 0.595), (0.155, 0.070)),
    9: _BT2020,
    12: ((0.680, 0.320), (0.265, 0.690), (0.150, 0.060)),
}
"""Primaries by AVColorPrimaries, if their white is D65. Others count as BT.2020, which BT.2100 prescribes."""

_ENCODER_STEPS = 4096


def signal_peak(light_level: bytes | None, mastering: bytes | None) -> float:
    """Return the highest brightness of the content, [times the reference white].

    ``light_level`` is an ``AVContentLightMetadata``: MaxCLL and MaxFALL, as ints. It comes first. ``mastering`` is an
    ``AVMasteringDisplayMetadata``: ten rationals, of which the last is the largest luminance, and two flags.

    Notes
    -----
    Source: libavfilter, ``ff_determine_signal_peak``; libavutil/mastering_display_metadata.h.
    """
    if light_level is not None:
        max_cll = int(np.frombuffer(light_level, np.uint32, 1)[0])
        if max_cll:
            return max_cll / REFERENCE_WHITE_NITS
    if mastering is not None:
        *_, numerator, denominator, _, has_luminance = np.frombuffer(mastering, np.int32, 22).tolist()
        if has_luminance and numerator > 0 and denominator > 0:
            return float(numerator / denominator / REFERENCE_WHITE_NITS)
    return DEFAULT_PEAK


def tone_map(codes: np.ndarray, *, transfer: int, primaries: int, peak: float) -> np.ndarray:
    """Convert HDR codes to SDR codes [shape=(3, H, W), R G B, full range], from uint16 to uint8.

    Codes become light, and light is converted to the primaries of BT.709. Hable's curve reduces the brightest of the
    three channels. The other two are scaled by the same factor, which keeps the hue. Values are clipped to 0 to 1 and
    become codes again.

    ``transfer`` is a key of ``TRANSFERS``, ``primaries`` the AVColorPrimaries of the source, and ``peak`` the light
    that becomes white [times the reference white], see ``signal_peak``.

    Notes
    -----
    Source: SMPTE ST 2084; ITU-R BT.2100 and BT.1886; J. Hable, "Uncharted 2: HDR lighting", 2010. As in zimg, HLG's
    system gamma of 1.2 (a 1000 nit display) is applied to each channel separately, and BT.709 is encoded by the
    inverse of BT.1886, a power of 1 / 2.4.

    Examples
    --------
    >>> codes = np.full((3, 1, 1), 65535, np.uint16)
    >>> tone_map(codes, transfer=18, primaries=9, peak=10.0).ravel().tolist()
    [255, 255, 255]
    """
    # mode="clip" is twice as fast as an index, and every code is in the table
    light = _matrix_to_bt709(primaries) @ np.take(_light_table(transfer), codes.reshape(3, -1), mode="clip")
    light *= _hable_gain(np.maximum(light.max(axis=0), 0)) / (peak * float(_hable_gain(np.array(peak))))
    np.clip(light, 0, 1, out=light)
    # the square root spreads the dark codes; a table over light itself would leave out levels
    steps = np.sqrt(light) * np.float32(_ENCODER_STEPS - 1) + np.float32(0.5)
    encoded: np.ndarray = np.take(_encoder_table(), steps.astype(np.uint16), mode="clip")
    return encoded.reshape(codes.shape)


def _hable_gain(light: np.ndarray) -> np.ndarray:
    """Return Hable's curve divided by its argument, without the cancellation that the usual form has in blacks.

    (v (a v + c b) + d e) / (v (a v + b) + d f) - e / f with a to f = 0.15, 0.5, 0.1, 0.2, 0.02, 0.3, over v.
    """
    gain: np.ndarray = (0.14 * light + 1 / 60) / (light * (0.15 * light + 0.5) + 0.06)
    return gain


@cache
def _light_table(transfer: int) -> np.ndarray:
    """Return the light of each 16-bit code, [shape=(65536,), dtype=float32, times the reference white]."""
    code = np.arange(65536) / 65535
    if TRANSFERS[transfer] == "PQ":
        root = code ** (32 / 2523)
        base = np.maximum(root - 107 / 128, 0) / (2413 / 128 - 2392 / 128 * root)
        light = 10000 / REFERENCE_WHITE_NITS * base ** (8192 / 1305)
    else:
        a, b, c = 0.17883277, 0.28466892, 0.55991073
        scene = np.where(code <= 0.5, code**2 / 3, (np.exp((code - c) / a) + b) / 12)
        light = 1000 / REFERENCE_WHITE_NITS * scene**1.2
    return light.astype(np.float32)


@cache
def _encoder_table() -> np.ndarray:
    """Return the code of the square of each step, [shape=(4096,), dtype=uint8]."""
    light = np.linspace(0, 1, _ENCODER_STEPS) ** 2
    return np.rint(255 * light ** (1 / 2.4)).astype(np.uint8)


@cache
def _matrix_to_bt709(primaries: int) -> np.ndarray:
    """Return the matrix from light in these primaries to light in those of BT.709, [shape=(3, 3), dtype=float32]."""
    source = _to_xyz(_PRIMARIES.get(primaries, _BT2020))
    return np.linalg.solve(_to_xyz(_BT709), source).astype(np.float32)


def _to_xyz(primaries: tuple[tuple[float, float], ...]) -> np.ndarray:
    """Return the matrix from RGB to CIE XYZ [shape=(3, 3), dtype=float64]; equal R, G and B give white."""
    directions = np.array([_xyz_of(*chromaticity) for chromaticity in primaries]).T
    return directions * np.linalg.solve(directions, _xyz_of(*_D65))


def _xyz_of(x: float, y: float) -> np.ndarray:
    """Return XYZ of a chromaticity at luminance 1."""
    return np.array([x / y, 1, (1 - x - y) / y])
