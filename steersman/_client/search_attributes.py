"""Steersman's search attributes (steersman.contracts.names) in the types of Temporal's SDK and API."""

from typing import Final

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.service import RPCError, RPCStatusCode

from steersman.contracts import names

AGENT_NAME: Final = SearchAttributeKey.for_keyword(names.AGENT_NAME)
RUN_PHASE: Final = SearchAttributeKey.for_keyword(names.RUN_PHASE)
COST_USD: Final = SearchAttributeKey.for_float(names.COST_USD)


def indexed_types() -> dict[str, IndexedValueType.ValueType]:
    """Each search attribute with its type, as the server's API takes and lists them."""
    return {
        name: IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{kind.upper()}")
        for name, kind in names.SEARCH_ATTRIBUTES.items()
    }


def queued(agent: str) -> TypedSearchAttributes:
    """Those of a run that has just been started: set with the start, they cost it no change of its own."""
    return TypedSearchAttributes(
        [
            SearchAttributePair(AGENT_NAME, agent),
            SearchAttributePair(RUN_PHASE, "queued"),
            SearchAttributePair(COST_USD, 0.0),
        ]
    )


def are_unknown(error: RPCError) -> bool:
    """Whether the namespace has no such search attributes: the first worker adds them."""
    return error.status == RPCStatusCode.INVALID_ARGUMENT and "search attribute" in error.message
