"""The soak's own judgement, without a lab: what counts as growth, and what does not."""

from __future__ import annotations

import random

from tests.lab.soak import fit

HOURS = [number / 360 for number in range(240)]


def test_noise_around_a_level_does_not_grow() -> None:
    draw = random.Random(1)
    line = fit(HOURS, [50 + draw.gauss(0, 3) for _ in HOURS])
    assert abs(line.slope) < 3 * line.error
    assert not line.grows(0.5)


def test_a_leak_under_noise_grows() -> None:
    draw = random.Random(2)
    line = fit(HOURS, [50 + 12 * at + draw.gauss(0, 3) for at in HOURS])
    assert abs(line.slope - 12) < 3 * line.error
    assert line.grows(2)


def test_a_single_step_is_less_sure_than_a_leak_of_the_same_slope() -> None:
    draw = random.Random(3)
    step = fit(HOURS, [50 + 5 * (at > HOURS[120]) + draw.gauss(0, 0.1) for at in HOURS])
    leak = fit(HOURS, [50 + step.slope * at + draw.gauss(0, 0.1) for at in HOURS])
    assert step.error > 5 * leak.error


def test_an_exact_line_has_no_doubt() -> None:
    line = fit(HOURS, [7.0 + 3 * at for at in HOURS])
    assert abs(line.slope - 3) < 1e-9 and line.error < 1e-9
    assert line.grows(2.9) and not line.grows(3.1)
