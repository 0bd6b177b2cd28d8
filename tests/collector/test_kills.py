"""A writer of episodes that is killed at each of its lines: no complete file is ever lost."""

import functools
import itertools
import mmap
import multiprocessing
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

import envpool_py.collector
from envpool_py.collector import Episode, EpisodeWriter, load, save

SPACES = spaces.Discrete(9), spaces.Discrete(2)
TRACED = str(Path(envpool_py.collector.__file__).parent)
EARLIER, LATER, LAST = (0, 1), (2, 3), 4


def episode(number):
    ends = np.array([False, True])
    values = np.full(3, number), np.array([0, 1]), np.ones(2)
    return Episode(0, number, None, None, *values, ends, ~ends & False)


def write(path, numbers, written, **options):
    with EpisodeWriter(path, *SPACES, **options) as writer:
        for number in numbers:
            writer.write(episode(number))
            written[0] += 1


def traced(on_line, *args, **options):
    """Call ``write``, and ``on_line`` with the number of each line of the writer."""
    lines = itertools.count()

    def trace(frame, event, _):
        if not frame.f_code.co_filename.startswith(TRACED):
            return None
        if event == "line":
            on_line(next(lines))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        write(*args, **options)
    finally:
        sys.settrace(before)


def lines_that_change(folder, *args, **options):
    """The lines before which the folder has changed: a kill at any other leaves the same."""
    found, states = [], [None]

    def look(line):
        files = [file for file in sorted(folder.rglob("*")) if file.is_file() or file.is_dir()]
        state = [(str(file), file.is_file() and file.read_bytes()) for file in files]
        if state != states[-1]:
            found.append(line)
            states.append(state)

    traced(look, *args, **options)
    return found


def killed_at(line, *args, **options):
    """How many episodes a process had written that was killed at this line of ``write``."""
    written = mmap.mmap(-1, 1)

    def kill(number):
        if number == line:
            os.kill(os.getpid(), signal.SIGKILL)

    run = functools.partial(traced, kill, *args, written, **options)
    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    with written:
        return written[0]


def numbers_in(path):
    found = load(path)
    for one in found:
        assert one.obs.tolist() == [one.episode_id] * 3
    return tuple(found.episode_ids)


@pytest.mark.slow
@pytest.mark.parametrize("earlier", [(), EARLIER])
def test_a_kill_at_any_line_loses_no_episode(tmp_path, earlier):
    def folder_with_earlier(part):
        (tmp_path / part).mkdir()
        if earlier:
            save(tmp_path / part / "a", map(episode, earlier), *SPACES)
        return tmp_path / part

    folder = folder_with_earlier("unharmed")
    lines = lines_that_change(folder, folder / "a", LATER, [0], append=True)
    assert numbers_in(folder / "a") == earlier + LATER
    assert len(lines) > 20
    for line in lines:
        folder = folder_with_earlier(str(line))
        path = folder / "a"
        written = killed_at(line, path, LATER, append=True)
        possible = [earlier + LATER[:k] for k in range(written, len(LATER) + 1)]
        if earlier or written or (path / "metadata.json").exists():
            assert numbers_in(path) in possible, line
        # The next writer goes on behind what the killed one had written.
        write(path, [LAST], [0], append=True)
        assert numbers_in(path) in [(*some, LAST) for some in possible], line
        assert list(folder.iterdir()) == [path], line
        assert not list(path.glob("*.tmp")), line
