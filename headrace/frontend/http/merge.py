"""Several streams of outputs as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def merge(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """Items of all streams as they come, each with the place of its stream. The first error of one ends all.

    Closing it closes every stream. At most one item of each waits here, so a slow reader slows the streams down."""
    if len(streams) == 1:
        async with aclosing(streams[0]):
            async for item in streams[0]:
                yield 0, item
        return
    queue: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue(maxsize=1)
    tasks = [asyncio.ensure_future(_pump(place, stream, queue)) for place, stream in enumerate(streams)]
    try:
        num_open = len(tasks)
        while num_open:
            entry = await queue.get()
            if isinstance(entry, Exception):
                raise entry
            if entry is None:
                num_open -= 1
            else:
                yield entry
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(
    place: int, stream: AsyncGenerator[T, None], queue: asyncio.Queue[tuple[int, T] | Exception | None]
) -> None:
    """Ends with an entry of its own: None, or the exception that ended the stream."""
    end: Exception | None = None
    try:
        async with aclosing(stream):
            async for item in stream:
                await queue.put((place, item))
    except Exception as error:
        end = error
    await queue.put(end)
