"""The table of `tests.faults.table` on Ray: a twenty-third of it, the rest with the soaks."""

import pytest
import ray

from tests.faults import cell, table
from tests.faults.test_table import cells
from tests.ray.cluster import idle
from tests.ray.plugin import PLACE

ALONE = PLACE.options | {"envs_per_actor": 1}
POOLS = {table.RAY: (PLACE.pool, ALONE, {"envs_per_actor": cell.NUM})}

CASES = [
    pytest.param(*case.values, id=case.id, marks=[pytest.mark.soak] if number % 23 else [])
    for number, case in enumerate(cells((table.RAY,)))
]


@pytest.mark.parametrize(("row", "backend", "on_error"), CASES)
def test_a_cell_of_the_table_on_ray(row, backend, on_error, tmp_path):
    while idle:  # an actor of the cell before may be about to end
        ray.kill(idle.pop()[0])
    problems = cell.Cell(row, backend, on_error, tmp_path, POOLS).run()
    assert not problems, "\n".join(problems)
