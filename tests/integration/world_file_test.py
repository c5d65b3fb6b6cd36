"""Worlds written to files and read again are the same worlds; whole numbers are numbers."""

import numpy as np
import pytest
from result_bits import bits_of

import simgrad as sg
from simgrad import command_line

TABLE = np.linspace(-1.0, 1.0, 6).reshape(2, 3)


@sg.world
def spring(x: sg.State[2], k: sg.Param[2, 3] = TABLE, h: sg.Config = 0.125):
    stretched = sg.test("stretched", abs(x) > 0.5)
    return sg.where(stretched, x - h * k.sum(axis=1) * x, 0.5 * x)


@spring.objective
def end(x):
    return np.sum(x)


RUN = dict(steps=4, initial={"x": [[0.75, -0.25]]}, objective="end")


def test_a_world_of_a_function_is_the_same_from_its_file(client, tmp_path, capsys, server):
    path = tmp_path / "spring.txtpb"
    spring(h=0.25).save(path)
    loaded = sg.World.load(path)
    assert loaded.name == "spring" and "spring" in repr(loaded)
    before, after = client.gradient(spring(h=0.25), **RUN), client.gradient(loaded, **RUN)
    assert bits_of(before) == bits_of(after)
    assert after.program.fingerprint == before.program.fingerprint
    assert after.events["stretched"].line == before.events["stretched"].line != ""
    told = ["--world", str(path), "--steps", "4", "--initial", "x=0.75,-0.25", "--target", server.target]
    assert command_line.main(["rollout", *told]) == 0
    assert "event stretched" in capsys.readouterr().out


def test_a_built_in_world_is_saved_with_its_configuration(client, tmp_path):
    ball = sg.World("bouncing_ball", contact="toi", clamp=False)
    ball.save(tmp_path / "ball.txtpb")
    loaded = sg.World.load(tmp_path / "ball.txtpb")
    assert repr(loaded) == repr(ball)
    run = dict(steps=9, initial={"y": [0.1], "v": [0.0]}, params={"k": 1.0})
    assert bits_of(client.rollout(loaded, **run)) == bits_of(client.rollout(ball, **run))


@pytest.mark.parametrize(
    ("text", "told"),
    [("steps: 3", "names no world"), ("a poem", "no world that World.save wrote"), ("", "names no world")],
)
def test_another_file_is_refused(tmp_path, text, told):
    path = tmp_path / "other.txtpb"
    path.write_text(text)
    with pytest.raises(ValueError, match=told):
        sg.World.load(path)


def test_whole_numbers_are_sent_as_reals_where_reals_are_asked_for(client):
    ball = sg.World("bouncing_ball", elements=3)
    run = dict(steps=2, params={"k": 1})
    whole = client.rollout(ball, initial={"y": np.arange(3), "v": np.int32([0, 1, 2])}, **run)
    real = client.rollout(ball, initial={"y": [0.0, 1.0, 2.0], "v": [0.0, 1.0, 2.0]}, **run)
    assert bits_of(whole) == bits_of(real)
    with pytest.raises(ValueError, match="y: whole numbers beyond 2\\^53"):
        client.rollout(ball, initial={"y": np.array([0, 1, 2**53 + 1]), "v": [0, 1, 2]}, **run)
