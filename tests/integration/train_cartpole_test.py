"""The example that trains a network of PyTorch on a cart, under whichever Python here has PyTorch."""

from torch_test import pytestmark, run  # noqa: F401  the mark skips this file as well


def test_the_cartpole_example_learns_to_balance(root, server):
    # Poles that stay at the largest angle of the start cost 1 - cos(0.3) = 0.045.
    out = run(
        root,
        f"""
import runpy
main = runpy.run_path({str(root / 'client/python/examples/train_cartpole.py')!r})["main"]
losses = main(sys.argv[1], "21")
assert losses[0] > 0.4 and losses[-1] < 0.03, losses
""",
        server.target,
    )
    assert "iteration 20:" in out.splitlines()[-1] and "32/32 upright" in out.splitlines()[-1]
