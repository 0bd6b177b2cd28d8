"""The figures of README and docs: measure them, and write them into the pages.

Each figure is in ``docs/figures.json`` once. A page marks the place of a figure with its key::

    <!--fig simulator.gain-->21.1<!--/fig-->

Run the first command on a machine that does nothing else; it takes less than a quarter of an hour.
The second one writes the figures of the file into all pages. A test fails where a page has another
figure.

::

    python docs/build/figures.py measure
    python docs/build/figures.py write

``measure simulator ppo`` measures some of the parts again and keeps the others. ``measure cores``
and ``measure ray`` measure the parts that take some minutes more, and ``measure free`` the one that
needs ``python3.14t``, a Python without the GIL.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # where envpool_py is
sys.path.append(str(Path(__file__).resolve().parents[2] / "examples" / "benchmark"))

import cores as scaling
import gymnasium as gym
import sessions
import waiting

import envpool_py
from envpool_py.bench import measure as measuring
from envpool_py.bench.measure import Caller, Job
from envpool_py.bench.settings import SYNC, Setting
from envpool_py.cli.tables import separated

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docs" / "figures.json"
PLACE = re.compile(r"<!--fig (?P<key>[\w.-]+)-->(?P<shown>.*?)<!--/fig-->")

THINK_US = 300
"""CPU time of the caller before each batch in ``libraries``, in microseconds."""


POOLS = ["shmem", "shmem-caller", "envpool-cpp", "gymnasium", "sb3"]
POOLS += ["pufferlib-serial", "pufferlib-multiprocessing", "tianshou-dummy", "tianshou-shmem"]
"""What ``libraries`` measures: the pools of the page, and no others, which take their time."""


def simulator() -> dict[str, float]:
    """The first command of the README: 64 envs that wait 2 ms in each step."""
    return _bench(
        {"loop": "loop", "gymnasium-async": "gymnasium_async", "make": "ours"},
        *("examples/simulator.py:Simulator", "--num-envs", "64", "--policy-us", "0"),
    )


def pipes() -> dict[str, float]:
    """The same envs behind bare pipes, and the part of their steps that ours makes."""
    rows = _rows("examples/benchmark/pipes.py")
    found = {name: median(row[name] for row in rows) for name in ("pipes", "ours")}
    return {**found, "part": median(row["ours"] / row["pipes"] for row in rows)}


def halves() -> dict[str, float]:
    """Whole and half batches, with a policy that takes its time for each row."""
    found: dict[str, float] = {}
    for name, env_id, num_envs, row_us in (
        ("cartpole", "CartPole-v1", 64, 10),
        ("halfcheetah", "HalfCheetah-v5", 16, 30),
    ):
        caller = Caller(50e-6, row_us * 1e-6)
        shmem = Setting("shmem", num_envs, 1)
        settings = {
            "sync": Setting(SYNC, num_envs),
            "whole": shmem._replace(caller_steps=True),
            "half": shmem._replace(wait_num=num_envs // 2),
        }
        rates: dict[str, list[float]] = defaultdict(list)
        for _ in range(5):
            for key, setting in settings.items():
                job = Job(setting, functools.partial(gym.make, env_id), [caller], 1.0)
                rates[key] += [each.rate for each in measuring.carry_out(job)]
        found |= {f"{name}.{key}": median(own) for key, own in rates.items()}
        found[f"{name}.gain"] = found[f"{name}.half"] / found[f"{name}.sync"]
        found[f"{name}.whole_gain"] = found[f"{name}.whole"] / found[f"{name}.sync"]
    return found


def libraries() -> dict[str, float]:
    """Steps per second of each library: the caller computes before each batch."""
    workloads = ["--workload", "cartpole-x64", "--workload", "halfcheetah-x16"]
    pools = [word for name in POOLS for word in ("--backend", name)]
    rows = _rows("examples/benchmark/run.py", *workloads, *pools, "--think", str(THINK_US))
    names = {"cartpole-x64": "cartpole", "halfcheetah-x16": "halfcheetah"}
    rates: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.get("steps") and row["contestant"] != "bare":
            key = f"{names[row['workload']]}.{row['contestant']}"
            rates[key].append(row["steps"] / row["seconds"])
    found = {key: median(own) for key, own in rates.items()}
    for name in names.values():
        ours = max(found[f"{name}.shmem"], found[f"{name}.shmem-caller"])
        found[f"{name}.ours"] = ours
        for other in ("gymnasium-sync", "gymnasium-async", "sb3-subproc"):
            found[f"{name}.gain_{other}"] = ours / found[f"{name}.{other}"]
    return found


def ppo() -> dict[str, float]:
    """Steps per second of PPO of Stable-Baselines3, its training included; torch has a thread."""
    return ppo_of(_rows("examples/benchmark/ppo.py", "--threads", "1"))


def ppo_of(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The figures of what ``ppo.py --json`` wrote."""
    steps = {"CartPole-v1": 16 * 64, "HalfCheetah-v5": 16 * 64, "PongNoFrameskip-v4": 8 * 32}
    envs = dict(zip(steps, ("cartpole", "halfcheetah", "pong"), strict=True))
    names = {"Dummy": "dummy", "Subproc": "subproc", "caller": "caller", "num_processes": "shmem"}
    found = {}
    for row in rows:
        name = next(name for part, name in names.items() if part in row["vec_env"])
        found[f"{envs[row['env']]}.{name}"] = steps[row["env"]] / median(row["learn"][1:])
    for env in {key.partition(".")[0] for key in found}:
        best = max(found[f"{env}.caller"], found[f"{env}.shmem"])
        found[f"{env}.gain"] = best / found[f"{env}.subproc"]
    return found


def rollouts() -> dict[str, float]:
    """Rollouts of ``PPO`` and ``AsyncPPO`` whose envs take different times for their steps."""
    rows = _rows("examples/benchmark/rollouts.py", "--rounds", "3")[1:]
    steps = 16 * 128
    found = {name: steps / median(row[name] for row in rows) for name in ("whole", "async")}
    return {**found, "gain": median(row["whole"] / row["async"] for row in rows)}


def cleanrl() -> dict[str, float]:
    """Steps per second, and rows per call of the agent, that a program of the page prints."""
    page = (ROOT / "docs" / "gymnasium.md").read_text(encoding="utf-8")
    (program,) = (
        block for block in re.findall(r"(?s)```python\n(.*?)```", page) if "Agent" in block
    )
    paths = os.pathsep.join([str(ROOT), str(ROOT / "examples")])
    words, env = [sys.executable, "-c", program], {**os.environ, "PYTHONPATH": paths}
    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(5):
        done = subprocess.run(words, env=env, check=True, capture_output=True, text=True)  # noqa: S603
        for line in re.findall(r"(\w+)_batches: (.*) steps/s, (.*) rows", done.stdout):
            found[line[0]].append(float(line[1]))
            found[f"{line[0]}.rows"].append(float(line[2]))
    return {key: median(own) for key, own in found.items()}


def agents() -> dict[str, float]:
    """Milliseconds of a batch of 16 cheap envs with two agents: a loop over them, and our pools."""
    return {name: 1e3 * seconds for name, seconds in _rows("examples/benchmark/agents.py").items()}


def cores() -> dict[str, float]:
    """Steps per second over the number of cores: see ``cores.py``."""
    return scaling.measured(ppo_of)


def conversations() -> dict[str, float]:
    """Microseconds of CPU time of a step of a session, beside bare asyncio programs."""
    found: dict[str, float] = {}
    for num_envs in (64, 256):
        for name, (_, process) in sessions.measured(num_envs, 5).items():
            found[f"{name}_{num_envs}"] = process
    return found


def evaluation() -> dict[str, float]:
    """Episodes per second of ``evaluate_policy`` of Stable-Baselines3 and of ``evaluate``."""
    rows = _rows("examples/benchmark/evaluation.py", "--episodes", "64")
    found = {name: 64 / median(row[name] for row in rows) for name in ("sb3", "ours")}
    return {**found, "gain": median(row["sb3"] / row["ours"] for row in rows)}


def start() -> dict[str, float]:
    """Start to the first batch and close in milliseconds, megabytes of a worker process."""
    program, halfcheetah = "examples/benchmark/start.py", ("--torch", "no", "--case", "halfcheetah")
    rows = _rows(program, *halfcheetah, "--case", "cartpole", "--method", "fork")
    # The others take minutes, because each process imports torch.
    few = ("--pool", "ours", "--pool", "gymnasium")
    rows += _rows(program, *halfcheetah, "--method", "forkserver", *few)
    values: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        key = f"{row['method']}.{row['case']}.{row['pool']}"
        for fact, unit in (("start", 1e3), ("memory", 1), ("descriptors", 1), ("close", 1e3)):
            values[f"{key}.{fact}"].append(unit * row[fact])
    found = {key: median(own) for key, own in values.items()}
    for key in ("fork.halfcheetah", "fork.cartpole", "forkserver.halfcheetah"):
        for fact in ("start", "memory"):
            ratio = found[f"{key}.ours.{fact}"] / found[f"{key}.gymnasium.{fact}"]
            found[f"{key}.{fact}_ratio"] = ratio
    return found


def threads() -> dict[str, float]:
    """Envs that sleep 25 to 75 ms, in threads and in processes, whole and partial batches.

    Start-ups are in milliseconds, the memory in megabytes.
    """
    names = {
        "ThreadVectorEnv": "threads",
        "one process per env": "each",
        "2 processes": "two",
        "TorchRL": "torchrl",
    }
    found: dict[str, float] = {}
    for row in _rows("examples/benchmark/waiting.py", "--seconds", "2", "--repeats", "1"):
        num_envs, name = row["num_envs"], names[row["pool"]]
        found[f"{name}.{num_envs}.start"] = 1e3 * row["startup"]
        found[f"{name}.{num_envs}.memory"] = row["memory"] / 2**20
        for size, rate in row["rates"].items():
            rows = "whole" if int(size) == num_envs else size
            found[f"{name}.{num_envs}.{rows}"] = rate
            found[f"ideal.{num_envs}.{rows}"] = waiting.ideal(num_envs, int(size))
    return found


def free() -> dict[str, float]:
    """Envs that compute, in threads and in processes, by the Python without the GIL on PATH."""
    names = {
        "loop": "loop",
        "2 threads": "threads",
        "2 processes": "processes",
        "1 process + caller": "caller",
    }
    rates = _rows("examples/benchmark/free_threading.py", python="python3.14t")
    envs = {"CartPole-v1": "cartpole", "HalfCheetah-v5": "halfcheetah"}
    return {
        f"{key}.{own}": rates[f"{env}, {name}"]
        for env, key in envs.items()
        for name, own in names.items()
    }


def overhead() -> dict[str, float]:
    """Microseconds of a step of 64 CartPoles in process, with ``measure=True`` and without."""
    times: dict[bool, list[float]] = defaultdict(list)
    make = functools.partial(envpool_py.make, "CartPole-v1", 64, backend="dummy")
    pools = {each: make(measure=each) for each in (False, True)}
    obs = {each: pool.reset(seed=0)[0] for each, pool in pools.items()}
    for _ in range(40):
        for each, pool in pools.items():
            begun = time.perf_counter()
            for _ in range(50):  # the poles stay up for long, so that few resets are measured
                obs[each], *_ = pool.step((obs[each][:, 2:].sum(axis=1) > 0).astype(int))
            times[each].append((time.perf_counter() - begun) / (50 * 64) * 1e6)
    for pool in pools.values():
        pool.close()
    return {"plain": median(times[False]), "measured": median(times[True])}


def record() -> dict[str, float]:
    """Bytes that a record of CartPole grows by with each step, and with each batch."""
    sizes: dict[tuple[int, int], int] = {}
    with tempfile.TemporaryDirectory() as folder:
        for num_envs, steps in ((1, 100), (1, 1_100), (33, 100), (33, 1_100)):
            path = Path(folder) / f"{num_envs}_{steps}.rec"
            with envpool_py.make(
                "CartPole-v1", num_envs, backend="dummy", record=str(path)
            ) as pool:
                pool.reset(seed=0)
                for _ in range(steps):
                    pool.step([0] * num_envs)
            sizes[num_envs, steps] = path.stat().st_size
    per_batch = {n: (sizes[n, 1_100] - sizes[n, 100]) / 1_000 for n in (1, 33)}
    step = (per_batch[33] - per_batch[1]) / 32
    return {"step": step, "batch": per_batch[1] - step}


def interfaces() -> dict[str, float]:
    """Microseconds of a batch of 64 CartPoles, of Gymnasium's and EnvPool's interface and pools."""
    best = _rows("examples/benchmark/faces.py", "--rounds", "20")
    names = {
        "pool": "pool, {}",
        "vector_env": "VectorEnv, {}",
        "envpool": "envpool face, {}",
    }
    found = {}
    for key, where in (("here", "this process"), ("two", "2 processes")):
        found |= {f"{name}.{key}": best[text.format(where)] for name, text in names.items()}
        for name in ("vector_env", "envpool"):
            found[f"{name}.{key}.more"] = found[f"{name}.{key}"] - found[f"pool.{key}"]
    others = {"sync": "gymnasium, sync", "async": "gymnasium, async", "cpp": "EnvPool (C++ env)"}
    return found | {key: best[name] for key, name in others.items() if name in best}


def ray() -> dict[str, float]:
    """Our ``RayVectorEnv`` and Tianshou's, and the costs of one driver with the extrapolation."""
    found: dict[str, float] = {}
    facts = _rows("examples/benchmark/ray_scale.py", "--against-tianshou")
    for env, name in (("CartPole", "cartpole"), ("1 ms", "ms")):
        for kind in ("tianshou", "ours"):
            found[f"{name}.{kind}"] = facts[f"{env}, {kind}, steps"]
            found[f"{name}.{kind}.cpu"] = 1e6 * facts[f"{env}, {kind}, cpu"]
        found[f"{name}.gain"] = found[f"{name}.ours"] / found[f"{name}.tianshou"]
        found[f"{name}.less"] = found[f"{name}.tianshou.cpu"] / found[f"{name}.ours.cpu"]
    costs = _rows("examples/benchmark/ray_scale.py")
    found |= {"call": 1e6 * costs["call"], "env": 1e6 * costs["env"], "byte": 1e9 * costs["byte"]}
    return found | extrapolated(found["call"] / 1e6, found["env"] / 1e6)


def extrapolated(call: float, env: float) -> dict[str, float]:
    """Milliseconds of a batch, batches and steps per second, by the costs of one driver."""
    found = {}
    for num_envs in (1_000, 10_000, 100_000):
        for per_actor in (8, 64):
            seconds = num_envs / per_actor * call + num_envs * env
            key = f"{num_envs}.{per_actor}"
            found |= {f"{key}.batch": 1e3 * seconds, f"{key}.batches": 1 / seconds}
            found[f"{key}.steps"] = num_envs / seconds
    return found


PARTS: dict[str, Callable[[], dict[str, float]]] = {
    "simulator": simulator,
    "pipes": pipes,
    "halves": halves,
    "libraries": libraries,
    "ppo": ppo,
    "rollouts": rollouts,
    "cleanrl": cleanrl,
    "agents": agents,
    "conversations": conversations,
    "evaluation": evaluation,
    "start": start,
    "threads": threads,
    "cores": cores,
    "free": free,
    "overhead": overhead,
    "record": record,
    "interfaces": interfaces,
    "ray": ray,
}
ON_REQUEST = {"cores", "free", "ray"}
"""Parts that ``measure`` leaves out unless they are named.

``cores`` takes eight minutes, Ray some minutes to start, ``free`` needs a Python without the GIL.
"""


def _run(*words: str, python: str = sys.executable) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([python, *words], cwd=ROOT, env=env, check=True)  # noqa: S603


def _rows(*words: str, python: str = sys.executable) -> Any:
    """The result that a program writes with ``--json FILE``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        _run(*words, "--json", str(path), python=python)
        return json.loads(path.read_text())


def _bench(names: dict[str, str], *words: str) -> dict[str, float]:
    """Medians of ``envpool-py bench``, and the gains of the pool called ``ours``."""
    backends = [word for name in names for word in ("--backend", name)]
    rows = _rows("-m", "envpool_py", "bench", *words, *backends)
    rates: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        rates[names[row["pool"]]].append(row["steps"] / row["seconds"])
    found = {name: median(own) for name, own in rates.items()}
    gains = {f"gain_{name}": found["ours"] / rate for name, rate in found.items() if name != "ours"}
    return found | gains


# ---------------------------------------------------------------------------------- the pages


def text_of(value: float) -> str:
    """As pages show it: two digits of a ratio below ten, three digits of a rate."""
    return f"{value:.1f}" if value < 100 else separated(value)


def pages() -> list[Path]:
    """README and all pages."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def written(text: str, values: dict[str, float]) -> str:
    """The text of a page with these figures. KeyError: the file has no such figure."""
    return PLACE.sub(
        lambda place: f"<!--fig {place['key']}-->{text_of(values[place['key']])}<!--/fig-->", text
    )


def values_of(file: Path = FILE) -> dict[str, float]:
    """All figures by their key, such as ``simulator.ours``."""
    parts = json.loads(file.read_text(encoding="utf-8"))["parts"]
    return {f"{part}.{key}": value for part, own in parts.items() for key, value in own.items()}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, or write the figures into the pages."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=["measure", "write"])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART")
    args = parser.parse_args(argv)
    if args.action == "measure":
        found = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {"parts": {}}
        busy = measuring.busy_part(1.0) or 0.0
        for name in args.parts or [name for name in PARTS if name not in ON_REQUEST]:
            begun = time.monotonic()
            new = {key: float(f"{value:.4g}") for key, value in PARTS[name]().items()}
            num_cores = len(os.sched_getaffinity(0))
            before = found.setdefault("facts", {}).get(name, {})
            # Figures of one part are of one machine.
            old = found["parts"].get(name, {}) if before.get("cores") == num_cores else {}
            for key in old.keys() - new.keys():  # its library is not installed here
                print(f"{name}.{key}: not measured; the old figure is kept")
            found["parts"][name] = {**old, **new}
            facts = {"version": envpool_py.__version__, "cores": num_cores, "busy": round(busy, 2)}
            found["facts"][name] = facts
            FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            print(f"{name}: measured in {time.monotonic() - begun:.0f} s", flush=True)
    if own := json.loads(FILE.read_text(encoding="utf-8"))["parts"].get("cores"):
        scaling.PICTURE.write_text(scaling.drawn(own), encoding="utf-8")
    for page in pages():
        text = page.read_text(encoding="utf-8")
        page.write_text(written(text, values_of()), encoding="utf-8")


if __name__ == "__main__":
    main()
