"""OpenCV without the effect of its import on child processes.

OpenCV's loader writes LD_LIBRARY_PATH with an empty element, which stands for the working folder. A child process would
look for its libraries there first. It would run the code of any file with the right name among the videos.
"""

import os

try:
    import cv2
except ModuleNotFoundError as error:
    if error.name != "cv2":
        raise
    raise ImportError("no OpenCV (cv2) is installed; run: pip install 'chordcache[build]'") from None

__all__ = ["cv2"]

if "LD_LIBRARY_PATH" in os.environ:
    os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, os.environ["LD_LIBRARY_PATH"].split(":")))
