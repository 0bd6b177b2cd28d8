"""Bells: how a pool and its processes call each other while both are awake, without the kernel.

A step of all envs of a process that asks for just what the one before it asked for needs no frame:
the pool rings, and the process answers, each by a store into memory that they share. A frame and a
write to the pipe of the results would cost both sides as much as a cheap env's step, twice. Who is
asleep is woken by what it sleeps on, as ever, and looks at the bell then.

Each word is an int64 that one side writes, on cache lines of its own:

* of the pool: whether it is asleep;
* of each process, what the pool writes: how often it has rung;
* of each process, what that writes: the number of the ring that it answered last, negative where
  its rows have come, or are to come, by pipe and stream as well; and whether it is asleep.

That whoever sees an answer sees the rows as well follows from stores being seen in the order in
which they were made. x86 has it so; elsewhere there are no bells. No machine promises that a load
waits for the stores before it: "asleep" may be read just before it is written. So who falls asleep
dozes first, for ``DOZE``, and looks once more.
"""

from __future__ import annotations

import mmap
import os
import platform

from envpool_py import shm

#: Seconds: much longer than a store is on its way, and too short to matter.
DOZE = 2e-3
#: How often a bell is looked at, some forty nanoseconds each, between two looks at the rest.
LOOKS = 50
#: The same where most often there is no need to look at the rest: some twenty microseconds.
MANY_LOOKS = 500
#: Whether this machine shows stores in their order, and stores an int64 at once.
WORK_HERE = platform.machine() in ("x86_64", "AMD64")

_STRIDE = 16  # words: two cache lines, which are often fetched as one
_POOL_ASLEEP = 0


class Bells:
    """The pool's side.

    Args:
        num_processes: how many there are.

    Attributes:
        memory: descriptor of the words, for the processes.
    """

    def __init__(self, num_processes: int) -> None:
        self.memory = shm.create()
        try:
            size = 8 * _STRIDE * (1 + 2 * num_processes)
            self._words = memoryview(shm.allocate(self.memory, size, "the bells")).cast("q")
        except BaseException:
            os.close(self.memory)
            raise
        self._places = [_places(number) for number in range(num_processes)]
        #: The rings that are not answered, by process: where the answer will be, what it can be.
        self.rung: dict[int, tuple[int, tuple[int, int]]] = {}

    def forget(self, number: int) -> None:
        """Begin anew with process ``number``, which is not running."""
        self.rung.pop(number, None)
        for at in self._places[number]:
            self._words[at] = 0

    def ring_all(self) -> list[int]:
        """Ask each process for what it was asked last; return those that must be woken."""
        words, rung = self._words, self.rung
        sleepers = []
        for number, (at, answer, asleep) in enumerate(self._places):
            count = words[at] + 1
            rung[number] = (answer, (count, -count))
            words[at] = count
            if words[asleep]:
                sleepers.append(number)
        return sleepers

    def all_answered(self) -> bool:
        """Whether all processes were rung and have answered, and all rows are in the block.

        They are looked at for a while.
        """
        words, rung = self._words, list(self.rung.values())
        if len(rung) < len(self._places):
            return False
        for at, (whole, _) in rung:
            for _ in range(MANY_LOOKS):
                if words[at] == whole:
                    break
            else:
                return False
        return True

    def answered(self, looks: int = 1) -> list[tuple[int, bool]]:
        """The processes that have answered since, and whether their rows are all in the block.

        Args:
            looks: how often to look at one of them before looking at all.
        """
        words, rung = self._words, self.rung
        for at, answers in rung.values():
            for _ in range(looks):
                if words[at] in answers:
                    break
            break
        found = []
        for number, (at, answers) in list(rung.items()):
            answer = words[at]
            if answer in answers:
                found.append((number, answer > 0))
                del rung[number]
        return found

    def sleep(self, asleep: bool) -> None:
        """Say whether the pool is to be woken."""
        self._words[_POOL_ASLEEP] = asleep

    def close(self) -> None:
        """Free the memory, once nobody refers to this any more."""
        self.rung.clear()
        os.close(self.memory)


class Bell:
    """The side of process ``number``."""

    def __init__(self, memory: mmap.mmap, number: int) -> None:
        self._words = memoryview(memory).cast("q")
        self._at, self._answer, self._asleep = _places(number)
        self._heard = 0

    def rings(self, looks: int = 1) -> bool:
        """Whether the pool has rung since this was last true; looks so many times.

        If so, it is to be seen to, and then answered.
        """
        words, at, heard = self._words, self._at, self._heard
        for _ in range(looks):
            if words[at] != heard:
                self._heard = words[at]
                return True
        return False

    def answer(self, *, whole: bool) -> bool:
        """Say that it has been seen to; return whether the pool must be woken.

        Args:
            whole: all rows are in the block, and nothing else was said of them.
        """
        words = self._words
        words[self._answer] = self._heard if whole else -self._heard
        return words[_POOL_ASLEEP] != 0

    def sleep(self, asleep: bool) -> None:
        """Say whether this process is to be woken."""
        self._words[self._asleep] = asleep


def _places(number: int) -> tuple[int, int, int]:
    """Where the ring, the answer and the sleep of a process stand."""
    at = _STRIDE * (1 + 2 * number)
    return at, at + _STRIDE, at + _STRIDE + 1
