"""A plug-in that does harm in the middle of a video: it crashes, hangs, eats memory or raises."""

PLUG_IN = """
import ctypes, os, signal, sys, threading, time
import numpy as np
from chordcache.features.base import Extractor

class Unpicklable(Exception):
    def __init__(self):
        super().__init__("no way out")
        self.lock = threading.Lock()

class Mute(Exception):
    def __str__(self):
        raise ValueError("no words")

def fail(error):
    raise error

def eat_bit_by_bit():
    eaten = []
    while True:
        eaten.append(np.zeros(16 << 20, "u1"))

DEEDS = {
    "sleep": lambda mine: time.sleep(1000),
    "hold the interpreter": lambda mine: ctypes.PyDLL(None).sleep(1000),
    "eat memory": lambda mine: np.ones(8 << 30, "u1"),
    "eat memory bit by bit": lambda mine: eat_bit_by_bit(),
    "exit 0": lambda mine: os._exit(0),
    "exit 3": lambda mine: os._exit(3),
    "sys.exit": lambda mine: sys.exit(0),
    "SIGSEGV": lambda mine: ctypes.string_at(0),
    "SIGKILL": lambda mine: os.kill(os.getpid(), signal.SIGKILL),
    "unpicklable": lambda mine: fail(Unpicklable()),
    "unpicklable facts": lambda mine: mine.facts.update(lock=threading.Lock()),
    "mute": lambda mine: fail(Mute()),
    "tarry": lambda mine: time.sleep(0.3),
}

class Deeds(Extractor):
    def __init__(self, name, deeds):
        super().__init__(name)
        self.deeds = deeds

    def begin(self, video):
        self.deed = None if "POISON_IS_OUT" in os.environ else self.deeds.get(str(video.width))

    def add_frame(self, frame):
        if self.deed and (frame.number == 3 or self.deed == "tarry"):
            DEEDS[self.deed](self)
        return {self.name: np.array([frame.number])}
"""
"""Its parameter ``deeds`` maps widths [pixels], as text, to names of ``DEEDS``."""
