"""A regrade by hand, as `muster regrade` would keep it; free of torch."""

from pathlib import Path

from muster.store import Agreement, Changes, Compared, Graded, Regrade, Reproduced, keep_regrade


def graded(total: float, *, mixed: int, failed: int = 0) -> Graded:
    """Twelve rollouts of a step, less those that failed."""
    return Graded(
        total=total,
        scored=12 - failed,
        failed=failed,
        abstained=0,
        mixed=mixed,
        clipped_low=3,
        clipped_high=1,
        tokens=100,
    )


def compared(step: int | None) -> Compared:
    """A step whose scores double, or all of them."""
    number = step or 8
    return Compared(
        step=step,
        rollouts=12,
        groups=3,
        before=graded(number / 2, mixed=1, failed=1),
        after=graded(number, mixed=2, failed=2),
        advantage_correlation=0.75,
        agreement=Agreement(cosine=1 - number / 10, same_sign=0.9, relative_norm=0.5, tokens=90, unknown=10),
    )


def changes(step: int, group: int, index: int, why: str | None = None) -> Changes:
    """A rollout that got better, or lost its score."""
    return Changes(
        step=step,
        group=group,
        index=index,
        score_before=0.25,
        score_after=None if why else 0.875,
        advantage_before=-0.5,
        advantage_after=0.0 if why else 1.25,
        why=why,
    )


def keep(folder: Path, name: str = "stricter", *, said: str = "moody ValueError") -> Path:
    """Keeps it in a run of 8 steps; `said` is what the reward failed with, and stands wherever text may."""
    rows = [changes(3, 0, 0), changes(3, 0, 1), changes(3, 0, 2, said), changes(4, 0, 0)]
    regrade = Regrade(
        name=name,
        made="2026-01-02T03:04:05+00:00",
        settings=({"path": "reward.use", "before": '["near"]', "after": said},),
        is_graded=True,
        whole=compared(None),
        steps=tuple(compared(step) for step in range(1, 9)),
        changed_most=(rows[0], rows[2]),
        is_unchanged=False,
        reproduced=Reproduced(advantages=95, of_advantages=96, clip_steps=8, of_clip_steps=8),
        left_out=(f"step 9: {said}",),
        notes=(said,),
        failures={said: 2},
    )
    return keep_regrade(folder, regrade, rows)
