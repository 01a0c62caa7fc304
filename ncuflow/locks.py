"""Locks of open files by flock, which the kernel drops with the last process that has the file open.

A system without flock reads reports all the same: there every lock is free.
"""

from contextlib import suppress

with suppress(ImportError):
    import fcntl

HERE = "fcntl" in globals()
SHARED, OWN, FREE = 1, 2, 8  # as flock numbers them


def locked(handle: int, how: int = OWN, wait: bool = True) -> bool:
    """Lock an open file, or wait until that can be; without ``wait``, whether nobody had it."""
    if not HERE:
        return True
    try:
        fcntl.flock(handle, how if wait else how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
