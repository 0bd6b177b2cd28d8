"""``envpool-py show``: print the contents of a folder of episodes or of a record."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from rich import filesize

from envpool_py.cli.arguments import exact, report
from envpool_py.cli.naming import UsageError
from envpool_py.cli.tables import figures, show_table
from envpool_py.collector import load
from envpool_py.record import file_format

HELP = "print the contents of a folder of episodes or of a record"
EPILOG = "example: envpool-py show cartpole"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a folder of collect --out, or a record")


def run(args: argparse.Namespace) -> int:
    path = Path(args.file)
    try:
        is_record = path.is_file() and file_format.is_record(path)
        facts = _of_record(path) if is_record else _of_episodes(path)
    except OSError as error:
        raise UsageError(f"{args.file}: {error.strerror}") from None
    except ValueError as error:
        if is_record or path.is_dir():
            raise UsageError(str(error)) from None
        raise UsageError(f"{args.file}: neither a folder of episodes nor a record") from None
    rows = ((name.replace("_", " "), _text(name, value)) for name, value in facts.items())
    report(args, facts, lambda: show_table(rows))
    return 0


def _of_episodes(path: Path) -> dict[str, Any]:
    episodes = load(path, mmap=True)
    return {
        "kind": "episodes",
        **{"env" if name == "env_id" else name: each for name, each in episodes.metadata.items()},
        "observation_space": str(episodes.observation_space),
        "action_space": str(episodes.action_space),
        "episodes": len(episodes),
        "steps": int(episodes.lengths.sum()),
        "failed": int(episodes.failed.sum()),
        "returns": episodes.returns.sum(axis=tuple(range(1, episodes.returns.ndim))).tolist(),
        "lengths": episodes.lengths.tolist(),
        "bytes": sum(file.stat().st_size for file in path.iterdir()),
    }


def _of_record(path: Path) -> dict[str, Any]:
    header, events = file_format.read(path)
    rewards: dict[int, list[float]] = {}  # of running episodes
    returns: list[float] = []
    lengths: list[int] = []
    errors: list[str] = []
    seeds: dict[int, int | None] = {}
    steps, restarts, complete = 0, 0, False
    resets_itself = header["autoreset_mode"] == "next_step"
    for kind, ids, data in events:
        complete = kind == file_format.CLOSED
        if kind in (file_format.RAISED, file_format.RECOVERED):
            errors += [text.partition("\n")[0] for _, text, _, _ in data]
            restarts += len(ids) if kind == file_format.RECOVERED else 0
        elif kind == file_format.REQUESTS:
            for i, (request, _, kwargs, *_) in zip(ids, data, strict=True):
                if request in ("reset", "seed"):
                    seeds.setdefault(i, kwargs.get("seed"))
                    rewards.pop(i, None)
        elif kind in (file_format.ROWS, file_format.RESET_ROWS):
            for i, row in zip(ids, data, strict=True):
                if i not in rewards:  # the row of a reset
                    rewards[i] = []
                    continue
                steps += 1
                rewards[i].append(float(np.sum(row.reward)))
                if row.terminated or row.truncated:
                    episode = rewards.pop(i)
                    returns.append(sum(episode))
                    lengths.append(len(episode))
                    if not resets_itself:  # else the next row is that of a reset
                        rewards[i] = []
    return {
        "kind": "record",
        **(header["env"] if file_format.is_env(header.get("env")) else {}),
        **{name: header[name] for name in ("pool", "num_envs", "autoreset_mode", "on_error")},
        **{name: header[name] for name in ("observations", "actions")},
        "seeds": [seeds.get(i) for i in range(header["num_envs"])],
        "episodes": len(returns),
        "steps": steps,
        "returns": returns,
        "lengths": lengths,
        "restarts": restarts,
        "errors": errors,
        "complete": complete,
        "bytes": path.stat().st_size,
    }


def _text(name: str, value: Any) -> str:
    if name in ("returns", "lengths"):
        return figures(value)
    if isinstance(value, dict):
        return ", ".join(f"{key}={each}" for key, each in value.items()) or "-"
    if name == "errors":
        counts = Counter(value).items()
        return "\n".join(f"{text}; {n} times" if n > 1 else text for text, n in counts) or "none"
    if isinstance(value, list):
        return ", ".join([*map(str, value[:8]), *["..."] * (len(value) > 8)]) or "-"
    if value is None:
        return "-"
    if name in ("episodes", "steps", "failed", "restarts", "num_envs"):
        return exact(value)
    return filesize.decimal(value) if name == "bytes" else str(value)
