"""Errors of envs: what survives the way from another process, and how envs and exits are named.

`tests/faults/test_fault_table.py` has the class of the error of each exception.
"""

import copy
import errno
import json
import os
import pickle
import signal

import pytest

from envpool_py import EnvError, EnvTimeoutError, WorkerDiedError, errors
from envpool_py.env import failures
from envpool_py.env.failures import dumps_by_value
from tests.support import envs


def here(error):
    return failures.env_error(error, 3, "step")


def sent(error):
    """Send an exception as a worker process does."""
    return failures.unpack_failure(failures.pack_failure(error, "step"), 3)


BOTH = pytest.mark.parametrize("way", [here, sent])


@BOTH
def test_facts_outside_the_message_are_kept(way):
    missing = way(FileNotFoundError(errno.ENOENT, "no such file", "boom.txt"))
    assert missing.args == (errno.ENOENT, "no such file")
    assert (missing.errno, missing.filename) == (errno.ENOENT, "boom.txt")
    undecoded = way(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no start"))
    assert (undecoded.object, undecoded.start) == (b"\xff", 0)
    assert str(undecoded).startswith("env 3: step raised UnicodeDecodeError")
    assert way(envs.SlotError("boom", code=9)).code == 9
    noted = ValueError("boom")
    noted.details = noted.text = "its own"
    assert (type(way(noted).__cause__), way(noted).details) == (ValueError, "")
    assert isinstance(way(noted), ValueError)


def test_a_very_large_error_arrives_as_text():
    large = KeyError("x" * failures.LARGEST_EXCEPTION)
    error = sent(large)
    assert type(error) is EnvError
    assert failures.describe(large) in str(error)
    assert error.__cause__ is None
    assert isinstance(here(large), KeyError)


class OddError(Exception):
    __cause__ = property()

    def __str__(self):
        raise ZeroDivisionError

    with_traceback = __str__


@BOTH
def test_an_error_whose_methods_raise(way):
    error = way(OddError()).with_traceback(None)
    assert "OddError (its __str__ raises)" in str(error)
    assert type(error.__cause__) is OddError


def test_no_method_of_the_other_class_is_called_when_the_error_is_raised():
    kind = type("Odd", (ValueError,), {"with_traceback": None})
    assert isinstance(here(kind()).with_traceback(None), kind)


@pytest.mark.parametrize("duplicate", [copy.copy, lambda e: pickle.loads(pickle.dumps(e))])
def test_errors_can_be_copied_and_pickled(duplicate):
    for error in (here(KeyError("boom")), EnvTimeoutError("late", (1, 2), "step")):
        twin = duplicate(error)
        assert isinstance(twin, (KeyError, EnvTimeoutError))
        assert (str(twin), twin.env_ids, twin.request) == (str(error), error.env_ids, "step")


def test_several_errors_become_the_first_which_names_the_others():
    one, two = here(ValueError("one")), EnvError("env 5: step raised two\n\ntrace", (5,), "step")
    both = errors.combine([one, two])
    assert isinstance(both, ValueError)
    assert (one.env_ids, both.env_ids, both.args) == ((3,), (3, 5), ("one",))
    assert str(both).endswith("\nalso: env 5: step raised two")
    assert both.__cause__ is one.__cause__
    # Equal ones are one line.
    many = [EnvError(f"env {i}: step raised {'two' if i == 5 else 'one'}", (i,)) for i in range(9)]
    lines = ["envs 0, 1, 2, 3, 4, 6, 7, 8: step raised one", "also: env 5: step raised two"]
    assert str(errors.combine(many)).splitlines() == lines
    assert str(errors.combine(many[:4])) == "envs 0 to 3: step raised one"
    assert errors.combine(many[:4]).env_ids == (0, 1, 2, 3)
    # The envs of one process that died are named once; a timeout that is the reason comes first.
    died = [WorkerDiedError("envs 0 to 2: the process was killed", (0, 1, 2)) for _ in range(2)]
    late = EnvTimeoutError("env 1: took too long", (1,), "step")
    both = errors.combine([*died, late])
    assert isinstance(both, EnvTimeoutError)
    assert (both.message.partition("\n")[0], both.env_ids) == (late.message, (1, 0, 2))
    assert str(both).count("also: ") == 1


def test_code_that_is_pickled_by_value_keeps_its_file_and_line():
    """With every version of cloudpickle; `tests/faults/test_programs.py` has whole programs."""
    text = "def outer():\n    def inner():\n        raise ValueError('no')\n    return inner\n"
    names = {"__name__": "__main__"}  # else it is pickled by its name
    exec(compile(text, "/home/me/reacher.py", "exec"), names)
    for function in (names["outer"](), pickle.loads(dumps_by_value(names["outer"]))()):
        with pytest.raises(ValueError, match="no") as caught:
            pickle.loads(dumps_by_value(function))()
        assert failures.place_of(caught.value) == " (reacher.py:3)"


def test_the_line_is_the_last_one_of_the_user():
    user, given = "/usr/local/app/reacher.py", "<string>"
    packages = [json.decoder.__file__, f"{os.sep}lib{os.sep}site-packages{os.sep}a{os.sep}b.py"]
    ours, frozen = failures.__file__, "<frozen runpy>"
    for files, place in (
        ([ours, given, user, *packages, given, ours], " (reacher.py:2)"),
        ([user, user, packages[0]], " (reacher.py:1)"),
        ([given, given, *packages, frozen], " (<string>:1)"),
        ([packages[1], packages[0], frozen, ours], " (decoder.py:1)"),
        ([packages[0], packages[1]], " (b.py:1)"),
        ([frozen, ours], ""),
        ([], ""),
    ):
        assert failures.place_in([(file, line) for line, file in enumerate(files)]) == place


def test_how_ids_and_exits_are_named():
    ids = {(3,): "env 3", (0, 1, 2): "envs 0 to 2", (4, 1): "envs 4, 1"}
    assert [errors.name_ids(each) for each in ids] == list(ids.values())
    assert errors.name_ids([*range(0, 30, 2)]).endswith("16, 18, ...")
    exits = {-signal.SIGKILL: "was killed by SIGKILL", -250: "was killed by signal 250"}
    exits |= {37: "exited with code 37", None: "has ended"}
    assert [errors.name_exit(code) for code in exits] == list(exits.values())
