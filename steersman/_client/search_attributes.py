"""Steersman's search attributes (steersman.contracts.names) in the types of Temporal's SDK and API."""

from typing import Final

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.common import SearchAttributeKey

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
