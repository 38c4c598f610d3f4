"""A nursery inside a context manager that hides itself from the errors passing through it.

`async with open_cluster(...)` owns a nursery. Without care an error of the caller's own body would come out
as `ExceptionGroup([error])`, and `except NameInUseError` would never match.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def open_plain_nursery() -> AsyncIterator[trio.Nursery]:
    """Open a nursery which raises its one error as it is; several at once still come as a group."""
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
    except BaseExceptionGroup as group:
        if len(group.exceptions) != 1:
            raise
        error = group.exceptions[0]
    else:
        return
    # Raised outside the except block and with its own context kept: the group says nothing the error does not.
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context
        del error, context
