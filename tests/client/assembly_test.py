"""Messages of an answer, however they are cut, become one result."""

import numpy as np
import pytest

from simgrad.assembly import Assembly
from simgrad.v1 import diagnostics_pb2, program_pb2, simgrad_pb2, tensor_pb2

N, T, SHAPE = 5, 4, (2,)


def header():
    return simgrad_pb2.RolloutPart(
        header=simgrad_pb2.StreamHeader(
            instances=N,
            steps=T,
            trajectory=[
                simgrad_pb2.FieldInfo(
                    name="y", dtype=tensor_pb2.DTYPE_F32, shape=SHAPE, times=T + 1
                )
            ],
        )
    )


def block(first, steps, lanes=()):
    t = np.arange(first, first + steps)
    columns = diagnostics_pb2.TerminationColumns(
        site="projection",
        runs=N + 0 * t,
        iterations_mean=t + 0.5,
        iterations_min=t,
        iterations_max=t + 1,
        reasons=np.tile([N, 0, 0, 0], steps),
        tested_min=0.0 * t,
        tested_max=0.0 * t,
        margin=-1.0 * t,
        margin_instance=t,
        margin_ulps=-2.0 * t,
        margin_ulps_instance=t,
        iterations=np.tile(np.arange(16, dtype="<u4"), steps).tobytes(),
        histogram=np.zeros((steps, 64), "<u4").tobytes(),
        nan_margins=0 * t,
        checks=N + 0 * t,
        near_stopped=0 * t,
        near_continued=0 * t,
    )
    message = diagnostics_pb2.DiagnosticsBlock(
        first_step=first, steps=steps, terminations=[columns]
    )
    message.ranges.add(role="state", underflows=1, overflows=2)
    if lanes:
        message.instance_offset = lanes[0]
        message.instances.append(instance_columns(t, *lanes))
    return simgrad_pb2.RolloutPart(diagnostics=message)


def counts(t, lane):
    return (t + lane) % 3 + 1


def instance_columns(t, offset, count):
    """Instance i tests counts(t, i) values at step t; each is 100 i + 10 t + its number."""
    lanes = np.arange(offset, offset + count)
    grid = counts(t[:, None], lanes[None, :])
    values = [100.0 * i + 10.0 * s + j for i in lanes for s in t for j in range(counts(s, i))]
    return diagnostics_pb2.InstanceColumns(
        site="projection",
        instances=count,
        iterations=(grid - 1).astype("<u4").tobytes(),
        reasons=np.zeros(grid.shape, "u1").tobytes(),
        value_counts=grid.astype("<u4").tobytes(),
        values=np.array(values, "<f8").tobytes(),
    )


def result(**fields):
    return simgrad_pb2.RolloutPart(
        result=simgrad_pb2.RolloutResult(
            path_signatures=np.arange(N, dtype="<u8").tobytes(),
            health=simgrad_pb2.InstanceHealth(
                ok=bytes([1, 1, 0, 1, 1]), index=[2], phase=["forward"], step=[3], stopped=[False]
            ),
            **fields
        )
    )


def test_trajectory_chunks_fill_the_whole_array_in_any_order():
    whole = np.random.default_rng(3).normal(size=(N, T + 1, *SHAPE)).astype(np.float32)
    chunks = [(i, n, t, m) for i, n in ((0, 2), (2, 3)) for t, m in ((0, 3), (3, 2))]
    for order in (chunks, chunks[::-1]):
        assembly = Assembly()
        assembly.add(header())
        for i, n, t, m in order:
            assembly.add(
                simgrad_pb2.RolloutPart(
                    trajectory=simgrad_pb2.TrajectoryChunk(
                        name="y",
                        first_instance_index=i,
                        instances=n,
                        first_time=t,
                        times=m,
                        data=whole[i : i + n, t : t + m].tobytes(),
                    )
                )
            )
        assembly.add(result())
        assert assembly.result.trajectory["y"].tobytes() == whole.tobytes()


@pytest.mark.parametrize("cuts", [[4], [1, 3], [1, 1, 1, 1], [3, 1]])
def test_diagnostics_are_the_same_however_the_steps_are_cut(cuts):
    assembly = Assembly()
    assembly.add(header())
    first = 0
    for steps in cuts:
        message = block(first, steps)
        assembly.add(message)
        assert assembly.is_viewable(message)
        view = assembly.view(message)
        assert (view.first_step, view.steps, view.phase) == (first, steps, "forward")
        first += steps
    assembly.add(result())
    site = assembly.result.sites["projection"]
    np.testing.assert_array_equal(site.iterations, [[t, t + 0.5, t + 1] for t in range(T)])
    np.testing.assert_array_equal(site.reasons, [[N, 0, 0, 0]] * T)
    np.testing.assert_array_equal(site.margin_ulps, [0.0, -2.0, -4.0, -6.0])
    assert site.histogram.shape == (T, 64)
    assert assembly.result.ranges["state"].overflows == 2 * len(cuts)


@pytest.mark.parametrize(
    "cuts", [[(0, 4, 0, 5)], [(0, 3, 0, 5), (3, 1, 0, 5)], [(0, 4, 0, 2), (0, 4, 2, 3)]]
)
def test_tested_values_are_found_by_step_and_instance(cuts):
    assembly = Assembly()
    assembly.add(header())
    for first, steps, offset, count in cuts:
        message = block(first, steps, (offset, count))
        if offset:  # the columns over all instances came with the first part
            del message.diagnostics.terminations[:]
        assembly.add(message)
    assembly.add(result())
    site = assembly.result.sites["projection"]
    assert site.iterations.shape == (T, N)
    for t in range(T):
        for i in range(N):
            assert site.values[t][i].tolist() == [
                100.0 * i + 10.0 * t + j for j in range(counts(t, i))
            ]
            assert site.iterations[t, i] == counts(t, i) - 1


def test_pieces_take_the_place_of_content_that_is_too_large():
    final = np.arange(N * 2, dtype="<f4").reshape(N, 2)
    assembly = Assembly()
    assembly.add(header())
    data = final.tobytes()
    for offset in range(0, len(data), 7):
        assembly.add(
            simgrad_pb2.RolloutPart(
                piece=simgrad_pb2.TensorPiece(
                    field="final_state.y",
                    offset=offset,
                    data=data[offset : offset + 7],
                    last=offset + 7 >= len(data),
                )
            )
        )
    message = result()
    message.result.final_state.add(
        name="y", tensor=tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_F32, shape=[N, 2])
    )
    assembly.add(message)
    assert assembly.result.state["y"].tobytes() == data


def test_health_of_many_instances_comes_as_one_piece():
    health = simgrad_pb2.InstanceHealth(
        ok=bytes([1, 0, 1, 1, 1]), index=[1], phase=["adjoint"], step=[2], stopped=[True]
    )
    assembly = Assembly()
    assembly.add(header())
    assembly.add(
        simgrad_pb2.RolloutPart(
            piece=simgrad_pb2.TensorPiece(
                field="health", data=health.SerializeToString(), last=True
            )
        )
    )
    message = result()
    message.result.ClearField("health")
    assembly.add(message)
    assert assembly.result.ok.tolist() == [True, False, True, True, True]
    assert assembly.result.health[0].phase == "adjoint" and assembly.result.health[0].stopped


def test_a_missing_piece_is_noticed():
    assembly = Assembly()
    assembly.add(header())
    with pytest.raises(ValueError, match="values"):
        assembly.add(
            simgrad_pb2.RolloutPart(
                piece=simgrad_pb2.TensorPiece(field="values", offset=8, data=b"x")
            )
        )


def test_health_says_who_left_the_finite_numbers_when():
    assembly = Assembly()
    assembly.add(header())
    assembly.add(result())
    assert assembly.result.ok.tolist() == [True, True, False, True, True]
    assert [(h.instance, h.phase, h.step) for h in assembly.result.health] == [(2, "forward", 3)]


def test_inputs_of_one_name_and_two_kinds_are_kept_apart():
    gradient = simgrad_pb2.GradientResult(rollout=result().result)
    for kind in (program_pb2.INPUT_KIND_PARAM, program_pb2.INPUT_KIND_CONTROL):
        gradient.gradients.add(
            kind=kind,
            name="k",
            connected=kind,
            gradient=tensor_pb2.Tensor(
                dtype=tensor_pb2.DTYPE_F32, inline=np.float32(kind).tobytes()
            ),
        )
    assembly = Assembly()
    assembly.add(simgrad_pb2.GradientPart(header=header().header))
    assembly.add(simgrad_pb2.GradientPart(result=gradient))
    assert assembly.result.params["k"] == program_pb2.INPUT_KIND_PARAM
    assert assembly.result.controls["k"] == program_pb2.INPUT_KIND_CONTROL
    assert assembly.result.connected == {
        "param.k": program_pb2.INPUT_KIND_PARAM,
        "control.k": program_pb2.INPUT_KIND_CONTROL,
    }


def text_pieces(cuts, text):
    data, offset = text.encode(), 0
    for i, size in enumerate(cuts):
        yield simgrad_pb2.RolloutPart(
            piece=simgrad_pb2.TensorPiece(
                field="program.text",
                offset=offset,
                data=data[offset : offset + size],
                last=i + 1 == len(cuts),
            )
        )
        offset += size


# "é" takes two bytes: one of these cuts goes through it.
@pytest.mark.parametrize("cuts", [[12], [3, 9], [4, 4, 4], [8, 4]])
def test_a_program_text_in_pieces_is_whole_in_the_result(cuts):
    assembly = Assembly()
    assembly.add(header())
    for piece in text_pieces(cuts, "abcd\nfgé 12"):
        assembly.add(piece)
    assembly.add(result())
    assert assembly.result.program.text == "abcd\nfgé 12"


def test_a_result_before_the_last_piece_is_an_error():
    assembly = Assembly()
    assembly.add(header())
    assembly.add(next(text_pieces([3, 9], "abcd\nfgé 12")))
    with pytest.raises(ValueError, match="program.text"):
        assembly.add(result())
