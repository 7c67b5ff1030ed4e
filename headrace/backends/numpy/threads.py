"""A pool of threads for work that numpy does without the GIL.

Handing a task to another thread takes some 100 us, so callers split only what takes much longer. The calling thread
works too: a task that no other thread has begun by then is done by the caller, who never waits for a thread to wake up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue

Task = Callable[[], None]


class _Job:
    """Tasks that several threads take from one iterator (`next` on a list's iterator is atomic under the GIL)."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks: Iterator[Task] = iter(tasks)
        self.finished: SimpleQueue[BaseException | None] = SimpleQueue()


class ThreadPool:
    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"headrace-numpy-{index}", daemon=True)
            for index in range(1, num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, tasks: Sequence[Task]) -> None:
        """Do all tasks, in any order, and return when the last is done. Raises what a task raised."""
        if len(tasks) == 1 or not self._threads:
            for task in tasks:
                task()
            return
        job = _Job(tasks)
        for _ in range(min(len(self._threads), len(tasks) - 1)):
            self._jobs.put(job)
        failures = [_attempt(task) for task in job.tasks]  # the caller's share
        failures += [job.finished.get() for _ in range(len(tasks) - len(failures))]
        for failure in failures:
            if failure is not None:
                raise failure

    def close(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            for task in job.tasks:
                job.finished.put(_attempt(task))


def _attempt(task: Task) -> BaseException | None:
    """What the task raised: the one who called `run` gets it, when all tasks are done."""
    try:
        task()
    except BaseException as error:
        return error
    return None
