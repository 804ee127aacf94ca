"""The versions of this program and of the libraries that it uses, for a report about a problem."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from collections.abc import Callable, Mapping

from chordcache.media import ffmpeg_versions

NOT_INSTALLED = "not installed"


def _package(name: str) -> Callable[[], str]:
    return lambda: importlib.metadata.version(name)


def _opencv() -> str:
    """Return the packages of OpenCV. There are four, and they overwrite each other."""
    packages = {
        f"{str(package.name).lower().replace('_', '-')} {package.version}"
        for package in importlib.metadata.distributions()
        if re.match(r"opencv[-_]", str(package.name), re.IGNORECASE)
    }
    return ", ".join(sorted(packages)) or NOT_INSTALLED


_LIBRARIES: Mapping[str, Callable[[], str]] = {
    "Python": platform.python_version,
    "platform": platform.platform,
    "av": _package("av"),
    "FFmpeg": ffmpeg_versions.describe,
    "OpenCV": _opencv,
    "numpy": _package("numpy"),
    "simplejpeg": _package("simplejpeg"),
    "lmdb": _package("lmdb"),
    "h5py": _package("h5py"),
    "torch": _package("torch"),
}
"""Name of each library to the function that returns its version. Only that of FFmpeg imports the library."""


def library_versions() -> dict[str, str]:
    """Return the version of each library, or the reason why it is not known. No library raises an error here.

    Returns
    -------
    dict of str to str
        Name to version. A package that is not there is "not installed".
    """
    return {name: _version(function) for name, function in _LIBRARIES.items()}


def _version(function: Callable[[], str]) -> str:
    try:
        return function()
    except importlib.metadata.PackageNotFoundError:
        return NOT_INSTALLED
    except Exception as error:  # noqa: BLE001 # a broken installation may raise anything, and this helps to repair it
        return " ".join(f"cannot be loaded: {type(error).__name__}: {error}".split())
