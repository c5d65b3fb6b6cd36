"""Runs scripts, each in a process of its own that begins with PyTorch and simgrad imported: importing them takes longer
than most scripts.

Reads a line of JSON for each, {"script", "arguments", "out", "err"}, the last two paths of files, and answers with a
line that holds its exit code. It makes no client and starts no thread itself, so that a fork is whole.
"""

import json
import os
import sys
import types

import numpy  # noqa: F401
import torch

import simgrad.torch  # noqa: F401

torch.set_num_threads(1)


def become(asked):
    """What Python does with the text behind -c, with a line in front of it that imports sys."""
    for descriptor, path in ((1, asked["out"]), (2, asked["err"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    sys.argv = ["-", *asked["arguments"]]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile("import sys\n" + asked["script"], "<string>", "exec"), vars(main))


def answer():
    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            become(json.loads(line))
            return
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(code, flush=True)


answer()
