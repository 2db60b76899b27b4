"""Runs of lost seqs: counted exactly, found quickly, bounded in number."""

from hypothesis import given
from hypothesis import strategies as st

from topics.engine.state.losses import MAX_RUNS, Losses, LossSums


def test_neighbours_of_one_reason_are_one_run():
    losses = Losses()
    losses.add(1, 3, "cap")
    losses.add(4, 4, "cap")
    losses.add(5, 9, "ttl")
    losses.add(12, 12, "ttl")
    assert losses.runs == [(1, 4, "cap"), (5, 9, "ttl"), (12, 12, "ttl")]


def test_loss_below_a_known_gap_is_kept_in_order():
    losses = Losses()
    losses.add(50, 60, "corrupt")
    losses.add(1, 3, "cap")
    losses.add(4, 5, "cap")
    assert [run[:2] for run in losses.runs] == sorted(run[:2] for run in losses.runs)
    assert losses.within(1, 100) == (16, "mixed")


def test_a_range_counts_what_of_it_was_lost():
    losses = Losses([(3, 5, "cap"), (8, 9, "ttl")])
    assert losses.within(1, 9) == (5, "mixed")
    assert losses.within(4, 7) == (2, "cap")
    assert losses.within(9, 20) == (1, "ttl")
    assert losses.within(6, 7)[0] == 0


def test_run_is_found_by_its_seqs_and_by_the_seq_before():
    losses = Losses([(3, 5, "cap"), (8, 9, "ttl")])
    assert [losses.covering(seq) for seq in (2, 3, 5, 6, 9, 10)] == [
        None, (3, 5, "cap"), (3, 5, "cap"), None, (8, 9, "ttl"), None,
    ]  # fmt: skip
    assert [losses.next_from(seq) for seq in (0, 3, 4, 8, 9)] == [3, 3, 8, 8, None]


def test_past_the_bound_the_oldest_two_become_one_that_covers_both():
    losses = Losses()
    for seq in range(1, 2 * MAX_RUNS + 20, 2):
        losses.add(seq, seq, "cap")
    losses.compact(floor=2 * MAX_RUNS + 20)
    assert len(losses.runs) == MAX_RUNS
    assert losses.runs[0][0] == 1
    assert losses.covering(2) == losses.runs[0], "the seqs between them count as lost from then on"


def test_gaps_between_live_records_are_never_merged():
    losses = Losses()
    for seq in range(1, 2 * MAX_RUNS + 20, 2):
        losses.add(seq, seq, "corrupt")
    losses.compact(floor=2)
    assert losses.covering(2) is None


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.sampled_from(["cap", "ttl"])), max_size=20), st.data()
)
def test_what_was_added_is_what_is_counted(steps, data):
    losses, lost, at = Losses(), {}, 1
    for skip, length, reason in steps:
        at += skip
        losses.add(at, at + length - 1, reason)
        lost |= dict.fromkeys(range(at, at + length), reason)
        at += length
    low = data.draw(st.integers(1, at))
    high = data.draw(st.integers(low, at))
    inside = {seq: why for seq, why in lost.items() if low <= seq <= high}
    missed, reason = losses.within(low, high)
    assert missed == len(inside)
    if inside:
        assert reason == (set(inside.values()).pop() if len(set(inside.values())) == 1 else "mixed")
    run = losses.covering(low)
    assert (run is not None) == (low in lost)


def test_run_before_a_gap_joins_neighbours_of_its_reason():
    losses = Losses([(1, 2, "ttl"), (10, 20, "corrupt")])
    losses.add(3, 3, "ttl")
    assert losses.runs == [(1, 3, "ttl"), (10, 20, "corrupt")]
    losses.add(5, 9, "corrupt")
    assert losses.runs == [(1, 3, "ttl"), (5, 20, "corrupt")]
    losses.add(4, 4, "cap")
    assert losses.runs == [(1, 3, "ttl"), (4, 4, "cap"), (5, 20, "corrupt")]


def test_records_evicted_one_by_one_before_a_gap_stay_one_run():
    losses = Losses([(1_000, 2_000, "corrupt")])
    for seq in range(1, 500):
        losses.add(seq, seq, "cap")
    assert losses.runs == [(1, 499, "cap"), (1_000, 2_000, "corrupt")]


def test_total_counts_all_runs_even_when_they_are_joined():
    sums = LossSums()
    losses = Losses([(1, 2, "cap")], sums=sums)
    for number in range(1, MAX_RUNS + 20):
        losses.add(number * 10, number * 10 + 4, "cap" if number % 2 else "ttl")
        losses.compact(number * 10)
        assert losses.total == sum(last - first + 1 for first, last, _ in losses.runs) == sums.total
    assert sum(sums.by_reason.values()) == 5 * (MAX_RUNS + 19)
    assert sums.by_reason["cap"] - sums.by_reason["ttl"] == 5
    losses.end()
    assert sums.total == 0
