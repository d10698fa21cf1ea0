"""Quantities derived from raw counters, always recomputed. Names are vLLM's.

With drafts = request-steps that carried a draft:

* tokens per step = output tokens / request-steps, steps without a draft counted
* mean acceptance length K = 1 + accepted / drafts (the bonus token included)
* acceptance rate a = accepted / drafted
* draft coverage c = drafts / request-steps; 1 + c (K - 1) is what a step emits, cut at a stop included
"""

from __future__ import annotations

import numpy as np
import pandas as pd


def derive(runs: pd.DataFrame, requests: pd.DataFrame | None = None) -> pd.DataFrame:
    """`runs` with tok_s, tokens_per_step, mean_acceptance_length, acceptance_rate, draft_coverage and, given `requests`,
    cap_share (requests cut at `output_tokens`); NaN where a run drafted nothing or failed."""
    drafts, drafted = (runs[n].where(runs[n] > 0) for n in ("num_drafts", "num_draft_tokens"))
    made = runs.assign(
        tok_s=runs.num_output_tokens / runs.wall_s,
        tokens_per_step=runs.num_output_tokens / runs.num_request_steps,
        mean_acceptance_length=1 + runs.num_accepted_tokens / drafts,
        acceptance_rate=runs.num_accepted_tokens / drafted,
        draft_coverage=runs.num_drafts / runs.num_request_steps,
    )
    if requests is not None and len(requests):
        cut = (requests.finish_reason == "length").groupby(requests.run_id).mean()
        made["cap_share"] = made.run_id.map(cut)
    return made


def per_position(run: pd.Series) -> np.ndarray:
    """Share of a run's drafts whose token at position 1, 2, … was accepted (vLLM's denominator: all drafts)."""
    return np.asarray(run.num_accepted_tokens_per_pos) / run.num_drafts
