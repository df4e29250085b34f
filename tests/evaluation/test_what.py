"""What: ranks of relations under the filters, against ranks made by hand."""

from __future__ import annotations

import torch

from bridgemem.evaluation.what import _Others, _ranks
from bridgemem.forecasting.relations import PairQueries
from builders import random_log


def test_ranks_leave_other_events_of_the_two_at_the_step_out() -> None:
    events = random_log(4, n=400)
    queries, n = PairQueries.of(events), events.n_relations
    assert queries.answer is not None
    score = torch.randint(0, 4, (len(queries), 2 * n), generator=torch.Generator().manual_seed(0)).double()
    mask = _Others(events).mask(queries, n)
    facts = set(zip(*(c.tolist() for c in (events.subject, events.relation, events.object, events.step)), strict=True))
    for most, found in ((n, _ranks(score, queries, mask, n)), (2 * n, _ranks(score, queries, mask, None))):
        for row in range(len(queries)):
            a, b, t, own = (int(c[row]) for c in (queries.first, queries.second, queries.step, queries.answer))
            rank = 1.0
            for r in range(most):
                fact = (a, r, b, t) if r < n else (b, r - n, a, t)
                if r == own or fact in facts:
                    continue
                rank += float(score[row, r] > score[row, own]) + float(score[row, r] == score[row, own]) / 2
            assert found[row] == rank
