"""The learned residual: an addition to the backbone's score, fitted on validation, blind to the future and to test."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from bridgemem.backbones.check import other_futures
from bridgemem.backbones.ensemble import Ensemble, EnsembleSettings
from bridgemem.backbones.recurrence import RecurrenceDyadic
from bridgemem.backbones.scorer import score_queries
from bridgemem.config import Settings
from bridgemem.errors import SettingsError
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.events.world import WorldSettings, simulate
from bridgemem.evidence.transitions import Transitions
from bridgemem.memory.past import Past
from bridgemem.ranking.filters import Filters
from bridgemem.residuals import learned as learned_module
from bridgemem.residuals.activity import Activity, columns_of
from bridgemem.residuals.cases import CaseReader, Cases, Source, best_scale
from bridgemem.residuals.features import NAMES, FeatureReader, Features, group_columns, highest
from bridgemem.residuals.learned import OF_CANDIDATE, OF_QUERY, Learned, LearnedNet, LearnedSettings
from bridgemem.residuals.learning import Fit, _Training, earlier_sources, fit_learned, gather, serving
from bridgemem.residuals.neighbours import DECAY_RATES, FLOOR, Neighbours
from bridgemem.residuals.scoring import Choice, Scoring, replay
from bridgemem.residuals.validation import Validation
from precision import close

QUICK = LearnedSettings(epochs=6, hidden=16, relation_width=4, batch=64, unseen_candidates=5)
PLAIN = replace(QUICK, unseen_candidates=0)
READER = Settings(max_epochs=2)
TINY_READER = Settings(width=8, hidden=8, max_epochs=2)


@pytest.fixture(scope="module")
def data() -> Dataset:
    return simulate(WorldSettings(actors=40, events=4_000, steps=60)).dataset


@pytest.fixture(scope="module")
def transitions(data: Dataset) -> Transitions:
    return Transitions.fit(data.train, READER, seed=1, epochs=1)[0]


@pytest.fixture(scope="module")
def fits(data: Dataset, transitions: Transitions) -> dict[str, Fit]:
    return fit_learned(Validation.of(data, RecurrenceDyadic.fit(data)), transitions, QUICK, seed=3)


@pytest.fixture(scope="module")
def fitted(fits: dict[str, Fit]) -> Learned:
    return fits["raw"].model


def test_features_are_what_a_slow_count_of_the_past_gives(data: Dataset, transitions: Transitions) -> None:
    past, events = Past(data.events), data.events
    queries = Queries.of(data.test).take(slice(0, 40))
    found = FeatureReader(past, transitions).read(queries, score_queries(RecurrenceDyadic.fit(data), queries, past))
    column = {name: found.x[:, i] for i, name in enumerate(NAMES)}
    assert len(found.row) > 100
    for i in range(0, len(found.row), 37):
        q, c = int(found.row[i]), int(found.candidate[i])
        actor, asked, now = int(queries.actor[q]), int(queries.relation[q]), int(queries.step[q])
        before = events.step < now
        ways = [(events.subject == actor) & (events.object == c), (events.subject == c) & (events.object == actor)]
        pair = before & (ways[0] | ways[1])
        inverse, relation = divmod(asked, events.n_relations)
        triple = before & ways[inverse] & (events.relation == relation)
        steps = np.unique(events.step[triple])
        # an event of an actor with itself is on the pair in both orientations
        times = int(pair.sum()) * (2 if actor == c else 1)
        assert column["log pair count"][i] == pytest.approx(np.log1p(times), rel=1e-5)
        assert column["log pair lag"][i] == pytest.approx(np.log1p(now - events.step[pair].max()), rel=1e-5)
        assert column["log triple count"][i] == pytest.approx(np.log1p(len(steps)), rel=1e-5)
        active = before & ((events.subject == c) | (events.object == c))
        twice = int((before & (events.subject == c) & (events.object == c)).sum())
        assert column["log candidate count"][i] == pytest.approx(np.log1p(active.sum() + twice), rel=1e-5)


def test_activity_is_the_same_looked_up_and_counted_for_everybody(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = data.events
    columns = events.object.astype(np.int64) * 3, events.step.astype(np.int64), 3 * events.n_entities + 1
    activity = Activity(*columns, torch.device("cpu"))
    for step, cut in ((0, 0), (1, 1), (25, 25), (59, 59), (59, 20)):
        rank = torch.arange(len(activity.everybody(cut)))
        table = columns_of(activity.everybody(cut), torch.full_like(rank, step))
        looked_up = activity.read(rank, torch.full_like(rank, step), torch.full_like(rank, cut))
        assert torch.equal(table, looked_up)
        before = events.step < cut
        counts = np.bincount(events.object[before], minlength=events.n_entities)[np.unique(events.object)]
        assert close(table[:-1, 0], np.log1p(counts))
        lately = before & (events.step >= cut - 3)
        counts = np.bincount(events.object[lately], minlength=events.n_entities)[np.unique(events.object)]
        assert close(table[:-1, 2], np.log1p(counts))
    for span in (0, 1 << 24):
        monkeypatch.setattr("bridgemem.residuals.activity.SPAN", span)
        other = Activity(*columns, torch.device("cpu"))
        assert other.find(torch.tensor([1, 3 * events.n_entities])).tolist() == [len(activity.keys)] * 2
        assert other.find(activity.keys).tolist() == list(range(len(activity.keys)))


@pytest.mark.parametrize("lookup", [0, 10**9])
def test_features_do_not_depend_on_how_activity_is_read(
    data: Dataset, transitions: Transitions, monkeypatch: pytest.MonkeyPatch, lookup: int
) -> None:
    past, queries = Past(data.events), Queries.of(data.test).take(slice(0, 60))
    scores = score_queries(RecurrenceDyadic.fit(data), queries, past)
    reader = FeatureReader(past, transitions, unseen_candidates=5)
    expected = reader.read(queries, scores)
    monkeypatch.setattr("bridgemem.residuals.activity.LOOKUP", lookup)
    assert torch.equal(reader.read(queries, scores).x, expected.x)


def test_features_of_a_query_do_not_depend_on_the_others_of_its_batch(data: Dataset, transitions: Transitions) -> None:
    past, queries = Past(data.events, frozen_at=50), Queries.of(data.test).take(slice(0, 30))
    backbone, reader = RecurrenceDyadic.fit(data), FeatureReader(past, transitions, unseen_candidates=5)
    whole = reader.read(queries, score_queries(backbone, queries, past))
    for q in range(0, 30, 7):
        one = queries.take(slice(q, q + 1))
        alone = reader.read(one, score_queries(backbone, one, past))
        assert torch.equal(whole.candidate[whole.row == q], alone.candidate)
        assert close(whole.x[whole.row == q], alone.x)


@torch.no_grad()
def dense(model: Learned, found: Features, queries: Queries) -> torch.Tensor:
    """f / w of every candidate, by all of its features through the whole network."""
    return (model.net(found.x, queries.relation[found.row]) / model.net.scale).double()


@pytest.mark.parametrize("rows", [7, 1 << 13])
def test_the_network_gives_the_same_where_queries_share_its_first_layer(
    data: Dataset, transitions: Transitions, fitted: Learned, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    past, queries = Past(data.events), Queries.of(data.test).take(slice(0, 20))
    found = FeatureReader(past, transitions, fitted.settings.unseen_candidates).read(
        queries, score_queries(RecurrenceDyadic.fit(data), queries, past)
    )
    monkeypatch.setitem(learned_module._ROWS, "cpu", rows)
    expected = dense(fitted, found, queries)
    assert close(fitted.corrections(found, queries.relation), expected)
    assert float(expected.std()) > 0.01


def test_every_feature_belongs_to_one_group() -> None:
    covered = [i for part in group_columns().values() for i in part]
    assert covered == list(range(len(NAMES)))


def test_an_unfitted_network_is_the_backbone(data: Dataset, transitions: Transitions) -> None:
    model = Learned(QUICK, LearnedNet(2 * data.events.n_relations, QUICK))
    queries, backbone = Queries.of(data.test).take(slice(0, 60)), RecurrenceDyadic.fit(data)
    read = replay(
        Scoring(backbone, Past(data.events), transitions, learned=[model]), queries, filters=Filters(data.events)
    )
    assert np.array_equal(read.ranks[:, 0], read.ranks[:, 1])


def test_in_the_plain_form_only_candidates_ever_seen_are_touched(data: Dataset, transitions: Transitions) -> None:
    past, queries = Past(data.events), Queries.of(data.test).take(slice(0, 50))
    found = FeatureReader(past, transitions).read(queries, score_queries(RecurrenceDyadic.fit(data), queries, past))
    seen = set(zip(*(t.tolist() for t in past.seen(queries.actor, queries.step)), strict=True))
    assert set(zip(found.row.tolist(), found.candidate.tolist(), strict=True)) == seen


@pytest.mark.parametrize("most", [1, 4, 9, 12])
def test_of_equal_ratings_the_first_are_taken_whatever_stands_next_to_them(most: int) -> None:
    draw = torch.Generator().manual_seed(most)
    rating = torch.randint(0, 4, (60, 12), generator=draw).float()
    rating[torch.rand(60, 12, generator=draw) < 0.4] = -torch.inf
    order = rating.argsort(dim=1, descending=True, stable=True)[:, :most].tolist()
    wide = torch.cat([rating, torch.full((60, 400), -torch.inf)], dim=1)
    for row, by_sort in enumerate(order):
        expected = {i for i in by_sort if rating[row, i] > -torch.inf}
        for among in (rating, wide):
            assert set(highest(among, most)[row].tolist()) - {-1} == expected


def test_unseen_candidates_are_read_besides_all_that_were_seen(data: Dataset, transitions: Transitions) -> None:
    past, queries = Past(data.events), Queries.of(data.test).take(slice(0, 50))
    scores = score_queries(RecurrenceDyadic.fit(data), queries, past)
    found = FeatureReader(past, transitions, unseen_candidates=5).read(queries, scores)
    pairs = list(zip(found.row.tolist(), found.candidate.tolist(), strict=True))
    assert pairs == sorted(set(pairs))
    seen = set(zip(*(t.tolist() for t in past.seen(queries.actor, queries.step)), strict=True))
    is_seen = found.x[:, NAMES.index("seen pair")] == 1
    assert {p for p, m in zip(pairs, is_seen, strict=True) if m} == seen
    unseen_candidates = torch.bincount(found.row[~is_seen], minlength=50)
    # fewer only where fewer are left
    unseen = data.events.n_entities - torch.bincount(found.row[is_seen], minlength=50)
    assert unseen_candidates.tolist() == unseen.clamp(max=5).tolist()
    lags = found.x[~is_seen][:, NAMES.index("log pair lag")]
    assert len(lags) > 0
    assert (lags > found.x[is_seen][:, NAMES.index("log pair lag")].max()).all()


def test_common_neighbours_is_what_a_slow_walk_over_third_parties_gives(data: Dataset) -> None:
    past, events, now = Past(data.events), data.events, int(data.test.step[0])
    graph = np.zeros((len(DECAY_RATES), events.n_entities, events.n_entities))
    for s, o, step in zip(events.subject, events.object, events.step, strict=True):
        if step < now:
            decayed = np.exp([-(now - 1 - step) / rate for rate in DECAY_RATES])
            graph[:, s, o] += decayed
            graph[:, o, s] += decayed
    graph = np.log1p(graph)
    scale = 1 / np.sqrt(graph.sum(2) + 1e-6)
    graph *= scale[:, :, None] * scale[:, None, :]
    actors = torch.tensor([3, 0, 3, 7])
    found = Neighbours(past).shared(actors, torch.full((4,), now))
    expected = (graph @ graph + FLOOR)[:, actors.numpy()]
    assert close(found.log().transpose(1, 2).numpy(), np.log(expected), 0.0001)


def opinionated(cases: Cases, name: str) -> _Training:
    """A network that was not fitted and has opinions, on cases."""
    torch.manual_seed(0)
    training = _Training(cases, name, QUICK)
    torch.nn.init.normal_(training.net.body[-1].weight)
    training.net.eval()
    return training


@pytest.mark.parametrize("name", ["raw", "time", "static"])
def test_the_loss_is_cross_entropy_over_all_candidates_the_filter_leaves(
    data: Dataset, transitions: Transitions, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridgemem.residuals.cases.RATE", 1.0)
    monkeypatch.setattr("bridgemem.residuals.cases.MOST_BY_RATE", 10**9)
    past, filters, backbone = Past(data.known), Filters(data.known), RecurrenceDyadic.fit(data)
    queries, scale = Queries.of(data.valid).take(slice(0, 30)), 0.7
    scored = Scoring(backbone, past, transitions, unseen=QUICK.unseen_candidates).of(queries)
    features, mask = scored.features, filters.mask(name, queries)
    assert features is not None
    reader = CaseReader(past, filters, QUICK.unseen_candidates, scale, seed=0)
    training = opinionated(reader.read(Source(queries, backbone, transitions)), name)
    with torch.no_grad():
        found = training.losses(torch.arange(30))
        dense = scored.scores.log_p.float().log_softmax(1) * scale
        dense[features.row, features.candidate] += training.net(features.x, queries.relation[features.row])
        dense[mask] = -torch.inf
        assert queries.answer is not None
        expected = -dense.log_softmax(1)[torch.arange(30), queries.answer]
    # features are kept in half precision while fitting
    assert close(found, expected, 0.005)


@pytest.mark.parametrize("name", ["raw", "time"])
def test_sampled_candidates_stand_for_all_of_them(
    data: Dataset, transitions: Transitions, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    past, filters, backbone = Past(data.known), Filters(data.known), RecurrenceDyadic.fit(data)
    queries = Queries.of(data.valid).take(slice(0, 30))

    def mass(seed: int) -> tuple[Tensor, int]:
        """The summed e^S of each query, and how many candidates it was summed from."""
        reader = CaseReader(past, filters, QUICK.unseen_candidates, 0.7, seed)
        cases = reader.read(Source(queries, backbone, transitions))
        training = opinionated(cases, name)
        training.net.standardise(of_query, of_candidate)
        training.of_query = training.net.scaled(cases.of_query, training.net.columns[0])
        rows = torch.arange(30)
        row, at, f = training.values(rows)
        own = cases.own.index_add(0, row, f * cases.is_answer[at])
        return (training.losses(rows) + own).exp().detach(), len(cases.x)

    monkeypatch.setattr("bridgemem.residuals.cases.KEEP_ALL", 2.0)
    with monkeypatch.context() as whole:
        whole.setattr("bridgemem.residuals.cases.RATE", 1.0)
        whole.setattr("bridgemem.residuals.cases.MOST_BY_RATE", 10**9)
        every = CaseReader(past, filters, QUICK.unseen_candidates, 0.7, 0).read(Source(queries, backbone, transitions))
        of_query, of_candidate = every.of_query, every.x
        exact, all_of_them = mass(0)
    drawn = [mass(seed) for seed in range(60)]
    assert max(size for _, size in drawn) < 0.7 * all_of_them
    mean = torch.stack([total for total, _ in drawn]).mean(0)
    assert float((mean / exact - 1).abs().mean()) < 0.1
    assert float((mean.sum() / exact.sum() - 1).abs()) < 0.05


def test_the_scale_is_the_one_under_which_the_answers_are_likeliest(data: Dataset) -> None:
    past, queries, backbone = Past(data.known), Queries.of(data.valid), RecurrenceDyadic.fit(data)
    scores = score_queries(backbone, queries, past).log_p.float().log_softmax(1)
    assert queries.answer is not None

    def likelihood(scale: float) -> float:
        return float((scores * scale).log_softmax(1)[torch.arange(len(queries)), queries.answer].mean())

    best = best_scale(backbone, past, queries, seed=0)
    assert likelihood(best) >= max(likelihood(best * 1.4), likelihood(best / 1.4))


def test_a_filter_without_a_network_of_its_own_uses_that_without_a_filter() -> None:
    assert serving(("raw",), "time") == "raw"
    assert serving(("raw", "time"), "time") == "time"
    assert serving(("raw", "time"), "static") == "raw"
    assert serving((), "static") is None


def test_one_network_for_each_filter_is_fitted_on_request(data: Dataset, transitions: Transitions) -> None:
    validation, choices = Validation.of(data, RecurrenceDyadic.fit(data)), {"static": Choice(), "time": Choice()}
    each = fit_learned(validation, transitions, replace(QUICK, fitted_under="each", epochs=1), choices=choices)
    assert list(each) == ["raw", "static", "time"]
    assert [list(fit.held_out) for fit in each.values()] == [["raw"], ["static"], ["time"]]
    raw = fit_learned(validation, transitions, replace(QUICK, fitted_under="raw", epochs=1), choices=choices)
    assert list(raw) == ["raw"]
    assert list(raw["raw"].held_out) == ["raw", "static", "time"]
    # the others change nothing of it
    assert all(torch.equal(t, raw["raw"].model.tensors()[k]) for k, t in each["raw"].model.tensors().items())
    assert not torch.equal(each["raw"].model.net.body[0].weight, each["time"].model.net.body[0].weight)


def test_the_paper_s_residual_ranks_the_same_next_to_learned_ones(
    data: Dataset, transitions: Transitions, fits: dict[str, Fit]
) -> None:
    queries, backbone = Queries.of(data.test).take(slice(0, 200)), RecurrenceDyadic.fit(data)
    past, filters, choices = Past(data.events), Filters(data.events), [Choice(), Choice(lam=3.0, gate="none")]
    alone = replay(Scoring(backbone, past, transitions, choices=choices), queries, filters=filters)
    beside = replay(
        Scoring(backbone, past, transitions, choices=choices, learned=[fits["raw"].model, fits["raw"].model]),
        queries,
        filters=filters,
    )
    assert beside.ranks.shape[1] == 5
    assert np.array_equal(beside.ranks[:, :3], alone.ranks)
    assert np.array_equal(beside.answer_support, alone.answer_support)
    assert np.array_equal(beside.answer_lag, alone.answer_lag, equal_nan=True)


def test_models_that_read_different_unseen_candidates_are_not_mixed(
    data: Dataset, transitions: Transitions, fitted: Learned
) -> None:
    plain = Learned(PLAIN, fitted.net)
    with pytest.raises(SettingsError, match="unseen candidates"):
        replay(
            Scoring(RecurrenceDyadic.fit(data), Past(data.events), transitions, learned=[plain, fitted]),
            Queries.of(data.test),
            filters=Filters(data.events),
        )


def test_a_group_that_is_left_out_moves_nothing() -> None:
    torch.manual_seed(0)
    x, relation = torch.randn(50, len(NAMES)) * 3 + 1, torch.zeros(50, dtype=torch.int64)
    net = LearnedNet(2, QUICK)
    torch.nn.init.normal_(net.body[-1].weight)
    net.standardise(x[:, OF_QUERY], x[:, OF_CANDIDATE], ("pair", "common_neighbours"))
    net.eval()
    other = x.clone()
    for group in ("pair", "common_neighbours"):
        other[:, group_columns()[group]] += 5
    assert torch.equal(net(x, relation), net(other, relation))
    other[:, group_columns()["actor"]] += 5
    assert not torch.equal(net(x, relation), net(other, relation))


def test_mean_and_deviation_in_parts_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x, net = torch.randn(50, len(NAMES)) * 3 + 1, LearnedNet(2, QUICK)
    monkeypatch.setattr(learned_module, "_CHUNK", 7)
    net.standardise(x[:, OF_QUERY], x[:, OF_CANDIDATE])
    assert close(net.mean, x.mean(0))
    assert close(net.inverse, 1 / x.std(0))


@pytest.mark.parametrize("examples", [0, 1])
def test_too_few_examples_to_standardise_by_make_no_nan(examples: int) -> None:
    net = LearnedNet(4, PLAIN)
    x = torch.ones(examples, len(NAMES))
    net.standardise(x[:, OF_QUERY], x[:, OF_CANDIDATE], ("pair",))
    assert torch.isfinite(net(torch.ones(2, len(NAMES)), torch.zeros(2, dtype=torch.int64))).all()


def test_corrections_at_a_step_do_not_see_it_or_anything_after(
    data: Dataset, transitions: Transitions, fitted: Learned
) -> None:
    now = int(data.test.step[len(data.test) // 2])
    queries, backbone = Queries.of(data.events.between(now, now + 1)), RecurrenceDyadic.fit(data)

    def read(events: EventLog) -> tuple[torch.Tensor, torch.Tensor]:
        past = Past(events)
        found = FeatureReader(past, transitions, fitted.settings.unseen_candidates).read(
            queries, score_queries(backbone, queries, past)
        )
        return found.x, dense(fitted, found, queries)

    expected = read(data.events)
    for future in other_futures(data.events, now, np.random.default_rng(0)).values():
        assert all(torch.equal(a, b) for a, b in zip(expected, read(future), strict=True))


def test_fitting_is_deterministic_and_never_reads_test(
    data: Dataset, transitions: Transitions, fitted: Learned
) -> None:
    assert data.test_start is not None
    garbage = other_futures(data.events, data.test_start, np.random.default_rng(1))[
        "the future was made of random facts"
    ]
    other = replace(data, events=garbage)
    again = fit_learned(Validation.of(other, RecurrenceDyadic.fit(other)), transitions, QUICK, seed=3)["raw"].model
    assert all(torch.equal(a, again.tensors()[name]) for name, a in fitted.tensors().items())


def test_of_a_ensemble_it_reads_what_every_member_says(data: Dataset, transitions: Transitions) -> None:
    ensemble = Ensemble.fit(data, EnsembleSettings(members=("hri", "recurrence-dyadic")))
    past, queries = Past(data.events), Queries.of(data.valid).take(slice(0, 30))
    scores = score_queries(ensemble, queries, past)
    found = FeatureReader(past, transitions, 5).read(queries, scores)
    assert scores.members is not None
    expected = scores.members[:, found.row, found.candidate].T
    assert torch.equal(found.x[:, len(NAMES) :], expected.float())
    learned = fit_learned(Validation.of(data, ensemble), transitions, QUICK, seed=3)["raw"].model
    assert learned.net.members == 2
    together = learned.corrections(found, queries.relation)
    assert close(together, dense(learned, found, queries))
    again = Learned.restore(QUICK, learned.tensors())
    assert torch.equal(again.corrections(found, queries.relation), together)
    # the members belong to the group of the backbone, so that leaving it out leaves them out
    blind = LearnedNet(2 * data.events.n_relations, QUICK, members=2)
    blind.standardise(found.x[:, OF_QUERY], found.x[:, blind.columns[1]], ("backbone",))
    assert (blind.inverse[len(NAMES) :] == 0).all()


def test_late_train_is_learned_from_too_with_a_backbone_and_counts_of_before(
    data: Dataset, transitions: Transitions
) -> None:
    validation = Validation.of(data, RecurrenceDyadic.fit(data))
    own, trained = replace(QUICK, cross_fit=0.25), []

    def train_again(split: Dataset, share: float) -> RecurrenceDyadic:
        trained.append(split)
        return RecurrenceDyadic.fit(split)

    (earlier,) = earlier_sources(validation, train_again, own, transitions=transitions, seed=1, epochs=1)
    (split,) = trained
    assert split.events.fingerprint == data.train.fingerprint
    assert 0.15 < len(split.valid) / len(data.train) < 0.35
    assert int(earlier.queries.step.min()) == split.valid_start
    # counts of before the slice only
    assert int(earlier.transitions.counts.counts.sum()) < int(transitions.counts.counts.sum())
    plain = gather(validation, transitions, own)
    joined = gather(validation, transitions, own, earlier=[earlier])
    early = len(earlier.queries)
    assert len(joined) == early + len(plain)
    assert int(joined.step[:early].max()) < int(joined.step[early:].min()) == data.valid_start
    (few,) = earlier_sources(
        validation, train_again, replace(own, train_queries=50), transitions=transitions, seed=1, epochs=1
    )
    assert len(few.queries) == 50
    assert bool((few.queries.step.diff() >= 0).all())


def test_blocks_of_train_follow_each_other_and_know_nothing_of_themselves(
    data: Dataset, transitions: Transitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    validation, shares = Validation.of(data, RecurrenceDyadic.fit(data)), []

    def train_again(split: Dataset, share: float) -> RecurrenceDyadic:
        shares.append((round(share, 6), len(split.train) / len(data.train)))
        return RecurrenceDyadic.fit(split)

    def sources(**changed: int) -> list[Source]:
        own = replace(QUICK, cross_fit=0.25, blocks=3, **changed)
        return earlier_sources(validation, train_again, own, transitions=transitions, seed=1, epochs=1)

    found = sources(train_queries=10**6)
    assert [share for share, _ in shares] == [0.25, 0.5, 0.75]
    assert all(abs(1 - share - kept) < 0.1 for share, kept in shares)
    starts = [int(one.queries.step.min()) for one in found]
    ends = [int(one.queries.step.max()) for one in found]
    assert all(end < start for end, start in zip(ends, [*starts[1:], data.valid_start], strict=True))
    # what a block is scored by was counted before it began
    counted = [int(one.transitions.counts.counts.sum()) for one in found]
    assert counted == sorted(counted)
    assert counted[-1] < int(transitions.counts.counts.sum())
    # the newest blocks come first where fewer queries are wanted
    newest = len(found[-1].queries)
    two = sources(train_queries=newest + 5)
    assert [len(one.queries) for one in two] == [5, newest]
    assert len(sources(train_queries=newest)) == 1
    # and none is added where the others have enough
    monkeypatch.setattr("bridgemem.residuals.learning.ENOUGH", newest + 1)
    assert len(sources(train_queries=10**6)) == 2


def test_cases_hold_no_more_than_asked_for_however_many_partners_there_are(
    data: Dataset, transitions: Transitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    validation = Validation.of(data, RecurrenceDyadic.fit(data))
    cases = gather(validation, transitions, replace(QUICK, valid_queries=100))
    assert len(cases) == 100
    monkeypatch.setattr("bridgemem.residuals.cases.KEEP_ALL", 0.0)
    monkeypatch.setattr("bridgemem.residuals.cases.RATE", 1.0)
    monkeypatch.setattr("bridgemem.residuals.cases.MOST_BY_RATE", 2)
    few = gather(validation, transitions, QUICK)
    assert len(few.x) < 3.5 * len(few)


def test_some_of_the_cases_are_those_they_are_among_all(data: Dataset, transitions: Transitions) -> None:
    cases = gather(Validation.of(data, RecurrenceDyadic.fit(data)), transitions, QUICK)
    rows = torch.arange(3, len(cases), 7)
    some, training = cases.take(rows), opinionated(cases, "time")
    whole = training.losses(rows)
    training.cases, training.rest = some, some.rest["time"]
    training.of_query = training.of_query[rows]
    training.log_weight = training.log_weight[cases.candidates(rows)[1]]
    assert close(training.losses(torch.arange(len(some))), whole)


def test_it_lifts_the_backbone_on_a_world_with_planted_transitions(
    data: Dataset, transitions: Transitions, fitted: Learned
) -> None:
    past, filters = Past(data.events), Filters(data.events)
    read = replay(
        Scoring(RecurrenceDyadic.fit(data), past, transitions, learned=[fitted]), Queries.of(data.test), filters=filters
    )
    assert read.metrics("time", 1).mrr > read.metrics("time", 0).mrr + 0.02


def test_features_of_some_candidates_are_those_they_have_among_all(data: Dataset, transitions: Transitions) -> None:
    past, queries = Past(data.events), Queries.of(data.test).take(slice(0, 40))
    scores = score_queries(RecurrenceDyadic.fit(data), queries, past)
    reader = FeatureReader(past, transitions, unseen_candidates=5)
    whole, found = reader.read(queries, scores), reader.candidates(queries, scores)
    draw = torch.Generator().manual_seed(0)
    for some in (
        (torch.rand(len(found.keys), generator=draw) < 0.2).nonzero().squeeze(1),
        torch.arange(0),
        torch.arange(len(found.keys)),
    ):
        read = reader.features(queries, scores, found.take(some))
        assert torch.equal(read.row, whole.row[some])
        assert torch.equal(read.candidate, whole.candidate[some])
        assert close(read.x, whole.x[some])
        assert torch.equal(read.evidence.candidate, read.candidate[read.at])
