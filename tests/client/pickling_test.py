"""Worlds and controllers of decorators go to other processes: by name, or as the program that they write."""

import copy
import multiprocessing
import pickle
import subprocess
import sys

import numpy as np
import pytest

import simgrad as sg
from simgrad.v1.program_pb2 import INPUT_KIND_PARAM

MAIN = """
import multiprocessing
import simgrad as sg

@sg.world
def decay(x: sg.State, k: sg.Param[2] = (0.5, 0.1), h: sg.Config = 0.1):
    return x - h * k[0] * x

@sg.controller
def hold(x, gain: sg.Param = 0.0):
    return gain * x

def told(given):
    world = isinstance(given, sg.World)
    return type(given).__name__, given.program.SerializeToString(deterministic=True) if world else given.name

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for given in (decay, decay(h=0.2), hold):
            assert pool.map(told, [given]) == [told(given)], given
"""


@sg.world
def decay(x: sg.State, k: sg.Param[2] = (0.5, 0.1), u: sg.Control = 0.0, h: sg.Config = 0.1):
    return x - h * k[0] * x + u


@decay.objective
def end(x):
    return x * x


@sg.controller
def hold(x, gain: sg.Param = 0.0):
    return gain * x


def local_world():
    @sg.world(name="grown")
    def grow(x: sg.State[2], k: sg.Param[2] = np.array([1.0, 2.0])):
        return x * sg.test("large", k > 1).astype(float)

    return grow


def program_of(world):
    return world.program.SerializeToString(deterministic=True)


def again(given):
    return pickle.loads(pickle.dumps(given))


def told(given):
    return type(given).__name__, program_of(given) if isinstance(given, sg.World) else given.name


def test_a_name_in_a_module_stands_for_what_is_there():
    assert again(decay) is decay and again(hold) is hold
    other = again(decay(h=0.5))
    assert program_of(other) == program_of(decay(h=0.5)) != program_of(decay)
    assert program_of(other(h=0.1)) == program_of(decay)
    assert len(pickle.dumps(decay)) < 200


def test_another_process_reads_them():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for given in (decay, decay(h=0.5), hold, local_world(), sg.compose(decay, hold), sg.compose(decay, lambda x: -x)):
            assert pool.apply(told, (given,))[1] == told(given)[1]


def test_a_script_and_its_workers_read_them(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(MAIN)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_world_of_a_main_module_is_read_where_that_is_another(tmp_path):
    script, file = tmp_path / "script.py", tmp_path / "world.pickle"
    dumps = f"import pickle, pathlib\npathlib.Path({str(file)!r}).write_bytes(pickle.dumps(decay))\n"
    script.write_text(MAIN.partition("if __name__")[0] + dumps)
    subprocess.run([sys.executable, script], check=True, timeout=60)
    world = pickle.loads(file.read_bytes())
    assert world.name == "decay" and world.array_defaults == {INPUT_KIND_PARAM: {"k": (0.5, 0.1)}}


def test_a_local_world_is_the_program_that_it_writes():
    world = local_world()
    other = again(world)
    assert program_of(other) == program_of(world) and other.name == "grown"
    assert other.lines_of_sites() == world.lines_of_sites() != {}
    assert other.array_defaults[INPUT_KIND_PARAM]["k"].tolist() == [1.0, 2.0]


def test_a_world_that_its_module_does_not_make_is_the_program_that_it_writes():
    """A cost that was added here is not there where the module is imported; nor is a name that stands for another."""
    world = decay()

    @world.objective
    def added(x):
        return x

    assert [o.name for o in again(world).program.objectives] == ["end", "added"]
    renamed = sg.world(name="decay")(decay._function)
    assert program_of(again(renamed)) == program_of(renamed)


def test_a_composed_world_keeps_the_numbers_of_its_controller():
    composed = sg.compose(decay, lambda x: -x)
    assert program_of(again(composed)) == program_of(composed)
    assert again(composed).array_defaults == composed.array_defaults
    assert again(sg.compose(decay, hold)).controllers == (hold,)


def test_a_local_controller_says_that_it_is_local():
    @sg.controller
    def local(x):
        return x

    with pytest.raises((AttributeError, pickle.PicklingError), match="local"):
        pickle.dumps(local)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copies_are_of_the_same_kind(copied):
    for given in (decay, local_world(), hold, sg.compose(decay, lambda x: -x)):
        made = copied(given)
        assert type(made) is type(given) and made is not given
        if isinstance(given, sg.World):
            assert program_of(made) == program_of(given)


def test_a_client_is_made_in_each_process():
    with sg.Client("localhost:1") as client, sg.Pool(["localhost:1"]) as pool:
        for connected in (client, pool):
            with pytest.raises(TypeError, match=f"a {type(connected).__name__} holds connections.*make one in each process"):
                pickle.dumps(connected)
