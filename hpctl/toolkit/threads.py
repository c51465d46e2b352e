"""Pools whose threads are there before they are needed."""

from concurrent.futures import ThreadPoolExecutor, wait
from threading import Barrier


def start_thread_pool(threads: int, name: str) -> ThreadPoolExecutor:
    """Return a pool all of whose threads run.

    A pool itself starts them one by one, as work comes. Where no memory is left then,
    Thread.start() may never return (CPython 3.11: the thread ends before it says that it has
    begun); or it raises, and the pool keeps the work and does it whenever more comes. One start
    that never returns stops every pool of the process: submit() holds a lock that all of them
    share (_global_shutdown_lock of concurrent/futures/thread.py).
    """
    pool = ThreadPoolExecutor(threads, name)
    all_there = Barrier(threads)
    wait([pool.submit(all_there.wait) for _ in range(threads)])
    return pool
