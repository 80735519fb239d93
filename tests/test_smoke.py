from tests.jobs.tasks import add


def test_add(drain):
    h = add.send(1, 2)
    drain()
    assert h.value(0) == 3
