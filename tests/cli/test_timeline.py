"""``envpool-py timeline``: what is drawn is what the envs did."""

import itertools
import time
from functools import partial
from types import SimpleNamespace

import pytest

from envpool_py.bench import timeline
from envpool_py.bench.settings import Setting, make_pool
from envpool_py.cli.timeline import summary
from tests.support.envs import CountEnv


class Slow(CountEnv):
    """Keeps a copy of its times, taken further inside than the recorder's."""

    def __init__(self, seconds=0.0005):
        super().__init__()
        self.seconds = seconds
        self.own = []

    def step(self, action):
        begun = time.perf_counter()
        time.sleep(self.seconds)
        result = super().step(action)
        self.own.append(time.perf_counter() - begun)
        return result


@pytest.mark.parametrize("backend", ["dummy", "shmem"])
def test_who_stepped_and_who_held_the_others_up(backend):
    setting = Setting(backend, 3, 0 if backend == "dummy" else 3)
    env_fns = [timeline.noted(each) for each in (Slow, partial(Slow, 0.02), Slow)]
    with make_pool(setting, env_fns) as pool:
        begun = time.perf_counter()
        found = timeline.record(pool, 0.3, 0.05)
        ended = time.perf_counter()
        own = pool.get_env_attr("own")
    assert 0.3 <= found.seconds < ended - begun
    for spans, lengths in zip(found.envs, own, strict=True):
        for (_, _, end), (_, begin, _) in itertools.pairwise(spans):
            assert end <= begin + 1e-9
        assert all(0 <= begin <= end <= found.seconds for _, begin, end in spans)
        # Each step that is drawn whole contains the one that the env itself has noted down.
        steps = [end - begin for what, begin, end in spans[1:-1] if what == timeline.STEP]
        assert len(steps) > 5
        assert min(lengths) <= min(steps)
        assert sum(steps) <= sum(lengths) + 0.001 * len(steps)
    parts = timeline.shares(found)
    assert parts[timeline.STEP][1] > 3 * max(parts[timeline.STEP][::2])
    if backend == "shmem":
        assert timeline.last_of_batches(found)[1] > 0.8
        assert parts[timeline.DONE][0] > 0.5
        assert "env 1 was the last of its batch most often" in summary(found)[-1]
    else:
        assert timeline.last_of_batches(found) == [0, 0, 1]
        assert parts[timeline.QUEUED][2] > 0.5


def test_a_line_for_each_list_of_spans():
    drawn = []
    panel = SimpleNamespace(
        broken_barh=lambda bars, place, color, **_: drawn.append((bars, place[0], color)),
        set_ylim=lambda *limits: drawn.append(limits),
    )
    spans = [[("a", 0.0, 0.5), ("b", 0.5, 1.0)], [("b", 0.25, 0.5)]]
    timeline.draw_spans(panel, spans, {"a": "red", "b": "blue"})
    assert drawn == [
        ([(0.0, 500.0)], -0.4, "red"),
        ([(500.0, 500.0)], -0.4, "blue"),
        ([], 0.6, "red"),
        ([(250.0, 250.0)], 0.6, "blue"),
        (1.5, -0.5),  # the first line is above
    ]
