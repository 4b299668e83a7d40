"""What every runtime holds, in pods of other clusters: of an old release, and of the one that KUBECONFIG names.

The tests are those of `test_runtime`: what the way to a pod, which is another one there, could spoil.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.runtimes.pods import REAL
from tests.runtimes.stage import Place
from tests.runtimes.test_runtime import (
    test_a_copy_that_was_cut_or_spoilt_is_made_whole,
    test_a_flood_arrives_whole_while_the_agent_works,
    test_a_line_of_5_mb,
    test_a_living_agent_is_not_released,
    test_a_machine_that_is_lost_and_comes_back_loses_and_doubles_nothing,
    test_a_stop_after_the_end,
    test_a_stop_before_the_start_prevents_it,
    test_a_stop_finds_the_newest_process,
    test_a_stop_leaves_nothing_and_nothing_follows,
    test_another_worker_adopts_it_and_the_first_is_fenced_off,
    test_each_write_is_done_once,
    test_lines_of_any_length_and_of_any_bytes,
    test_nothing_is_left_there_after_the_run_and_the_journal_is_here,
    test_private_files_are_put_beside_the_process,
    test_reading_goes_on_at_any_record,
    test_records_that_stop_coming_unsaid_are_fetched_another_way,
    test_what_a_killed_shim_left_is_cleared_away_before_the_run_goes_on,
    test_what_a_killed_shim_left_is_found_by_a_stop,
)

pytestmark = [pytest.mark.integration, pytest.mark.linux]

__all__ = [
    "test_a_copy_that_was_cut_or_spoilt_is_made_whole",
    "test_a_flood_arrives_whole_while_the_agent_works",
    "test_a_line_of_5_mb",
    "test_a_living_agent_is_not_released",
    "test_a_machine_that_is_lost_and_comes_back_loses_and_doubles_nothing",
    "test_a_stop_after_the_end",
    "test_a_stop_before_the_start_prevents_it",
    "test_a_stop_finds_the_newest_process",
    "test_a_stop_leaves_nothing_and_nothing_follows",
    "test_another_worker_adopts_it_and_the_first_is_fenced_off",
    "test_each_write_is_done_once",
    "test_lines_of_any_length_and_of_any_bytes",
    "test_nothing_is_left_there_after_the_run_and_the_journal_is_here",
    "test_private_files_are_put_beside_the_process",
    "test_reading_goes_on_at_any_record",
    "test_records_that_stop_coming_unsaid_are_fetched_another_way",
    "test_what_a_killed_shim_left_is_cleared_away_before_the_run_goes_on",
    "test_what_a_killed_shim_left_is_found_by_a_stop",
]


@pytest.fixture(params=["old-pod", pytest.param(REAL, marks=pytest.mark.cluster)])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    place = await Place(tmp_path, request.param).ready()
    yield place
    await place.aclose()


@pytest.fixture
def there(place: Place) -> Place:
    return place
