"""The command line against a running server."""

import json
import shlex
import subprocess
import sys

import numpy as np
import pytest

from simgrad import command_line

DEPRESSURIZATION = [
    "--world",
    "boundary_projection",
    "--config",
    "elements=9",
    "--config",
    "tol=0x1.06p-10",
    "--steps",
    "4",
    "--initial",
    "y=-0x1.04p-10" + 8 * ",-0x1p-20",
    "--param",
    "k=0.5",
]


def run(capsys, server, *arguments, code=0):
    assert command_line.main([*arguments, "--target", server.target]) == code
    return capsys.readouterr().out


def test_info_worlds_and_program_are_for_people_and_machines(capsys, server):
    assert "simgrad" in run(capsys, server, "info")
    info = json.loads(run(capsys, server, "info", "--json"))
    assert info["port"] == server.port and "bouncing_ball" in info["worlds"]
    assert isinstance(info["limits"]["max_steps"], int)
    shown = run(capsys, server, "worlds")
    assert "config contact" in shown and "state y[elements]: height [m]" in shown and "param k[]:" in shown
    names = [w["name"] for w in json.loads(run(capsys, server, "worlds", "--json"))["worlds"]]
    assert names == info["worlds"]
    text = run(capsys, server, "program", "--world", "bouncing_ball", "--policy", "f16_safe")
    described = json.loads(
        run(capsys, server, "program", "--world", "bouncing_ball", "--policy", "f16_safe", "--json")
    )
    assert (
        text.rstrip("\n") == described["text"].rstrip("\n") and len(described["fingerprint"]) == 64
    )
    assert described["policy"]["roles"]["termination"]["format"] == "f32"


def test_rollout_and_gradient_tell_the_depressurization(capsys, server):
    for preset, iterations, connected in (
        ("f32", 1, 1),
        ("bf16_unsafe", 0, 0),
        ("bf16_safe", 1, 1),
    ):
        answer = json.loads(
            run(
                capsys,
                server,
                "gradient",
                *DEPRESSURIZATION,
                "--policy",
                preset,
                "--objective",
                "final_penetration",
                "--diagnostics",
                "instances",
                "--wrt",
                "k",
                "--json"
            )
        )
        assert answer["sites"]["projection"]["iterations"][0] == [iterations]
        assert answer["connected"] == {"k": connected} and list(answer["gradients"]["params"]) == [
            "k"
        ]
    text = run(
        capsys,
        server,
        "rollout",
        *DEPRESSURIZATION,
        "--record",
        "y",
        "--objective",
        "final_penetration"
    )
    assert "site projection" in text and "trajectory y" in text and "value" in text


def test_text_says_in_sentences_what_happened(capsys, server):
    ball = ["--world", "bouncing_ball", "--config", "contact=toi", "--steps", "60", "--initial", "y=0.5"]
    text = run(capsys, server, "rollout", *ball, "--initial", "v=0")
    assert "event contact: 1 of 60 checks true, first at step 31" in text
    assert max(map(len, text.splitlines())) < 200


def test_weights_instances_and_cotangents_are_sent(capsys, server, tmp_path):
    ball = ["--world", "bouncing_ball", "--steps", "3", "--initial", "v=0", "--json", "--config", "contact=toi"]
    np.save(tmp_path / "y.npy", np.array([[0.5], [0.75]]))
    heights = ["--initial", f"y=@{tmp_path / 'y.npy'}"]
    weighed = ["--objective", "final_height", "--weights", "2,-1", "--param", "k=1"]
    rollout = json.loads(run(capsys, server, "rollout", *ball, *heights, *weighed))
    assert rollout["value"] == pytest.approx(2 * rollout["values"][0] - rollout["values"][1], rel=1e-6)
    gradient = json.loads(run(capsys, server, "gradient", *ball, *heights, *weighed))
    assert gradient["gradients"]["initial"]["y"] == [[2.0], [-1.0]]
    several = json.loads(
        run(capsys, server, "rollout", *ball, "--initial", "y=0.5", "--instances", "3", "--first-instance", "7")
    )
    assert several["instances"] == 3
    pulled = json.loads(
        run(capsys, server, "gradient", *ball, "--initial", "y=0.5", "--cotangent", "y=4")
    )
    assert pulled["gradients"]["initial"]["y"] == [4.0]


def test_arrays_come_as_bits_where_raw_asks_for_them(capsys, server, tmp_path):
    ball = ["rollout", "--world", "bouncing_ball", "--config", "contact=toi", "--steps", "3", "--initial", "y=0.5", "--initial", "v=0",
            "--policy", "bf16_unsafe"]
    read = []
    for more in ([], ["--raw"]):
        run(capsys, server, *ball, *more, "--output", str(tmp_path / "run.npz"))
        read.append(np.load(tmp_path / "run.npz")["state.y"])
    exact, raw = read
    assert exact.dtype == np.float32 and raw.dtype == np.uint16
    assert (raw.astype(np.uint32) << 16).view(np.float32).tolist() == exact.tolist()


def test_a_seed_draws_other_numbers(capsys, server, tmp_path):
    world = tmp_path / "walk.py"
    world.write_text("import simgrad as sg\n\n\n@sg.world\ndef walk(x: sg.State):\n    return {'x': x + sg.normal()}\n")
    work = ["rollout", "--world", f"{world}:walk", "--steps", "3", "--initial", "x=0", "--json"]
    at = lambda *seed: json.loads(run(capsys, server, *work, *seed))["state"]
    assert at() == at("--seed", "0") == at()
    assert at("--seed", "7") == at("--seed", "7") != at()


def test_role_overrides_and_loss_scale_reach_the_server(capsys, server):
    answer = json.loads(
        run(
            capsys,
            server,
            "rollout",
            *DEPRESSURIZATION,
            "--policy",
            "bf16_unsafe",
            "--role",
            "termination.format=f32",
            "--site",
            "projection.order=exact",
            "--loss-scale",
            "4",
            "--json"
        )
    )
    assert (
        answer["policy"]["roles"]["termination"]["format"] == "f32"
        and answer["policy"]["loss_scale"] == 4
    )


def test_a_refusal_exits_with_1_and_names_the_field(capsys, server):
    out = run(capsys, server, "rollout", *DEPRESSURIZATION, "--policy", "f8", "--json", code=1)
    assert json.loads(out)["error"]["field"].endswith("policy.preset")


def test_a_non_finite_instance_exits_with_4_where_asked(capsys, server):
    arguments = [
        "rollout",
        "--world",
        "boundary_projection",
        "--steps",
        "2",
        "--initial",
        "y=nan",
        "--param",
        "k=1",
    ]
    answer = json.loads(run(capsys, server, *arguments, "--fail-on-nonfinite", "--json", code=4))
    assert answer["ok"] == 0 and answer["certificates"]
    run(capsys, server, *arguments)


def test_json_of_a_gradient_leaves_nothing_out(capsys, server):
    arguments = ["gradient", *DEPRESSURIZATION, "--objective", "final_penetration"]
    arguments[arguments.index("k=0.5")] = "k=nan"
    answer = json.loads(run(capsys, server, *arguments, "--site", "projection.order=exact", "--json"))
    assert answer["ok"] == 0 and answer["health"] == [
        {"instance": 0, "phase": "input", "step": 0, "stopped": False}
    ]
    assert len(answer["sites"]["projection"]["checks"]) == 4
    assert len(answer["backward"]["largest"]) == 4 and "ranges" in answer["backward"]
    assert answer["states_range"]["y"]["steps"] == [3] and "ranges" in answer
    assert answer["policy"]["sites"]["projection"]["order"] == "exact"


def test_the_examples_of_the_help_run(capsys, server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    positions = np.array([[0.0, 0, 0], [1.2, 0, 0], [0, 1.2, 0], [0, 0, 1.2]])
    np.save("positions.npy", positions)
    np.save("speeds.npy", 0 * positions)
    text = command_line._EXAMPLES.partition("examples:\n")[2].partition("\n\n")[0]
    for line in text.replace("\\\n", " ").splitlines():
        assert run(capsys, server, *shlex.split(line)[1:]), line
    written = np.load("run.npz")
    assert written["ok"].all() and written["state.x"].shape == (1, 4, 3)
    assert np.abs(written["state.x"][0] - positions).max() > 1e-4


def test_arrays_are_written_where_asked(capsys, server, tmp_path):
    file = tmp_path / "out.npz"
    arguments = [*DEPRESSURIZATION, "--objective", "final_penetration", "--record", "y"]
    told = json.loads(
        run(capsys, server, "gradient", *arguments, "--json", "--output", str(file))
    )
    arrays = np.load(file)
    assert arrays["trajectory.y"].shape == (1, 5, 9) and arrays["initial.y"].shape == (9,)
    assert float(arrays["params.k"]) == told["gradients"]["params"]["k"] and float(arrays["value"]) == told["value"]


def test_an_input_that_is_given_twice_is_refused(capsys, server):
    arguments = ["rollout", *DEPRESSURIZATION, "--param", "k=0.25", "--target", server.target]
    assert command_line.main(arguments) == command_line.EXIT_USAGE
    assert "--param k is given twice" in capsys.readouterr().err


def test_whole_numbers_of_a_configuration_read_as_such(capsys, server):
    assert "config max_iter = 25:" in run(capsys, server, "worlds")


FALLING = """
import numpy as np
import simgrad as sg

@sg.world
def fall(x: sg.State, push: sg.Control = 0.0):
    x = 0.5 * x + push
    sg.halt("fell", x < 0.1, error=True)
    return x

@fall.objective
def fin(x):
    return x

def sized(sizes=(1,)):
    @sg.world
    def world(x: sg.State[int(sum(sizes))]):
        return x
    return world
"""


def test_halts_are_told_and_fail_where_asked(capsys, server, tmp_path):
    (tmp_path / "w.py").write_text(FALLING)
    work = ["gradient", "--world", f"{tmp_path}/w.py:fall", "--steps", "6", "--initial", "x=1,100", "--objective", "fin"]
    shown = run(capsys, server, *work, "--fail-on-nonfinite", code=command_line.EXIT_NONFINITE)
    assert "halted: 1 instance by fell (w.py:8), first at step 3, with an error" in shown
    told = json.loads(run(capsys, server, *work, "--json", "--output", f"{tmp_path}/g.npz"))
    (halted,) = told["halted"]
    assert (halted["instance"], halted["halt"], halted["error"], halted["line"]) == (0, "fell", True, "w.py:8")
    with np.load(tmp_path / "g.npz") as arrays:
        assert arrays["halted"].tolist() == arrays["ended"].tolist() == [0]
        assert arrays["values"].shape == (2,)


def test_a_series_that_instances_share_is_sent_per_step(capsys, server, tmp_path):
    (tmp_path / "w.py").write_text(FALLING)
    np.save(tmp_path / "u.npy", np.array([1.0, 2.0, 3.0]))
    work = ["rollout", "--world", f"{tmp_path}/w.py:fall", "--steps", "3", "--initial", "x=1,2", "--policy", "f64"]
    told = json.loads(run(capsys, server, *work, "--control", f"push=@{tmp_path}/u.npy", "--per-step", "push", "--json"))
    assert told["state"]["x"] == [4.375, 4.5]
    assert command_line.main([*work, "--per-step", "pull", "--target", server.target]) == command_line.EXIT_USAGE
    assert "--per-step pull: no --control or --data has this name" in capsys.readouterr().err


def test_numbers_with_commas_are_a_tuple_for_a_function(capsys, server, tmp_path):
    (tmp_path / "w.py").write_text(FALLING)
    told = run(capsys, server, "program", "--world", f"{tmp_path}/w.py:sized", "--config", "sizes=2,3")
    assert "[5]" in told


def test_a_gradient_says_its_warnings_and_that_it_is_skipped(capsys, server):
    work = ["gradient", *DEPRESSURIZATION, "--objective", "final_penetration", "--policy", "f16_unsafe"]
    shown = run(capsys, server, *work, "--loss-scale", "1e12")
    assert "warning: " in shown and "skipped: the scaled gradient was not finite" in shown


def test_split_is_told_in_words(capsys, server):
    shown = run(
        capsys, server, "compare", *DEPRESSURIZATION[1:], "--objective", "final_penetration",
        "--policies", "f32,bf16_unsafe", "--split",
    )  # fmt: skip
    assert "error of the gradient of `k`" in shown


def test_the_servers_own_token_file_is_read(tmp_path):
    file = tmp_path / "tokens"
    file.write_text("# of the lab\n\nsecret-abc name=alice weight=2\n")
    assert command_line._first_token(file) == "secret-abc"


def test_a_list_of_numbers_fills_a_matrix_row_by_row(capsys, server, tmp_path):
    world = tmp_path / "matrices.py"
    world.write_text(
        "import simgrad as sg\n\n\n@sg.world\ndef doubles(x: sg.State[2, 3], n: sg.State(2, 2, dtype=int)):\n    return 2.0 * x, n\n"
    )
    work = [f"{world}:doubles", "--steps", "1", "--initial", "x=1,2,3,4,5,6", "--initial", "n=1,2,3,4", "--json"]
    run(capsys, server, "rollout", *work, "--output", str(tmp_path / "run.npz"))
    read = np.load(tmp_path / "run.npz")
    assert read["state.x"].tolist() == [[[2, 4, 6], [8, 10, 12]]] and read["state.n"].tolist() == [[[1, 2], [3, 4]]]
    pulled = json.loads(run(capsys, server, "gradient", *work, "--cotangent", "x=1,0,0,0,0,3"))
    assert pulled["gradients"]["initial"]["x"] == [[2, 0, 0], [0, 0, 6]]
    short = ["rollout", f"{world}:doubles", "--steps", "1", "--initial", "x=1,2,3,4", "--initial", "n=1,2,3,4"]
    assert command_line.main([*short, "--target", server.target]) != 0
    assert "[2, 3]" in capsys.readouterr().err


BALL = ["bouncing_ball", "--config", "contact=toi", "--steps", "3", "--initial", "y=0.5", "--initial", "v=0"]


@pytest.mark.parametrize(
    "work",
    [
        ["rollout", *BALL, "--output"],
        ["gradient", *BALL, "--objective", "final_height", "--output"],
        ["compare", *BALL, "--no-gradient", "--html"],
    ],
)
def test_an_answer_is_printed_where_its_file_cannot_be_written(capsys, server, work):
    command = [*work, "/dev/full", "--json", "--target", server.target]
    assert command_line.main(command) == command_line.EXIT_FAILED
    shown = capsys.readouterr()
    assert "error" not in json.loads(shown.out)
    assert shown.err == f"simgrad: {work[-1]} /dev/full: it cannot be written (No space left on device)\n"


@pytest.mark.parametrize("reader, code", [("| true", command_line.EXIT_OK), ("> /dev/full", command_line.EXIT_FAILED)])
def test_a_file_is_written_where_its_answer_cannot_be_printed(server, tmp_path, reader, code):
    outputs = {"x.npz": ["rollout", *BALL, "--output"], "x.html": ["compare", *BALL, "--no-gradient", "--html"]}
    for name, work in outputs.items():
        command = shlex.join([sys.executable, "-m", "simgrad", *work, str(tmp_path / name), "--target", server.target])
        shell = f"{command} {reader}; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True)
        assert done.returncode == code and "Traceback" not in done.stderr and "Exception" not in done.stderr
    with np.load(tmp_path / "x.npz") as arrays:
        assert arrays["ok"].all()
    assert (tmp_path / "x.html").read_text().rstrip().endswith("</html>")


def test_a_file_stays_where_the_server_refuses(capsys, server, tmp_path):
    file = tmp_path / "out.npz"
    file.write_bytes(b"of yesterday")
    run(capsys, server, "rollout", *BALL, "--policy", "f8", "--output", str(file), code=1)
    assert file.read_bytes() == b"of yesterday" and list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--param", "restitution="], "--param restitution: '' is no number"),
        (["--param", "restitution=1e999"], "--param restitution: '1e999' is beyond the largest f64"),
        (["--weights", ""], "--weights: '' is no number"),
        (["--cotangent", "y="], "--cotangent y: '' is no number"),
    ],
)
def test_what_is_no_number_is_named(capsys, server, arguments, said):
    command = ["gradient", *BALL, *arguments, "--target", server.target]
    assert command_line.main(command) == command_line.EXIT_USAGE
    assert f"simgrad: {said}" in capsys.readouterr().err


def test_an_order_that_is_none_is_named_whole(capsys, server):
    work = ["compare", *BALL, "--no-gradient", "--orders", "shuffled(3,4)", "--target", server.target]
    assert command_line.main(work) == command_line.EXIT_FAILED
    assert "shuffled(3,4)" in capsys.readouterr().err
