"""The examples that need JAX run, and do what they say."""

import importlib.util
import re

import jax
import numpy as np
import pytest


@pytest.fixture(autouse=True)
def formats_stay_as_they_were():
    """The examples turn f64 on, for their process."""
    before = jax.config.jax_enable_x64
    yield
    jax.config.update("jax_enable_x64", before)


def example(root, name):
    spec = importlib.util.spec_from_file_location(name, root / f"client/python/examples/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rate_constants_are_recovered_through_diffrax(root, server, capsys):
    module = example(root, "fit_kinetics")
    estimate = module.main(server.target)
    # The solver's own tolerance is 1e-6; from 50 to 100% off, a fit that stopped halfway is no closer than percents.
    np.testing.assert_allclose(estimate, np.exp(module.TRUTH["log_k"]), rtol=1e-4)
    printed = capsys.readouterr().out
    assert printed.count("truth") == 3 and re.search(r"\(checkpointed.py:\d+\) turns \[\d{3},", printed)


def test_a_hopper_learns_through_its_contacts_to_stay_up(root, server, capsys):
    losses = example(root, "train_hopper").main(server.target, "6")
    # Without torques it falls by 0.35 m; that of the start is 0.10.
    assert losses[0] > 0.4 and losses[-1] < 0.1, losses
    printed = capsys.readouterr().out
    assert re.search(r"solver.py:\d+ decides: ctx = jax.lax.while_loop\(cond, body, ctx\)", printed)
    assert re.search(r"solver.py:\d+ turned [01]\.\d\d times a step", printed)
