"""Each day other seeds: what a fixed list of seeds would never find is found one day, and can be run again."""

from __future__ import annotations

import datetime

import pytest

from simulations.__main__ import question
from simulations.question import Parameters, ask
from simulations.search import BAND_TICKS, band_of


@pytest.mark.slow
def test_the_seeds_of_the_day_break_nothing(capsys):
    band = band_of(datetime.datetime.now(tz=datetime.UTC).date())
    command = f"python -m simulations search --seeds {band.start}:{band.stop} --ticks {BAND_TICKS}"
    with capsys.disabled():
        print(f"\nseeds of the day: {command}")
    answer = ask(question("search"), Parameters("quick", seeds=tuple(band), ticks=BAND_TICKS)).answer
    assert answer.holds, "\n".join([command, *answer.notes])


def test_each_day_of_ten_years_has_seeds_of_its_own():
    start = datetime.date(2026, 1, 1)
    bands = [band_of(start + datetime.timedelta(days=day)) for day in range(3650)]
    seeds = {seed for band in bands for seed in band}
    assert len(seeds) == sum(map(len, bands))
    assert min(seeds) > 4096
    assert band_of(start) == band_of(start)
