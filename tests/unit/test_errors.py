"""Error types that no run closes with are on the wire too: operators see them in Temporal, and SDKs tell by them."""

from steersman.contracts.errors import REFUSED, ActivityErrorType, ErrorType


def test_their_strings_are_fixed() -> None:
    assert REFUSED == "Refused"
    assert {str(each) for each in ActivityErrorType} == {
        "AgentUnknown",
        "Detached",
        "Fenced",
        "GitFailed",
        "IncompatibleShim",
        "StateGone",
        "StateUnknown",
        "StateUnwritable",
        "StoreGone",
        "Unreachable",
        "WorkspaceGated",
    }


def test_none_of_them_is_taken_for_how_a_run_closed() -> None:
    assert not {str(each) for each in ErrorType} & {REFUSED, *ActivityErrorType}
