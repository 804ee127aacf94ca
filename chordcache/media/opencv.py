"""OpenCV, without what its import does to the processes that this one starts.

Its loader writes LD_LIBRARY_PATH with an empty element, which stands for the working folder: a child process would
look for its libraries there first, and run the code of a file that lies among the videos under the right name.
"""

import os

import cv2

__all__ = ["cv2"]

if "LD_LIBRARY_PATH" in os.environ:
    os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, os.environ["LD_LIBRARY_PATH"].split(":")))
