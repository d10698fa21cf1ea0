"""Token streams "as published": made-up ids on which the ngram drafter counts what it counted in the study.

A prompt is lines of tokens, all closed by the same newline token. The answer says these lines again in another order.
Every other token occurs once in the prompt, so a draft is right up to the end of a line and wrong from there on. The
newline is shared, so the next line is found after its first token. Between two lines the answer may begin an earlier
line and break it off with a new token: a draft that is rejected at once, then two steps without a draft.
Something must be shared: else every jump costs a step without a draft, and sonnet has 14 rejected tokens for each such
step, where a jump rejects at most 7.

Matched are drafts, drafted and accepted tokens per output token of the study's Llama-3.3-70B cells (ngram, 7 drafts,
lookup 2 to 5), with the rule of vLLM's runner V1, which the study ran: the earliest match. Runner V2 takes the latest
match and finds nearly the same drafts, unless the answer is much longer than the prompt. But it fills up the draft of
every step, so it counts as many drafts as steps. `params/recorded/streams_fit.py` prints both against the study; with
`fit` it also finds the recipes again, up to the third digit.

Not imitated:
- Chat. In one interval of the study's log a draft gains 0.2 tokens, in another 5.3: the few requests that are left at
  the end repeat themselves and hold most accepted tokens. A mean describes neither kind.
- The suffix drafter. In the study it accepts more, and in the mixes it remembers earlier answers to the same prompts.
  Here no request resembles another.
- Differences between requests or positions. A mix is one kind of request with the mix's mean counters. The study has no
  acceptance by position: that lines have geometric lengths is an assumption.
"""

from __future__ import annotations

import random
from typing import NamedTuple

LENGTH = 512  # tokens of a prompt, and of an answer
MIN_PROMPT = 64  # a shorter prompt holds too few lines


class Recipe(NamedTuple):
    """Two chances: that a line goes on after a token, and that another broken-off line comes before the next line."""

    go_on: float
    break_off: float


RECIPES = {
    "sonnet": Recipe(0.9536, 0.1421),
    "code": Recipe(0.6747, 0.2408),
    "mix-sh": Recipe(0.9063, 0.2545),
    "mix-bal": Recipe(0.8461, 0.2772),
    "mix-ch": Recipe(0.7241, 0.2569),
}


class Pair(NamedTuple):
    """A request: ids of its prompt, and of the answer that a model is to say."""

    prompt: list[int]
    answer: list[int]


def published(
    workload: str,
    num_requests: int,
    *,
    seed: int = 0,
    num_ids: int = 49152,
    prompt_tokens: int | None = None,
    output_tokens: int | None = None,
) -> list[Pair]:
    """Streams with the study's mean ngram counters of `workload`, the same on every machine.

    Ids are below `num_ids`; lengths are exact, 512 by default. A larger `num_requests` adds streams and changes none.
    Raises ValueError, naming the argument.
    """
    num_prompt = LENGTH if prompt_tokens is None else prompt_tokens
    num_output = LENGTH if output_tokens is None else output_tokens
    if workload not in RECIPES:
        why = ": its mean counters describe no request, because a few that repeat themselves hold most accepted tokens"
        raise ValueError(
            f"workload must be one of {', '.join(RECIPES)}, got {workload!r}{why if workload == 'chat' else ''}"
        )
    if num_requests < 1:
        raise ValueError(f"num_requests must be at least 1, got {num_requests}")
    if num_prompt < MIN_PROMPT:
        raise ValueError(f"prompt_tokens must be at least {MIN_PROMPT}, got {num_prompt}")
    if num_output < 1:
        raise ValueError(f"output_tokens must be at least 1, got {num_output}")
    if num_ids < num_prompt + num_output:
        raise ValueError(
            f"num_ids must be at least prompt_tokens + output_tokens ({num_prompt + num_output}), got {num_ids}"
        )
    recipe = RECIPES[workload]
    return [_pair(recipe, f"{workload} {seed} {i}", num_ids, num_prompt, num_output) for i in range(num_requests)]


def _pair(recipe: Recipe, key: str, num_ids: int, num_prompt: int, num_output: int) -> Pair:
    """The stream that `key` seeds. Only `random()` is drawn, whose numbers Python promises to keep."""
    rng = random.Random(key)
    used: set[int] = set()

    def fresh() -> int:
        while (token := int(rng.random() * num_ids)) in used:
            pass
        used.add(token)
        return token

    newline = fresh()
    prompt, lines = [newline], []
    while room := num_prompt - len(prompt):
        length = 2
        while length < room and rng.random() < recipe.go_on:
            length += 1
        if room - length == 1:
            length = room
        lines.append([fresh() for _ in range(length - 1)] + [newline])
        prompt += lines[-1]

    answer: list[int] = []
    following = len(lines)  # the line that the next draft expects: not to be said next
    said, waiting = [], []
    while len(answer) < num_output:
        while len(answer) < num_output and rng.random() < recipe.break_off:
            if started := [i for i in said if i != following]:
                answer += [lines[started[int(rng.random() * len(started))]][0], fresh(), newline]
                following = -1
        if set(waiting) <= {following}:  # all lines are said, or all but that one: start over
            waiting = sorted(range(len(lines)), key=lambda _: rng.random())
        line = next((i for i in waiting if i != following), waiting[0])
        waiting.remove(line)
        answer += lines[line]
        said.append(line)
        following = line + 1 if line + 1 < len(lines) else said[0]
    return Pair(prompt, answer[:num_output])
