"""What asyncio asks of whoever leaves a future alone."""

import asyncio
from typing import Any


def retrieve_exception(future: asyncio.Future[Any]) -> None:
    """Nobody may come to look at what it raised: asyncio would log that as an error. A done callback."""
    if not future.cancelled():
        future.exception()
