"""Errors of envs: what they are instances of, and what survives the way from another process."""

import copy
import errno
import pickle
import signal
import sys

import pytest

from envpool_py import EnvError, EnvTimeoutError, WorkerDiedError, errors
from tests.support import envs


def step(error):
    """Return the error with a traceback."""
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def here(error):
    return errors.env_error(step(error), 3, "step")


def sent(error):
    """Send an exception as a worker process does."""
    failure = errors.pack_failure(step(error))
    return errors.unpack_failure(pickle.loads(pickle.dumps(failure)), 3, "step")


BOTH = pytest.mark.parametrize("way", [here, sent])
PLAIN = ["exit", "interrupt", "stop", "generator-exit"]
if sys.version_info >= (3, 11):
    PLAIN.append("group")


@BOTH
@pytest.mark.parametrize("name", ["value", "slot", "memory", "recursion", "os"])
def test_an_error_is_an_instance_of_the_originals_class(way, name):
    original = envs.RAISE[name]()
    error = way(envs.RAISE[name]())
    assert isinstance(error, EnvError)
    assert isinstance(error, type(original))
    assert type(error.__cause__) is type(original)
    assert error.args == original.args
    assert (error.env_ids, error.env_id, error.request) == ((3,), 3, "step")
    assert str(error).startswith(f"env 3: step raised {errors.describe(original)}\n")
    assert "in step\n" in str(error)  # the traceback


@BOTH
@pytest.mark.parametrize("name", PLAIN)
def test_what_would_end_more_than_a_request_is_a_plain_env_error(way, name):
    error = way(envs.RAISE[name]())
    assert type(error) is EnvError
    assert type(error.__cause__) is type(envs.RAISE[name]())


@BOTH
def test_facts_outside_the_arguments_are_kept(way):
    missing = way(FileNotFoundError(errno.ENOENT, "no such file", "boom.txt"))
    assert (missing.errno, missing.filename) == (errno.ENOENT, "boom.txt")
    undecoded = way(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no start"))
    assert (undecoded.object, undecoded.start) == (b"\xff", 0)
    assert str(undecoded).startswith("env 3: step raised UnicodeDecodeError")
    assert way(envs.SlotError("boom", code=9)).code == 9


LARGE = "x" * errors.LARGEST_EXCEPTION
AS_TEXT = [envs.RAISE["unpicklable"], envs.RAISE["two-argument"], lambda: KeyError(LARGE)]


@pytest.mark.parametrize("make", AS_TEXT)
def test_what_cannot_be_sent_or_is_very_large_arrives_as_text(make):
    error = sent(make())
    assert type(error) is EnvError
    assert errors.describe(make()) in str(error)
    assert isinstance(error.__cause__, errors.RemoteTraceback)
    assert isinstance(here(make()), type(make()))


class NoTextError(Exception):
    def __str__(self):
        raise ZeroDivisionError


@BOTH
def test_an_error_whose_text_raises(way):
    assert "NoTextError (its __str__ raises)" in str(way(NoTextError()))


@pytest.mark.parametrize("duplicate", [copy.copy, lambda e: pickle.loads(pickle.dumps(e))])
@pytest.mark.parametrize("kind", [KeyError, EnvTimeoutError])
def test_errors_can_be_copied_and_pickled(duplicate, kind):
    error = here(KeyError("boom")) if kind is KeyError else kind("late", (1, 2), "step")
    twin = duplicate(error)
    assert isinstance(twin, kind)
    assert (str(twin), twin.env_ids, twin.request) == (str(error), error.env_ids, error.request)


def test_several_errors_become_the_first_which_names_the_others():
    one, two = here(ValueError("one")), EnvError("env 5: step raised two\n\ntrace", (5,), "step")
    assert errors.combine([one, two]) is one
    assert one.env_ids == (3, 5)
    assert str(one).endswith("\nalso: env 5: step raised two")
    # The envs of one process that died are named once; a timeout that is the reason comes first.
    died = [WorkerDiedError("envs 0 to 2: the process was killed", (0, 1, 2)) for _ in range(2)]
    late = EnvTimeoutError("env 1: took too long", (1,), "step")
    assert errors.combine([*died, late]) is late
    assert late.env_ids == (1, 0, 2)
    assert str(late).count("also: ") == 1


def test_how_ids_and_exits_are_named():
    ids = {(3,): "env 3", (0, 1, 2): "envs 0 to 2", (4, 1): "envs 4, 1"}
    assert [errors.name_ids(each) for each in ids] == list(ids.values())
    assert errors.name_ids([*range(0, 30, 2)]).endswith("16, 18, ...")
    exits = {-signal.SIGKILL: "was killed by SIGKILL", -250: "was killed by signal 250"}
    exits |= {37: "exited with code 37", None: "has ended"}
    assert [errors.name_exit(code) for code in exits] == list(exits.values())
