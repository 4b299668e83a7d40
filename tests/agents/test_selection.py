"""Which cases `make test` leaves out: each by the name that it has."""

import inspect

from tests.agents import conftest, test_acp, test_conformance


def test_each_name_is_that_of_a_case() -> None:
    of_all = vars(test_conformance)
    of_acp = {name for _, each in inspect.getmembers(test_acp, inspect.isclass) for name in vars(each)} | {
        *vars(test_acp)
    }
    assert [each for each in conftest.NOT_OF_SLOW if each not in of_all] == []
    assert [each for each in conftest.ON_ALL if each not in of_acp] == []
