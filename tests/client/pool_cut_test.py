"""A request is cut between blocks of ids, and every part has what belongs to its instances."""

import numpy as np
import pytest

from simgrad import arrays
from simgrad.pool.cut import Cutter
from simgrad.request import Declaration
from simgrad.v1 import program_pb2, simgrad_pb2

DECLARED = {
    (program_pb2.INPUT_KIND_STATE, "y"): Declaration(1),
    (program_pb2.INPUT_KIND_PARAM, "k"): Declaration(0),
    (program_pb2.INPUT_KIND_CONTROL, "u"): Declaration(1),
    (program_pb2.INPUT_KIND_DATA, "d"): Declaration(0),
}
N, T = 1000, 3


def gradient(**spec):
    """Instance i has y = [i, -i] and u[t] = [10 i + t]; k and d are shared."""
    i = np.arange(N, dtype=np.float32)
    message = simgrad_pb2.GradientRequest(
        spec=simgrad_pb2.RolloutSpec(steps=T, seed=4, record=["y"], **spec), weights=i.tolist()
    )
    message.loops.add(site="projection", truncated=2)
    message.wrt.add(kind=program_pb2.INPUT_KIND_PARAM, name="k")
    add(message.spec.initial, "y", np.stack([i, -i], axis=1))
    add(message.spec.params, "k", np.float32(0.5))
    add(message.spec.controls, "u", 10 * i[:, None, None] + np.arange(T, dtype=np.float32)[None, :, None], True)
    add(message.spec.data, "d", np.arange(T, dtype=np.float32), True)
    cotangent = message.cotangents.add()
    add(cotangent.final_state, "y", np.stack([i, i], axis=1))
    return message


def add(group, name, array, per_step=False):
    group.add(name=name, tensor=arrays.to_tensor(array), per_step=per_step)


def cut(message, shares=(1, 1, 1), most=N):
    cutter = Cutter(message, DECLARED)
    return cutter, cutter.cut(shares, most)


def test_parts_begin_at_multiples_of_256_ids():
    cutter, shards = cut(gradient(first_instance=1000))
    assert [int(s.ids[0]) for s in shards] == [1000, 1280, 1792]
    assert [s.rows[0] for s in shards] == [0, 280, 792]
    assert np.concatenate([s.rows for s in shards]).tolist() == list(range(N))


@pytest.mark.parametrize("ids", [{}, {"instance_ids": np.random.default_rng(0).permutation(4 * N)[:N].tolist()}])
def test_parts_are_cut_again_as_they_were(ids):
    cutter, shards = cut(gradient(**ids), shares=(2, 1, 3), most=300)
    again = cutter.cut_as([s.instances for s in shards])
    assert len(again) == len(shards) > 3
    assert all((a.rows == b.rows).all() and (a.ids == b.ids).all() for a, b in zip(again, shards))


def test_parts_follow_the_shares():
    _, shards = cut(gradient(), shares=(3, 1))
    assert [s.instances for s in shards] == [768, 232]
    _, shards = cut(gradient(), shares=(1e6, 1))
    assert [s.instances for s in shards] == [1000]
    _, shards = cut(gradient(), shares=(1, 1e6, 1e6))
    assert [(s.share, s.instances) for s in shards] == [(1, 512), (2, 488)]


def test_a_part_has_at_most_so_many_instances():
    _, shards = cut(gradient(), shares=(1, 1), most=300)
    assert [s.instances for s in shards] == [256, 256, 256, 232]


def test_blocks_of_sparse_ids_are_cut_between_any_two():
    ids = (np.arange(N, dtype=np.uint64) * np.uint64(2**40))[::-1]
    cutter, shards = cut(gradient(instance_ids=ids.tolist()), shares=(1, 1))
    assert [s.instances for s in shards] == [500, 500]
    assert shards[0].rows.tolist() == list(range(500, 1000))  # the smaller ids stand last


@pytest.mark.parametrize("shuffled", [False, True])
def test_every_part_has_what_belongs_to_its_instances(shuffled):
    ids = np.random.default_rng(5).permutation(N) if shuffled else None
    spec = {"first_instance": 77} if ids is None else {"instance_ids": ids.tolist()}
    whole = gradient(**spec)
    cutter, shards = cut(whole)
    assert len(shards) == 3
    for shard in shards:
        part = cutter.message(shard)
        rows = shard.rows.astype(np.float32)
        assert part.return_tree and part.spec.instances == len(rows)
        if ids is None:
            assert part.spec.first_instance == 77 + shard.rows[0] and not part.spec.instance_ids
        else:
            assert part.spec.instance_ids == ids[shard.rows].tolist()
        tensors = {t.name: arrays.from_tensor(t.tensor) for t in (*part.spec.initial, *part.spec.controls)}
        assert (tensors["y"] == np.stack([rows, -rows], axis=1)).all()
        assert (tensors["u"][:, :, 0] == 10 * rows[:, None] + np.arange(T)).all()
        assert part.spec.controls[0].per_step and part.spec.data == whole.spec.data
        assert part.spec.params == whole.spec.params
        assert (arrays.from_tensor(part.cotangents[0].final_state[0].tensor)[:, 0] == rows).all()
        assert part.weights == rows.tolist()
        rest = (part.spec.seed, part.spec.steps, part.spec.record, part.loops, part.wrt)
        assert rest == (4, T, whole.spec.record, whole.loops, whole.wrt)
        inputs = [(t.name, cutter.is_per_instance(kind, t.name)) for kind, t in (
            (program_pb2.INPUT_KIND_STATE, part.spec.initial[0]), (program_pb2.INPUT_KIND_PARAM, part.spec.params[0]))]
        assert inputs == [("y", True), ("k", False)]


def test_weights_are_known_by_their_declaration():
    param, data = program_pb2.INPUT_KIND_PARAM, program_pb2.INPUT_KIND_DATA
    cutter = Cutter(gradient(), {**DECLARED, (param, "w"): Declaration(2, is_weights=True)})
    assert [cutter.is_weights(*i) for i in ((param, "w"), (param, "k"), (data, "w"))] == [True, False, False]


@pytest.mark.parametrize(
    "spec",
    [
        {"instances": N + 1},
        {"instance_ids": [1, 2]},
        {"instance_ids": [7] * N},
        {"instance_ids": list(range(N)), "first_instance": 5},
        {"first_instance": 2**64 - N + 1},
    ],
)
def test_a_request_that_contradicts_itself_is_not_cut(spec):
    assert Cutter(gradient(**spec), DECLARED).instances == 0


def test_the_last_ids_can_be_cut():
    _, shards = cut(gradient(first_instance=2**64 - N), shares=(1, 1))
    assert len(shards) == 2 and int(shards[-1].ids[-1]) == 2**64 - 1


def test_runs_are_those_of_rows_without_gaps():
    _, shards = cut(gradient(instance_ids=[*range(300, 900), *range(300), *range(900, 1000)]), (1, 1))
    assert [s.runs() for s in shards] == [[(0, 0, 212), (212, 600, 300)], [(0, 212, 388), (388, 900, 100)]]


def test_bytes_of_one_instance_are_counted():
    # y: 8, u: 4 per step, the cotangent: 8, its weight: 8
    assert Cutter(gradient(), DECLARED).row_bytes() == 8 + 4 * T + 8 + 8
