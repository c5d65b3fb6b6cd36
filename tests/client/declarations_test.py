"""What a client remembers of the worlds that its servers have."""

from fake_server import client_of, fake  # noqa: F401

import simgrad as sg
from simgrad import runs


def test_declarations_are_asked_for_once_for_the_configurations_that_were_used_last(fake, monkeypatch):
    monkeypatch.setattr(runs, "_MOST_DECLARED", 4)
    with client_of(fake.target) as client:
        terms = client._calls.terms()
        use = lambda tol: client._runs.declared(sg.World("still", tol=tol), terms)
        for tol in range(4):
            use(tol)
        use(0)
        assert fake.calls == 4
        use(4)  # for which 1 is forgotten, as 0 was used since
        use(0)
        assert fake.calls == 5
        use(1)
        assert fake.calls == 6
        for tol in range(100):
            use(tol)
        assert len(client._runs._declarations) == 4
