"""The command line understands what it is told, and says so where it does not."""

import errno
import json
import os
import pathlib
import stat
import subprocess
import sys

import grpc
import numpy as np
import pytest
from fake_server import fake, refuse  # noqa: F401

import simgrad as sg
from simgrad import command_arguments, command_compare, command_line, command_output, report
from simgrad.command_output import NotWritten, output
from simgrad.named_world import named_world
from simgrad.request import Declaration
from simgrad.v1 import diagnostics_pb2, program_pb2, simgrad_pb2


def options(*arguments):
    return command_line.parser().parse_args(arguments)


def test_configuration_and_policy_are_those_of_the_client():
    chosen = options(
        "program",
        "--world",
        "boundary_projection",
        "--config",
        "elements=9",
        "--config",
        "contact=toi",
        "--config",
        "clamp=false",
        "--config",
        "tol=0x1.06p-10",
        "--policy",
        "f16_unsafe",
        "--role",
        "termination.format=f32",
        "--role",
        "termination.order=sequential",
        "--role",
        "network.scale=amax",
        "--site",
        "projection.accumulator=f64",
        "--site",
        "projection.products=pairwise",
        "--loss-scale",
        "65536",
        "--nonfinite",
        "stop",
    )
    config = command_arguments.world_of(chosen).to_proto().config
    assert config["elements"].number == 9 and config["contact"].word == "toi"
    assert config["clamp"].WhichOneof("value") == "flag" and not config["clamp"].flag
    assert config["tol"].number == float.fromhex("0x1.06p-10")
    expected = (
        sg.Policy("f16_unsafe")
        .nonfinite("stop")
        .role("termination", format="f32")
        .role("termination", order="sequential")
        .role("network", scale="amax")
        .site("projection", accumulator="f64", products="pairwise")
        .loss_scale(65536)
    )
    assert command_line._policy(chosen) == expected


def test_numbers_become_what_the_input_is_declared_as(tmp_path):
    np.save(tmp_path / "y.npy", np.arange(4.0).reshape(2, 2))
    assert command_arguments.array_of("0.5", Declaration(0)).shape == ()
    assert command_arguments.array_of("0.5", Declaration(1)).tolist() == [0.5]
    assert command_arguments.array_of("1,0x1p-3,-2e-1", Declaration(1)).tolist() == [1, 0.125, -0.2]
    assert command_arguments.array_of(f"@{tmp_path}/y.npy", Declaration(1)).shape == (2, 2)
    of_bools = Declaration(0, program_pb2.ELEMENT_TYPE_BOOL)
    of_integers = Declaration(1, program_pb2.ELEMENT_TYPE_I32)
    assert command_arguments.array_of("true", of_bools) == 1
    assert command_arguments.array_of("-3,0x10", of_integers) == [-3, 16]
    with pytest.raises(ValueError, match="'0.5' is no whole number"):
        command_arguments.array_of("0.5", of_integers)


def test_a_list_of_numbers_gets_the_shape_that_its_input_declares():
    matrix, integers = Declaration(2), Declaration(2, program_pb2.ELEMENT_TYPE_I32)
    assert command_arguments.array_of("1,2,3,4,5,6", matrix, (2, 3)).tolist() == [[1, 2, 3], [4, 5, 6]]
    assert command_arguments.array_of("7", matrix, (1, 1)).tolist() == [[7]]
    assert command_arguments.array_of("1,2,3,4", integers, (2, 2)) == [[1, 2], [3, 4]]
    # One of another length stays as it is, so that the client says what is declared.
    assert command_arguments.array_of("1,2,3", matrix, (2, 2)).shape == (3,)
    assert command_arguments.array_of("1,2,3", Declaration(0)).shape == (3,)


@pytest.mark.parametrize("command", ["program", "rollout", "gradient", "compare"])
def test_a_world_is_named_by_its_place_or_by_an_option(command, capsys):
    steps = [] if command == "program" else ["--steps", "3"]
    for named in (["ball", *steps], [*steps, "ball"], ["--world", "ball", *steps], [*steps, "--world=ball"]):
        assert options(command, *named, "--config", "h=1").world == "ball"
    for wrong in (["ball", "--world", "ball"], []):
        with pytest.raises(SystemExit) as ended:
            options(command, *wrong, *steps)
        assert ended.value.code == 2 and "--world" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["program", "--world", "w", "--config", "tol"],
        ["program", "--world", "w", "--role", "termination=f32"],
        ["program", "--world", "w", "--role", "termination.colour=red"],
        ["program", "--world", "w", "--site", "projection.scale=amax"],
        ["program", "--world", "w", "--config", "tol=1", "--config", "tol=2"],
        ["program", "--world", "w", "--role", "state.format=f16", "--role", "state.format=f32"],
    ],
)
def test_wrong_usage_exits_with_2_and_shows_what_was_wrong(arguments, capsys):
    assert command_line.main(arguments) == command_line.EXIT_USAGE
    assert arguments[-1].rpartition("=")[2] in capsys.readouterr().err


def test_a_world_that_cannot_be_made_is_wrong_usage_with_its_line(capsys, tmp_path):
    file = tmp_path / "still.py"
    file.write_text("import simgrad as sg\n\ndef still(n):\n    return sg.world(lambda x: {'x': x}, x=sg.State(n))\n")
    arguments = ["program", "--world", f"{file}:still", "--config", "n=4.5"]
    assert command_line.main(arguments) == command_line.EXIT_USAGE
    assert "still.py:4: State[4.5]: a shape has whole numbers" in capsys.readouterr().err
    assert command_line.main(["program", "--world", "simgrad.worlds:lennard_jones", "--config", "particles=4.5"]) == 2
    assert "particles 4.5: at least 1, and whole" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [[], ["fly"], ["rollout", "--world", "w"], ["rollout", "--steps", "x"]]
)
def test_arguments_that_do_not_parse_exit_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        command_line.main(arguments)
    assert stop.value.code == command_line.EXIT_USAGE
    assert "usage: simgrad" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["info", "worlds", "program", "rollout", "gradient"])
def test_every_command_has_help_with_examples_and_exit_codes(command, capsys):
    with pytest.raises(SystemExit) as stop:
        command_line.main([command, "--help"])
    text = capsys.readouterr().out
    assert (
        stop.value.code == 0 and "examples:" in text and "exit codes:" in text and "--json" in text
    )


def test_nobody_at_the_target_exits_with_3_also_in_json(capsys):
    assert (
        command_line.main(["info", "--target", "localhost:1", "--json", "--no-retry"])
        == command_line.EXIT_UNREACHABLE
    )
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "UNAVAILABLE"


def test_the_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as stop:
        command_line.main(["--version"])
    assert stop.value.code == 0 and capsys.readouterr().out == f"simgrad {sg.__version__}\n"
    project = pathlib.Path(sg.__file__).parents[1] / "pyproject.toml"
    assert f'version = "{sg.__version__}"' in project.read_text()


WORLDS_FILE = """
import simgrad as sg

@sg.world
def decay(x: sg.State, h: sg.Config = 0.5):
    return x - h * x

def several(count):
    return sg.world(x=sg.State(count))(lambda x: 2 * x)

ball = sg.World("bouncing_ball")
number = 3
"""


def test_worlds_are_named_in_files_and_modules(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(WORLDS_FILE)

    def made(name, **config):
        return named_world(f"{file}:{name}", config).program

    assert [i.default_value for i in made("decay").inputs if i.name == "h"] == [0.5]
    assert [i.default_value for i in made("decay", h=0.25).inputs if i.name == "h"] == [0.25]
    assert [list(v.shape) for v in made("several", count=3.0).values][0] == [3]
    (tmp_path / "lengths.py").write_text("arm = 4\n")
    (tmp_path / "uses.py").write_text(
        "import lengths, simgrad as sg\narm = sg.world(x=sg.State(lengths.arm))(lambda x: x)\n"
    )
    assert list(named_world(f"{tmp_path}/uses.py:arm", {}).program.values[0].shape) == [4]
    assert named_world(f"{file}:ball", {}).name == "bouncing_ball"
    assert named_world("simgrad.worlds:lennard_jones", {"particles": 3.0}).name == "lennard_jones"
    for name, config, words in (
        ("ball", {"h": 1.0}, "has its configuration"),
        ("number", {}, "an int, and not a simgrad.World"),
        ("missing", {}, "missing is not there"),
    ):
        with pytest.raises(ValueError, match=words):
            named_world(f"{file}:{name}", config)
    with pytest.raises(ValueError, match="a file ends in .py"):
        named_world("no_such_module:w", {})


def test_examples_of_the_help_are_commands_that_parse():
    text = command_line._EXAMPLES.partition("examples:\n")[2].partition("\n\n")[0]
    commands = [line.split() for line in text.replace("\\\n", " ").splitlines()]
    assert [words[:2] for words in commands] == [
        ["simgrad", "info"],
        ["simgrad", "program"],
        ["simgrad", "rollout"],
        ["simgrad", "rollout"],
        ["simgrad", "compare"],
        ["simgrad", "gradient"],
    ]
    for words in commands:
        assert options(*words[1:]).command == words[1]


def test_integers_of_messages_are_numbers_whatever_their_width():
    info = simgrad_pb2.ServerInfo(port=1)
    info.limits.max_steps = 1 << 40
    info.devices.add(memory_bytes=1 << 36, formats={"f32": "native"})
    fields = report.message_dict(info)
    assert fields["limits"]["max_steps"] == 1 << 40 and fields["port"] == 1
    assert fields["devices"][0] == {"memory_bytes": 1 << 36, "formats": {"f32": "native"}}
    block = diagnostics_pb2.DiagnosticsBlock(sampled_steps=[1, 2])
    block.terminations.add(site="s", checks=[3])
    fields = report.message_dict(block)
    assert fields["sampled_steps"] == [1, 2] and fields["terminations"][0]["checks"] == [3]


def test_the_list_of_worlds_tells_weights_apart_from_params():
    world = simgrad_pb2.WorldSchema(name="net")
    kind = program_pb2.INPUT_KIND_PARAM
    world.inputs.add(kind=kind, name="w", shape=[4, 64], weights=True, description="of the first layer")
    world.inputs.add(kind=kind, name="k", description="a spring")
    lines = report.worlds_text({"worlds": [report.message_dict(world)]}).splitlines()
    assert lines[1:3] == ["  weights w[4, 64]: of the first layer", "  param k[]: a spring"]


def test_a_reader_that_has_left_ends_it_quietly():
    script = (
        "from simgrad import command_line\n"
        "class Client:\n"
        "    def __enter__(self): return self\n"
        "    def __exit__(self, *_): pass\n"
        "command_line._connect = lambda options: Client()\n"
        "command_line._info = lambda client, options: "
        "command_line._done(options, {'x': 'y' * 1000000}, None)\n"
        "raise SystemExit(command_line.main(['info', '--json']))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=60) == command_line.EXIT_OK
    process.stderr.close()


def test_kernels_are_printed_with_their_numbers_behind_them():
    message = simgrad_pb2.CudaText(
        text="// kernels\n",
        mapping=simgrad_pb2.CUDA_MAPPING_BLOCK_PER_INSTANCE,
        numbers=[0.5, float("inf")],
        integers=[25],
    )
    cuda = sg.results.CudaText.of(message)
    fields = report.program_dict(
        sg.Program.of(simgrad_pb2.ProgramInfo(text="program p"), cuda=cuda)
    )
    assert fields["cuda"]["mapping"] == "block_per_instance"
    assert json.loads(json.dumps(fields, allow_nan=False))["cuda"]["numbers"] == [0.5, "inf"]
    assert report.program_text(fields) == (
        "// kernels\n\n// args.number[0] is 0.5\n// args.number[1] is inf\n"
        "// args.integer[0] is 25"
    )


@pytest.mark.parametrize(
    "given, cuda",
    [
        ([], False),
        (["--cuda"], True),
        (["--cuda", "thread_per_instance"], "thread_per_instance"),
    ],
)
def test_cuda_alone_means_the_mapping_that_a_gpu_would_take(given, cuda):
    assert options("program", "--world", "w", *given).cuda == cuda


@pytest.mark.parametrize(
    "flags, code, calls",
    [([], command_line.EXIT_OK, 2), (["--no-retry"], command_line.EXIT_UNREACHABLE, 1)],
)
def test_no_retry_turns_repeats_off(fake, capsys, flags, code, calls):
    def refused_once(n, context):
        if n == 1:
            refuse(context, grpc.StatusCode.UNAVAILABLE, "DRAINING", retry_after=0.01)

    fake.unary = refused_once
    assert command_line.main(["info", "--json", "--target", fake.target, *flags]) == code
    assert fake.calls == calls and capsys.readouterr().out


def test_serve_becomes_the_server_with_its_own_flags(monkeypatch, tmp_path):
    binary = tmp_path / "simgrad-server"
    binary.write_text("")
    binary.chmod(0o755)
    monkeypatch.setenv("SIMGRAD_SERVER", str(binary))
    became = []
    monkeypatch.setattr(os, "execv", lambda *command: became.append(command))
    command_line.main(["serve", "--port=0", "--help", "--json"])
    assert became == [(str(binary), [str(binary), "--port=0", "--help", "--json"])]
    assert "serve" in command_line.parser().format_help()


def test_serve_without_a_server_says_how_to_come_by_one(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("SIMGRAD_SERVER", str(tmp_path / "gone"))
    assert command_line.main(["serve"]) == command_line.EXIT_USAGE
    assert "gone is no simgrad-server" in capsys.readouterr().err


def test_serve_takes_the_short_form_of_help(monkeypatch):
    became = []
    monkeypatch.setenv("SIMGRAD_SERVER", sys.executable)
    monkeypatch.setattr(os, "execv", lambda file, given: became.append(given))
    command_line.main(["serve", "-h"])
    assert became == [[sys.executable, "--help"]]


def test_serve_does_not_take_a_folder_for_a_server(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("SIMGRAD_SERVER", str(tmp_path))
    assert command_line.main(["serve"]) == command_line.EXIT_USAGE
    assert f"{tmp_path} is no simgrad-server that can be run" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--tls-ca", "--tls-certificate", "--tls-key", "--token-file"])
@pytest.mark.parametrize("kind, said", [("gone", "No such file or directory"), ("folder", "Is a directory")])
def test_a_file_that_cannot_be_read_is_told_with_its_option(option, kind, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("folder").mkdir()
    for name, what in (("certificate", "CERTIFICATE"), ("key", "PRIVATE KEY")):
        pathlib.Path(name).write_text(f"-----BEGIN {what}-----")
    given = {**({"--tls-certificate": "certificate", "--tls-key": "key"} if "tls" in option else {}), option: f"./{kind}"}
    flat = [text for pair in given.items() for text in pair]
    assert command_line.main(["info", *flat]) == command_line.EXIT_USAGE
    assert capsys.readouterr().err == f"simgrad: {option} {kind}: {said}\n"


@pytest.mark.parametrize("option", ["--tls-ca", "--tls-certificate", "--tls-key", "--token-file", "--output"])
def test_a_file_without_a_name_is_wrong_usage(option, capsys):
    with pytest.raises(SystemExit) as stop:
        command_line.main(["rollout", "--world", "w", "--steps", "1", option, ""])
    assert stop.value.code == command_line.EXIT_USAGE
    assert f"argument {option}: the name of a file, and it is empty" in capsys.readouterr().err


def test_a_report_without_a_name_is_wrong_usage(capsys):
    with pytest.raises(SystemExit) as stop:
        command_line.main(["compare", "w", "--steps", "1", "--html", ""])
    assert stop.value.code == command_line.EXIT_USAGE


def test_an_interrupt_ends_it_with_a_line(capsys, monkeypatch):
    def interrupted(options):
        raise KeyboardInterrupt

    monkeypatch.setattr(command_line, "_connect", interrupted)
    assert command_line.main(["info"]) == command_line.EXIT_INTERRUPTED
    assert capsys.readouterr().err == "simgrad: interrupted\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no array of numbers that np.save wrote"),
        (b"PK\x03\x04", "no array of numbers that np.save wrote"),
        (b"\x80\x04N.", "no array of numbers that np.save wrote"),
    ],
)
def test_a_file_without_an_array_is_named(content, said, tmp_path):
    file = tmp_path / "x.npy"
    file.write_bytes(content)
    with pytest.raises(ValueError) as failed:
        command_arguments.array_of(f"@{file}", Declaration(1))
    assert str(failed.value).startswith(f"{file}: ") and said in str(failed.value)
    np.savez(tmp_path / "two.npz", a=[1.0], b=[2.0])
    with pytest.raises(ValueError, match="several arrays in an .npz"):
        command_arguments.array_of(f"@{tmp_path}/two.npz", Declaration(1))
    with pytest.raises(ValueError, match="'0x1p99999' is beyond the largest f64"):
        command_arguments.array_of("0x1p99999", Declaration(1))


def test_what_the_client_finds_is_json_too(capsys):
    arguments = ["program", "--world", "simgrad.worlds:kinetics", "--config", "system=nope", "--json"]
    assert command_line.main(arguments) == command_line.EXIT_USAGE
    captured = capsys.readouterr()
    error = json.loads(captured.out)["error"]
    assert error["code"] == "USAGE" and error["message"] in captured.err
    assert error["message"].startswith("system 'nope': one of lotka_volterra,")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise KeyError('thing')", "it fails at w.py:1 with KeyError: 'thing'"),
        ("import numpy as np\nnp.zeros(3).reshape(2, 2)", "it fails at w.py:2 with ValueError: cannot reshape"),
        ("def f(:\n  pass", "it fails at line 1 with SyntaxError"),
        ("import no_such_package", "No module named 'no_such_package'"),
    ],
)
def test_a_file_of_worlds_that_fails_says_its_line(source, said, tmp_path, capsys):
    (tmp_path / "w.py").write_text(source)
    assert command_line.main(["program", "--world", f"{tmp_path}/w.py:world"]) == command_line.EXIT_USAGE
    assert said in capsys.readouterr().err


_RAISING = """import numpy as np, simgrad as sg
def made(): raise KeyError("boo")
@sg.world
def named(x: sg.State): return {"x": x * undefined}
@sg.world
def raising(x: sg.State): raise RuntimeError("boo")
@sg.world
def costly(x: sg.State): return {"x": x}
@costly.objective
def cost(x): return x.nope
@sg.world
def of_config(x: sg.State, h: sg.Config = 1.0): return {"x": x * {1.0: 2.0}[h]}
@sg.world
def indexed(x: sg.State): return {"x": x[5]}
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("made", "--world {file}:made: made fails at w.py:2 with KeyError: 'boo'"),
        ("named", "--world {file}:named: named fails at w.py:4 with NameError: name 'undefined' is not defined"),
        ("raising", "--world {file}:raising: raising fails at w.py:6 with RuntimeError: boo"),
        ("of_config", "--world {file}:of_config: of_config fails at w.py:12 with KeyError: <h: real[]>"),
        # What this package refuses has its line already.
        ("costly", "w.py:10: a value of a world has no nope"),
        ("indexed", "w.py:14: 1 indices for an array of shape ()"),
    ],
)
def test_a_function_of_a_world_that_raises_says_its_line(name, said, tmp_path, capsys):
    file = tmp_path / "w.py"
    file.write_text(_RAISING)
    config = ["--config", "h=3"] if name == "of_config" else []
    assert command_line.main(["program", f"{file}:{name}", *config, "--json"]) == command_line.EXIT_USAGE
    shown = capsys.readouterr()
    error = json.loads(shown.out)["error"]
    assert error["code"] == "USAGE" and error["message"].startswith(said.format(file=file))
    assert shown.err == f"simgrad: {error['message']}\n"


@pytest.mark.parametrize(
    ("text", "element", "said"),
    [
        ("99999999999", program_pb2.ELEMENT_TYPE_I32, "an input of i32 takes a whole number from -2147483648 to 2147483647, not 99999999999"),
        ("1,2", program_pb2.ELEMENT_TYPE_BOOL, "an input of bool takes .*, not 1,2"),
        ("@/not/there.npy", program_pb2.ELEMENT_TYPE_REAL, "/not/there.npy: No such file or directory"),
    ],
)
def test_an_input_that_cannot_be_sent_is_told_with_its_option(text, element, said):
    with pytest.raises(ValueError, match=f"^--data q: {said}"):
        command_arguments.named_array_of("--data q", text, Declaration(0, element))


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("/nonexistent/x.npz", "there is no such folder"),
        (f"{__file__}/x.npz", "there is no such folder"),
        ("/tmp", "a folder, and not a file"),
        ("/tmp/not_there_yet/", "a folder, and not a file"),
        ("/proc/x.npz", "it cannot be written (No such file or directory)"),
        (f"/tmp/{300 * 'x'}", "it cannot be written (File name too long)"),
    ],
)
def test_an_output_that_cannot_be_written_is_told_before_anything_runs(fake, file, said, capsys):
    for command, option in (("rollout", "--output"), ("gradient", "--output"), ("compare", "--html")):
        arguments = [command, "--world", "bouncing_ball", "--steps", "1", option, file, "--target", fake.target]
        assert command_line.main(arguments) == command_line.EXIT_USAGE
        assert f"{option} {file}: {said}" in capsys.readouterr().err
    assert fake.calls == 0


def test_an_output_takes_its_place_whole_and_keeps_links_and_modes(tmp_path):
    there, link, new = tmp_path / "there", tmp_path / "link", tmp_path / "new"
    there.write_bytes(b"before")
    there.chmod(0o640)
    link.symlink_to(there)
    (tmp_path / "plain").touch()

    for file in (link, new):
        with output("--output", str(file)) as written:
            assert there.read_bytes() == (b"before" if file == link else b"after") and not new.exists()
            written.write(lambda opened: opened.write(b"after"))
    assert there.read_bytes() == new.read_bytes() == b"after" and link.is_symlink()
    assert stat.S_IMODE(there.stat().st_mode) == 0o640
    assert new.stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert sorted(f.name for f in tmp_path.iterdir()) == ["link", "new", "plain", "there"]


def test_a_file_stays_where_its_output_fails_or_its_work_is_interrupted(tmp_path):
    there = tmp_path / "there"
    there.write_bytes(b"before")

    def half(opened):
        opened.write(b"af")
        raise OSError(28, "No space left on device")

    with pytest.raises(NotWritten, match="--output .*there: it cannot be written .No space left on device"):
        with output("--output", str(there)) as file:
            file.write(half)
    with pytest.raises(KeyboardInterrupt), output("--output", str(there)):
        raise KeyboardInterrupt
    assert there.read_bytes() == b"before" and list(tmp_path.iterdir()) == [there]


def test_an_output_that_is_no_regular_file_is_written_in_place(tmp_path):
    read, write = os.pipe()
    redirected = open(tmp_path / "redirected", "wb", buffering=0)
    redirected.write(b"printed, ")
    for descriptor in (write, redirected.fileno()):
        with output("--output", f"/dev/fd/{descriptor}") as file:
            file.write(lambda opened: opened.write(b"arrays"))
    os.close(write)
    redirected.close()
    assert os.read(read, 100) == b"arrays"
    os.close(read)
    assert (tmp_path / "redirected").read_bytes() == b"printed, arrays"
    with pytest.raises(NotWritten, match="--html /dev/full: "), output("--html", "/dev/full") as file:
        file.write(lambda opened: opened.write(b"page"))
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


def test_an_archive_is_whole_where_it_is_appended(tmp_path):
    with open(tmp_path / "redirected", "wb") as redirected:
        with output("--output", f"/dev/fd/{redirected.fileno()}") as file:
            file.write(lambda opened: np.savez(opened, y=np.arange(3.0)))
    assert np.load(tmp_path / "redirected")["y"].tolist() == [0.0, 1.0, 2.0]


def test_a_file_whose_place_cannot_be_taken_is_written_all_the_same(tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(errno.EBUSY, "busy")

    path = tmp_path / "page"
    path.write_bytes(b"before, and longer")
    with monkeypatch.context() as patch:  # of a mount point
        patch.setattr(command_output.os, "replace", refused)
        with output("--html", str(path)) as file:
            file.write(lambda opened: opened.write(b"page"))
    assert path.read_bytes() == b"page" and os.listdir(tmp_path) == ["page"]

    def closed(name, mode, *rest, **options):
        if mode == "xb":
            raise PermissionError(errno.EACCES, "denied")
        return open(name, mode, *rest, **options)

    with monkeypatch.context() as patch:  # a folder that takes no new file
        patch.setattr(command_output, "open", closed, raising=False)
        with output("--html", str(path)) as file:
            file.write(lambda opened: opened.write(b"next"))
        with pytest.raises(ValueError, match="denied|Permission"), output("--html", str(tmp_path / "new")):
            pass
    assert path.read_bytes() == b"next" and os.listdir(tmp_path) == ["page"]


@pytest.mark.parametrize("text", ["1e999", "-1e999", "0x1p99999", "1,1e999"])
def test_infinity_is_only_what_is_written_so(text):
    with pytest.raises(ValueError, match="is beyond the largest f64"):
        command_arguments.array_of(text, Declaration(1))
    with pytest.raises(ValueError, match="--config h: .*is beyond the largest f64"):
        command_arguments.config_of("config", [f"h={text}"])
    assert command_arguments.array_of("inf,-Infinity,1e308", Declaration(1)).tolist() == [np.inf, -np.inf, 1e308]


@pytest.mark.parametrize("text", ["1_000", "\u0663", "1e1_0", "2,1_0"])
def test_numbers_are_decimal_or_hexadecimal_and_nothing_else_that_python_reads(text):
    for element, said in ((program_pb2.ELEMENT_TYPE_REAL, "is no number"), (program_pb2.ELEMENT_TYPE_I32, "is no whole")):
        with pytest.raises(ValueError, match=said):
            command_arguments.array_of(text, Declaration(1, element))
    with pytest.raises(ValueError, match="--variant h: .* is no number: decimal, or C hexadecimal"):
        command_arguments.config_of("variant", [f"h={text}"])
    assert command_arguments.config_of("config", ["way=of_a_word", "ways=a_1,b"]) == {"way": "of_a_word", "ways": "a_1,b"}


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        ("--steps", "99999999999999999999", "99999999999999999999 is beyond the range of an int64"),
        ("--steps", "1_0", "'1_0' is no whole number"),
        ("--steps", "\u0663", "'\u0663' is no whole number"),
        ("--steps", 5000 * "9", "9 is beyond the range of an int64"),
        ("--instances", "1180591620717411303424", "1180591620717411303424 is beyond the range of an int64"),
        ("--instances", "-9223372036854775809", "-9223372036854775809 is beyond the range of an int64"),
        ("--first-instance", "18446744073709551616", "18446744073709551616 is beyond the range of a uint64"),
        ("--seed", "-1", "-1 is beyond the range of a uint64"),
        ("--policy", "", "the name of a preset, and it is empty"),
        ("--target", "", "host:port, and it is empty"),
        ("--loss-scale", "1e999", "'1e999' is beyond the largest f64"),
        ("--timeout", "1_0", "'1_0' is no number"),
    ],
)
def test_a_wrong_value_is_refused_with_its_option(option, text, said, capsys):
    with pytest.raises(SystemExit) as stop:
        options("rollout", "w", "--steps", "1", option, text)
    shown = capsys.readouterr().err
    assert stop.value.code == command_line.EXIT_USAGE and f"argument {option}: " in shown and said in shown


def test_integers_of_64_bits_are_taken():
    chosen = options(
        "rollout", "w", "--steps", "9223372036854775807", "--instances=-9223372036854775808", "--seed", "18446744073709551615",
        "--first-instance", "+0007",
    )  # fmt: skip
    assert (chosen.steps, chosen.instances, chosen.seed) == (2**63 - 1, -(2**63), 2**64 - 1)
    assert chosen.first_instance == 7


def test_steps_of_a_variant_are_an_int64_too():
    assert command_compare._variant("steps=0x10,h=2") == {"steps": 16, "h": 2.0}
    with pytest.raises(ValueError, match="--variant steps=1e300: steps is beyond the range of an int64"):
        command_compare._variant("steps=1e300")


def test_orders_are_divided_at_commas_outside_of_parentheses():
    assert command_compare._words("orders", "shuffled(3,4), pairwise,shuffled(1)") == ["shuffled(3,4)", "pairwise", "shuffled(1)"]
    for text in ("", "a,,b", "shuffled(3,4),"):
        with pytest.raises(ValueError, match="--orders .*: names, separated by commas"):
            command_compare._words("orders", text)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sys:exit", "exit ends Python (SystemExit()), and returns no world"),
        ("ends.py:w", "it ends Python (SystemExit('no data'))"),
        ("body.py:w", "a function of it ends Python (SystemExit(0))"),
    ],
)
def test_a_world_that_ends_python_is_no_success(name, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("ends.py").write_text("import sys\nsys.exit('no data')\n")
    pathlib.Path("body.py").write_text("import sys, simgrad as sg\n@sg.world\ndef w(x: sg.State):\n    sys.exit(0)\n")
    assert command_line.main(["program", "--world", name]) == command_line.EXIT_USAGE
    assert said in capsys.readouterr().err


def test_a_failure_keeps_its_code_where_its_object_has_no_reader():
    command = f"{sys.executable} -m simgrad info --json --no-retry --target localhost:1 | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == command_line.EXIT_UNREACHABLE and "Traceback" not in done.stderr


def test_help_that_nobody_reads_is_no_failure():
    command = f"{sys.executable} -m simgrad --help | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr
