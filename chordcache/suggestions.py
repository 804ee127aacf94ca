"""The valid name that is most like a mistyped one, for error messages."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(got: object, valid: Iterable[object]) -> str:
    """Return the end of an error message about a name that does not exist.

    Parameters
    ----------
    got : object
        The wrong name. Other values than text are compared as they are printed.
    valid : iterable of object
        The names that exist.

    Returns
    -------
    str
        ``". Did you mean 'lmdb'?"``, or "" if no valid name is like the wrong one.

    Examples
    --------
    >>> did_you_mean("lmbd", ("lmdb", "npz", "hdf5"))
    ". Did you mean 'lmdb'?"
    >>> did_you_mean("tape", ("lmdb", "npz", "hdf5"))
    ''
    """
    import difflib  # not before: a correct command does not need it

    names = {str(name).lower(): str(name) for name in valid}
    close = difflib.get_close_matches(str(got).lower(), names, n=1)
    return f". Did you mean '{names[close[0]]}'?" if close else ""
