"""``python -m chordcache``."""

from chordcache.cli import main

if __name__ == "__main__":
    main()
