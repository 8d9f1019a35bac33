"""A bounded cache with least-recently-used eviction."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class Cache(Generic[T]):
    """Keeps at most `maxsize` values. Safe to use from several threads.

    Two threads that miss the same key at once both make a value; the first one stays.
    """

    maxsize: int
    hits: int = 0
    misses: int = 0
    _values: OrderedDict[Hashable, T] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        with self._lock:
            if key in self._values:
                self.hits += 1
                self._values.move_to_end(key)
                return self._values[key]
            self.misses += 1
        value = make()
        with self._lock:
            value = self._values.setdefault(key, value)
            while len(self._values) > self.maxsize:
                self._values.popitem(last=False)
        return value

    def find(self, key: Hashable) -> T | None:
        """The value of `key`, if there is one."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def remove(self, key: Hashable, value: T) -> None:
        """Removes `value`, if it is that of `key`."""
        with self._lock:
            if self._values.get(key) is value:
                del self._values[key]

    def __reduce__(self) -> tuple[object, ...]:
        """Copies are empty."""
        return Cache, (self.maxsize,)

    def __len__(self) -> int:
        return len(self._values)

    def clear(self) -> None:
        with self._lock:
            self._values.clear()
            self.hits = self.misses = 0
