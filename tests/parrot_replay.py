"""A parrot's run in replay: its requests as streams, its ciphers cached as the worker caches them."""

from __future__ import annotations

from typing import Literal

import numpy as np

from lib.answer.replay import Replayed, Simulation, Stream
from lib.measure import parrot, recorded
from lib.results.run import Run


def stream_of(request: recorded.Request, overrun: int) -> Stream:
    """A parrot's request; beyond its stop it says end tokens, of which `overrun` are needed (drafted tokens + 1)."""
    return Stream(
        np.asarray(request.prompt_token_ids, np.int32),
        np.asarray(request.output_token_ids + [parrot.END] * overrun, np.int32),
        len(request.output_token_ids),
    )


def simulation_of(
    run: Run, *, runner: Literal["V1", "V2"], block_size: int | None = 16, num_gpu_blocks: int = 1 << 20
) -> Simulation:
    """The simulation of a run, with what its engine resolved (`resolved_*` in the table)."""
    arguments = run.engine.arguments
    return Simulation(
        run.engine.speculative, max_num_seqs=min(run.concurrency, arguments.get("max_num_seqs", run.concurrency)),
        max_model_len=arguments.get("max_model_len", 1 << 30), runner=runner, block_size=block_size,
        max_num_batched_tokens=arguments.get("max_num_batched_tokens", 8192), num_gpu_blocks=num_gpu_blocks,
    )  # fmt: skip


def replay_of(run: Run, simulation: Simulation) -> Replayed:
    """The replay of a parrot's run, its ciphers cached as the worker caches them."""
    vocabulary = parrot.vocabulary(parrot.config_of(run.engine.model))
    requests = recorded.build(run.workload, vocabulary, run.output_tokens)
    return simulation.run(
        [stream_of(r, simulation.drafter.num_speculative_tokens + 1) for r in requests],
        detailed=True,
        cached=[r.prompt_token_ids[: r.num_cipher_tokens] for r in requests],
    )
