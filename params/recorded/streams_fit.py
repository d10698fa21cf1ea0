"""What the made-up streams of `lib.measure.streams` count under the ngram drafter, beside the study; `fit` finds their recipes.

python params/recorded/streams_fit.py [fit]
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from lib.answer.replay import Simulation, stream
from lib.ledger.published import main_cell
from lib.measure.streams import LENGTH, RECIPES, Pair, Recipe, _pair, published
from lib.results.run import Speculative

NGRAM = Speculative(method="ngram", num_speculative_tokens=7, prompt_lookup_min=2, prompt_lookup_max=5)


class Rates(NamedTuple):
    """Counters of the ngram drafter per output token. Runner V2 fills up every step's draft: only its `accepted` is like V1's."""

    drafts: float
    drafted: float
    accepted: float


def rates(pairs: list[Pair], runner: str = "V1") -> Rates:
    """What the replay of the ngram drafter counts on `pairs`."""
    done = Simulation(NGRAM, max_num_seqs=256, runner=runner).run([stream(*pair) for pair in pairs]).counters
    counted = (done.num_drafts, done.num_draft_tokens, done.num_accepted_tokens)
    return Rates(*(n / done.num_output_tokens for n in counted))


def target(workload: str) -> Rates:
    """What the study's 70B cell counted."""
    cell = main_cell(workload, "ngram")
    counted = (cell.num_drafts, cell.num_draft_tokens, cell.num_accepted_tokens)
    return Rates(*(n / cell.num_output_tokens for n in counted))


def fit(workload: str, num_requests: int = 1024, rounds: int = 6) -> Recipe:
    """The recipe of a workload, found on requests of seed 1 and starting from the one in `RECIPES`.

    Each round scales the mean length of a line by what is missing in accepted tokens per draft, and the mean number of
    broken-off lines by what is missing in steps without a draft.
    """
    recipe, aim = RECIPES[workload], target(workload)
    for _ in range(rounds):
        got = rates([_pair(recipe, f"{workload} 1 {i}", 49152, LENGTH, LENGTH) for i in range(num_requests)])
        length = (aim.accepted / aim.drafts) / (got.accepted / got.drafts) / (1 - recipe.go_on)
        broken = (1 - aim.drafts - aim.accepted) / (1 - got.drafts - got.accepted)
        broken *= recipe.break_off / (1 - recipe.break_off)
        recipe = Recipe(round(1 - 1 / length, 4), round(broken / (1 + broken), 4))
    return recipe


if __name__ == "__main__":
    for name, recipe in RECIPES.items():
        print(name, recipe, *(("fit", fit(name)) if "fit" in sys.argv else ()))
        for runner in ("V1", "V2"):
            for field, got, aim in zip(Rates._fields, rates(published(name, 256), runner), target(name), strict=True):
                print(f"  {runner} {field:8} target {aim:.4f}, got {got:.4f}, {100 * (got / aim - 1):+.2f} %")
