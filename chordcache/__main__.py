"""The command: ``chordcache``, and ``python -m chordcache``."""

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while the imports below run ends it without a traceback

from chordcache.cli import main

if __name__ == "__main__":
    main()
