from __future__ import annotations

import threading
from functools import partial

import pytest

from headrace.backends.numpy.threads import ThreadPool


@pytest.mark.parametrize("num_threads", [1, 2, 4])
@pytest.mark.parametrize("num_tasks", [0, 1, 2, 9])
def test_every_task_is_done_once_before_run_returns(num_threads: int, num_tasks: int) -> None:
    pool = ThreadPool(num_threads)
    for _ in range(50):
        done: list[int] = []
        pool.run([partial(done.append, task) for task in range(num_tasks)])
        assert sorted(done) == list(range(num_tasks))
    pool.close()


def test_tasks_run_beside_each_other() -> None:
    pool = ThreadPool(2)
    barrier = threading.Barrier(2, timeout=10)
    pool.run([barrier.wait, barrier.wait])
    pool.close()


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_failure_reaches_the_caller_and_the_pool_goes_on(num_threads: int) -> None:
    def fail() -> None:
        raise ValueError("broken")

    pool = ThreadPool(num_threads)
    for _ in range(20):
        with pytest.raises(ValueError, match="broken"):
            pool.run([fail, fail, fail])
    done: list[int] = []
    pool.run([partial(done.append, 1), partial(done.append, 2)])
    assert sorted(done) == [1, 2]
    pool.close()


def test_close_ends_the_threads() -> None:
    before = threading.active_count()
    pool = ThreadPool(4)
    assert threading.active_count() == before + 3
    pool.close()
    assert threading.active_count() == before
