"""The collector rests while a model is loaded, and works as before afterwards."""

import gc

import pytest

from caldrix.cli.collector import THRESHOLD, held_off


def test_it_rests_meanwhile_and_what_is_there_is_never_looked_at_again() -> None:
    usual, n_frozen = gc.get_threshold(), gc.get_freeze_count()
    gc.collect()
    n_before = gc.get_stats()[0]["collections"]
    with held_off():
        assert gc.get_threshold() == (THRESHOLD, *usual[1:])
        made = [[i] for i in range(THRESHOLD // 2)]
        assert gc.get_stats()[0]["collections"] == n_before
    assert gc.get_threshold() == usual
    assert gc.get_freeze_count() >= n_frozen + len(made)
    gc.unfreeze()


def test_a_refused_model_leaves_it_as_it_was() -> None:
    usual = gc.get_threshold()
    with pytest.raises(ValueError, match="refused"), held_off():
        raise ValueError("refused")
    assert gc.get_threshold() == usual
    gc.unfreeze()
