"""Blocks in which signal handlers are deferred, and what tells an interrupt from an error."""

import asyncio
import contextlib
import functools
import gc
import os
import signal
import sys
import threading
import traceback
import weakref

import numpy as np
import pytest

from envpool_py import interrupts
from envpool_py.interrupts import deferred, is_interrupt, kept_from_children, ordinary
from tests.faults.helpers import HANDLERS, handling, raising

FIRST, SECOND = signal.SIGUSR1, signal.SIGUSR2


def installed():
    return {signum: signal.getsignal(signum) for signum in signal.valid_signals()}


def caught(call):
    """Return what a call raises; its frames have ended then."""
    with pytest.raises(BaseException) as info:  # noqa: PT011 - whatever it is
        call()
    return info.value


def in_a_block(seen, signums=(FIRST,)):
    """Send signals to this process in a block, and note that the block reaches its end."""
    with deferred():
        for signum in signums:
            signal.raise_signal(signum)
        seen.append("its end")


@pytest.fixture(autouse=True)
def nothing_stays():
    """Every handler is the one from before the test, and no block is under way."""
    before = installed()
    yield
    assert installed() == before
    assert interrupts._deferrals == []


@pytest.fixture
def calls():
    """Return the list to which the handlers of two signals append them."""
    seen = []

    def note(signum, frame):
        assert frame is not None
        seen.append(signum)

    with handling(FIRST, note), handling(SECOND, note):
        yield seen


# -------------------------------------------------------------------------------- deferred


def test_handlers_run_after_the_block_in_the_order_of_the_signals(calls):
    with deferred():
        for signum in (SECOND, FIRST, SECOND):
            signal.raise_signal(signum)
        assert calls == []
    assert calls == [SECOND, FIRST, SECOND]


def test_a_block_within_a_block_does_nothing(calls):
    with deferred():
        with deferred():
            signal.raise_signal(FIRST)
        assert calls == [], "the inner block has called handlers"
        signal.raise_signal(SECOND)
        assert calls == []
    assert calls == [FIRST, SECOND]
    with deferred():  # the next block is deferred again
        signal.raise_signal(FIRST)
        assert calls == [FIRST, SECOND]
    assert calls == [FIRST, SECOND, FIRST]


def test_a_block_in_another_thread_does_nothing(calls, beside):
    entered, leave = threading.Event(), threading.Event()

    def hold():
        before = installed()
        with deferred():
            assert installed() == before
            entered.set()
            assert leave.wait(60)

    helper = beside(hold)
    assert entered.wait(60)
    signal.raise_signal(FIRST)
    assert calls == [FIRST], "the block of another thread has deferred the handler"
    with deferred():
        signal.raise_signal(SECOND)
        leave.set()
        helper.finish()
        assert calls == [FIRST], "the other thread's block has ended this one"
    assert calls == [FIRST, SECOND]


def test_a_forked_child_handles_its_signals_at_once(calls):
    """Ctrl-C excepted: the terminal sends it to the whole group, the program too."""
    interrupt = handling(signal.SIGINT, raising(KeyboardInterrupt))
    with interrupt, deferred(), kept_from_children("fork"):
        pid = os.fork()
        if pid == 0:
            status = 0
            try:
                signal.raise_signal(signal.SIGINT)
                status += 1
                signal.raise_signal(FIRST)
                status += 2 * (calls == [FIRST])
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    assert calls == []


def test_all_handlers_run_and_the_first_error_is_raised(calls):
    first, second, seen = TimeoutError("first"), TimeoutError("second"), []
    with handling(FIRST, raising(first)), handling(signal.SIGHUP, raising(second)):
        signums = (SECOND, FIRST, SECOND, signal.SIGHUP, SECOND)
        assert caught(lambda: in_a_block(seen, signums)) is first
    assert (calls, seen) == ([SECOND] * 3, ["its end"])


def a_block_that_fails():
    with deferred():
        signal.raise_signal(FIRST)
        raise LookupError("of the block")


def test_the_error_of_the_block_comes_out_after_the_handlers_unless_one_of_them_raises(calls):
    with pytest.raises(LookupError, match="of the block"):
        a_block_that_fails()
    assert calls == [FIRST]
    error = TimeoutError("mine")
    with handling(FIRST, raising(error)):
        assert caught(a_block_that_fails) is error
    assert "of the block" in str(error.__context__)


def test_a_handler_may_use_a_block_and_send_a_signal(calls):
    def handle(signum, frame):  # noqa: ARG001 - of a handler
        with deferred():
            signal.raise_signal(SECOND)
            assert calls == []

    with handling(FIRST, handle), deferred():
        signal.raise_signal(FIRST)
    assert calls == [SECOND]


def test_a_handler_that_is_installed_in_the_block_stays(calls):
    """It is not called for a signal that came before; the one of that time is."""
    later = []
    with handling(FIRST, signal.getsignal(FIRST)):
        with deferred():
            signal.raise_signal(FIRST)
            signal.signal(FIRST, lambda *_: later.append(FIRST))
            assert later == []
            signal.raise_signal(FIRST)
            assert (calls, later) == ([], [FIRST])
        assert (calls, later) == ([FIRST], [FIRST])
        signal.raise_signal(FIRST)
        assert (calls, later) == ([FIRST], [FIRST, FIRST])


def test_a_handler_that_was_read_in_the_block_calls_the_users(calls):
    """As by code that puts back, after the block, what it replaced in the block."""
    with handling(FIRST, signal.getsignal(FIRST)):
        with deferred():
            read = signal.signal(FIRST, signal.SIG_IGN)
        signal.signal(FIRST, read)
        signal.raise_signal(FIRST)
        assert calls == [FIRST]
        with deferred():
            signal.raise_signal(FIRST)
            assert calls == [FIRST], "it is not deferred"
        assert calls == [FIRST, FIRST]


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_signals_without_a_handler_are_left_alone(handler):
    # A handler that C code has installed, such as that of faulthandler, is SIG_DFL for Python.
    with handling(signal.SIGCHLD, handler), deferred():
        assert signal.getsignal(signal.SIGCHLD) is handler
        signal.raise_signal(signal.SIGCHLD)


def test_ctrl_c_comes_out_after_the_block():
    seen = []
    with handling(signal.SIGINT, signal.default_int_handler):
        assert type(caught(lambda: in_a_block(seen, [signal.SIGINT]))) is KeyboardInterrupt
        assert seen == ["its end"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_callback_of_an_event_loop_runs_once():
    seen = []

    async def main():
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(FIRST, seen.append, FIRST)
        loop.add_signal_handler(SECOND, over.set)
        with deferred():
            signal.raise_signal(FIRST)
        assert seen == [], "the loop calls it"
        signal.raise_signal(SECOND)  # the loop reads the signals in order
        await asyncio.wait_for(over.wait(), 60)
        assert seen == [FIRST]

    with handling(FIRST, signal.SIG_DFL), handling(SECOND, signal.SIG_DFL):
        asyncio.run(main())
    assert seen == [FIRST]


# ---------------------------------------------------------------------------- is_interrupt


def interrupted():
    signal.raise_signal(FIRST)
    return 0


def in_a_task():
    async def wait():
        await asyncio.sleep(0)
        interrupted()

    async def main():
        await asyncio.gather(wait(), asyncio.sleep(0))

    asyncio.run(main())


def raised_again():
    try:
        interrupted()
    except Exception:
        gc.collect()
        raise


def raised_again_later():
    raise caught(interrupted)


SCENES = {
    "at once": interrupted,
    "below C code": lambda: sorted([1], key=lambda _: interrupted()),
    "in a module": lambda: exec("import signal\nsignal.raise_signal(signal.SIGUSR1)", {}),
    "in a class": lambda: exec("class A:\n    call()", {"call": interrupted}),
    "in a generator": lambda: list(interrupted() for _ in "a"),  # noqa: C400 - no comprehension
    "in a task": in_a_task,
    "raised again": raised_again,
    "raised again later": raised_again_later,
    "in a block": lambda: in_a_block([]),
}


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("kind", HANDLERS)
def test_what_a_handler_raises_is_an_interrupt(kind, scene):
    error = TimeoutError("mine")
    with handling(FIRST, HANDLERS[kind](error)):
        assert caught(SCENES[scene]) is error
        assert is_interrupt(error)
        assert not isinstance(signal.getsignal(FIRST), interrupts._Deferral)
    if kind != "deletes its arguments":
        assert is_interrupt(error), "it is recognised by a handler that is installed"


def test_what_an_installed_handler_raises_is_recognised_within_a_block():
    with handling(FIRST, HANDLERS["deletes its arguments"](TimeoutError("mine"))):
        error = caught(interrupted)
        with deferred():
            assert is_interrupt(error)


def test_ctrl_c_is_an_interrupt_wherever_it_comes_from():
    assert is_interrupt(KeyboardInterrupt())
    with handling(signal.SIGINT, signal.default_int_handler):
        assert is_interrupt(caught(lambda: signal.raise_signal(signal.SIGINT)))


def fail(*_):
    raise LookupError("of an env")


def given_a_frame(*before):
    """Return a call of a function of a user that is given a frame, after other arguments."""
    return lambda: fail(*before, sys._getframe())


def of_the_env_itself():
    """An env that catches what it should not, and fails."""
    try:
        interrupted()
    except TimeoutError as error:
        raise LookupError("of an env") from error


def with_changed_arguments(self, *args):  # noqa: ARG001 - of a method
    args = 3  # noqa: F841 - which is_interrupt sees
    fail()


ERRORS = {
    "plain": fail,
    "C code": [].pop,
    "frame": given_a_frame(),
    "text, frame": given_a_frame("line"),
    "number, frame": given_a_frame(10**6),
    "flag, frame": given_a_frame(True),
    "stack": lambda: [fail(*pair) for pair in traceback.walk_stack(sys._getframe())],
    "signal, no frame": lambda: fail(FIRST, None),
    "signal, a frame further out": functools.partial(fail, FIRST, sys._getframe()),
    "arguments are a number": functools.partial(with_changed_arguments, 1, 2),
    "of the env itself": of_the_env_itself,
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_of_an_env_is_not_an_interrupt(name):
    with handling(FIRST, raising(TimeoutError("mine"))):
        error = caught(ERRORS[name])
        assert isinstance(error, LookupError)
        assert not is_interrupt(error)


def test_an_error_that_was_never_raised_is_not_an_interrupt():
    assert not is_interrupt(TimeoutError())


class ReferableError(Exception):
    """Can be referred to weakly, unlike errors of built-in classes."""


def test_an_error_that_was_looked_at_goes_at_once():
    """So that what its frames hold, envs and their windows, goes with it."""

    def look(first, second):  # noqa: ARG001 - a handler has two
        try:
            handle()
        except ReferableError as error:
            is_interrupt(error)
            return weakref.ref(error)

    def defer():
        try:
            with deferred():
                signal.raise_signal(FIRST)
                signal.raise_signal(FIRST)
        except ReferableError as error:
            return weakref.ref(error)

    def handle(*_):
        raise ReferableError

    gc.disable()
    try:
        assert look(1, 2)() is None
        with handling(FIRST, handle):
            assert defer()() is None
    finally:
        gc.enable()


# -------------------------------------------------------------------------------- ordinary


@pytest.mark.parametrize(
    ("kinds", "is_caught"),
    [((), True), ((LookupError,), True), ((OSError, KeyError), False), ((TypeError,), False)],
)
def test_ordinary_errors_are_caught_by_their_class(kinds, is_caught):
    was_caught = False
    with contextlib.suppress(LookupError):
        try:
            fail()
        except ordinary(*kinds):
            was_caught = True
    assert was_caught == is_caught


@pytest.mark.parametrize("kinds", [(), (TimeoutError,), (BaseException,)])
def test_an_interrupt_passes(kinds):
    def call():
        with contextlib.suppress(ZeroDivisionError):
            try:
                interrupted()
            except ordinary(*kinds):
                pytest.fail("it was caught")

    error = TimeoutError("mine")
    with handling(FIRST, raising(error)):
        assert caught(call) is error


def test_an_error_of_c_code_of_the_block_itself_is_ordinary():
    try:
        np.zeros(2)[:] = np.zeros(3)
    except ordinary(ValueError) as error:
        assert error.__traceback__.tb_next is None  # noqa: PT017 - the case that is meant
    else:
        pytest.fail("no error")
