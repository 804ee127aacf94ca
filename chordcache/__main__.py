"""The entry point of ``chordcache`` and ``python -m chordcache``."""

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during the imports below ends the process without a traceback

from chordcache.cli import main

if __name__ == "__main__":
    main()
