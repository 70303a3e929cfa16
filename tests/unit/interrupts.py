"""Ctrl-C, and other signals, at any step of a call."""

import gc
import sys
from collections.abc import Callable
from types import FrameType

from inorder.errors import InorderError


def is_interrupted(call: Callable[[], object], step: int, *modules: str) -> bool:
    """Press Ctrl-C when the call makes so many steps in modules whose names begin so, all of ours unless told.

    Python looks for it where functions begin, and behind others.
    """
    steps, within = 0, modules or ("inorder.",)

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal steps
        if event in ("call", "c_return") and frame.f_globals["__name__"].startswith(within):
            steps += 1
            if steps == step:
                raise KeyboardInterrupt

    gc.disable()  # what it finds, by chance, may make steps of ours too, and what is raised in those is only told
    tell = sys.unraisablehook
    sys.unraisablehook = lambda told: None if told.exc_type is KeyboardInterrupt else tell(told)
    sys.setprofile(count)
    try:
        call()
    except (KeyboardInterrupt, InorderError):
        return True
    finally:
        sys.setprofile(None)
        sys.unraisablehook = tell
        gc.enable()
    return steps >= step  # in what Python ends by itself, as a generator that nobody needs any more: then it goes on


def is_signalled(call: Callable[[], object], step: int, handler: Callable[[], object], *modules: str) -> bool:
    """Have a signal handled when the call makes so many steps in such modules; whether it makes as many.

    Python also looks for it where loops go round, which is before whatever they call.
    """
    steps = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal steps
        if event in ("call", "c_call", "c_return") and frame.f_globals["__name__"].startswith(modules):
            steps += 1
            if steps == step:
                handler()

    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    return steps >= step
