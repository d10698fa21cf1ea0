"""The settings that the notebooks compare, by name: one lever at a time from vanilla as shipped to the full configuration.

vLLM switches its V2 runner and asynchronous scheduling off, silently, for some drafters; so the rungs between are named
too, and a speedup can be split into what the drafter does and what the switch costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from lib import metrics, shapes, stats
from lib.cells import WORKLOADS, Cell, Engine, Model, Speculative, Workload
from lib.params import ParamsError, Profile, Synthetic, _nearest
from lib.records import Record

# Rungs that draft nothing: they tell what switching costs, and need no full set of workloads.
CONTROL = ("vanilla_v1", "vanilla_v1_sync", "null")
# Shapes whose drafts are accepted by chance, and vanilla beside them: no points of the step-time grid.
SYNTHETIC = ("synthetic_vanilla", "synthetic")
# Display names; a setting not listed shows its own name.
LABELS = {
    "vanilla": "vanilla, as shipped",
    "vanilla_v1": "vanilla, V1 runner",
    "vanilla_v1_sync": "vanilla, V1, synchronous",
    "null": "null drafter",
    "ngram": "ngram",
    "suffix": "suffix, memory off",
    "suffix_cold": "suffix, memory cold",
    "suffix_warm": "suffix, memory warm",
    "ngram_captured_full": "ngram, larger graphs, FULL",
    "plain_ngram_captured_full": "unfilled, larger graphs, FULL",
    "padded_ngram": "padded ngram",
    "padded_ngram_captured": "padded ngram, larger graphs",
    "padded_ngram_captured_full": "padded, larger graphs, FULL",
    "padded_ngram_captured_schedule": "padded, gamma by batch, FULL",
    "padded_suffix": "padded suffix",
    "full": "full configuration",
}


def _ngram(p: Profile, **changes) -> Speculative:
    n = p.ngram
    values = {
        "num_speculative_tokens": n.num_speculative_tokens,
        "prompt_lookup_min": n.prompt_lookup_min,
        "prompt_lookup_max": n.prompt_lookup_max,
    }
    return Speculative(method="ngram", **(values | changes))


def _suffix(p: Profile, memory: str = "off", gamma: int | None = None) -> Speculative:
    s = p.suffix
    return Speculative(
        method="suffix",
        num_speculative_tokens=gamma or s.num_speculative_tokens,
        suffix_decoding_max_tree_depth=s.max_tree_depth,
        suffix_decoding_max_spec_factor=s.max_spec_factor,
        suffix_decoding_min_token_prob=s.min_token_prob,
        suffix_decoding_max_cached_requests=0 if memory == "off" else s.max_cached_requests,
    )


def _drafter(p: Profile, name: str, gamma: int, **options) -> Speculative:
    return Speculative(method="custom_class", num_speculative_tokens=gamma, drafter=name, drafter_options=options)


def _ngram_options(p: Profile) -> dict:
    return {"prompt_lookup_min": p.ngram.prompt_lookup_min, "prompt_lookup_max": p.ngram.prompt_lookup_max}


def _suffix_options(p: Profile) -> dict:
    s = p.suffix
    return {
        "max_tree_depth": s.max_tree_depth, "max_spec_factor": s.max_spec_factor,
        "min_token_prob": s.min_token_prob, "max_cached_requests": 0,
    }  # fmt: skip


def model_of(p: Profile, architecture: str) -> Model:
    """`name` or `name:quantization`, e.g. `Llama-3.3-70B:fp8`; the profile's own model goes by its name.

    Raises ValueError for an architecture that is neither a shape nor the profile's model.
    """
    name, _, quantization = architecture.partition(":")
    if name == p.model.name:
        return p.model
    shapes.config_of(name)
    return Model(source="shape", name=name, quantization=quantization or None)


def capture_size(batch_size: int, gamma: int) -> int:
    """Tokens of the CUDA graph that holds a full batch of drafts: above 256, vLLM captures multiples of 16."""
    return -(-batch_size * (1 + gamma) // 16) * 16


def setting(p: Profile, name: str) -> tuple[Engine, str | None]:
    """The engine and the suffix-memory arm of a setting.

    Names: vanilla, vanilla_v1, vanilla_v1_sync, null, ngram, ngram_g<gamma>, ngram_min<n>, ngram_gpu, suffix,
    suffix_cold, suffix_warm, suffix_g<gamma>, suffix_<cudagraph mode>, walking, plain_ngram[_g<gamma>],
    padded_ngram[_g<gamma>], plain_suffix[_g<gamma>], padded_suffix[_g<gamma>], padded_ngram_repeat (filled with the
    draft itself), padded_ngram_skip (nothing filled where no request has a draft), padded_ngram_schedule (gamma by
    batch size), padded_ngram_captured (graphs captured up to the largest step of drafts),
    padded_ngram_captured_full (so captured, FULL for steps of any composition), plain_ngram_captured_full (the same
    unfilled), ngram_captured_full (vLLM's own drafter with such graphs), padded_ngram_captured_schedule (gamma by
    batch size), full, full_gmu_default.
    Raises ParamsError for a name it does not know.
    """
    base, gamma = p.base_engine, p.ngram.num_speculative_tokens

    def with_(
        speculative: Speculative | None = None, memory: str | None = None, **changes
    ) -> tuple[Engine, str | None]:
        # copy-by-validation, so that impossible pairs are refused here and not by the engine
        return Engine.model_validate(base.model_dump() | {"speculative": speculative} | changes), memory

    captured = {"max_cudagraph_capture_size": None if base.enforce_eager else capture_size(base.max_num_seqs, gamma)}
    any_step = {"cudagraph_mode": None if base.enforce_eager else "FULL"}
    modes = {"none": "NONE", "piecewise": "PIECEWISE", "full": "FULL", "full_and_piecewise": "FULL_AND_PIECEWISE"}
    fixed: dict[str, Callable[[], tuple[Engine, str | None]]] = {
        "vanilla": lambda: with_(),
        "vanilla_v1": lambda: with_(runner="v1"),
        "vanilla_v1_sync": lambda: with_(runner="v1", async_scheduling=False),
        "null": lambda: with_(_drafter(p, "NullDrafter", gamma)),
        "walking": lambda: with_(_drafter(p, "WalkingDrafter", max(*p.step_time.draft_tokens, 1))),
        "ngram": lambda: with_(_ngram(p)),
        "ngram_gpu": lambda: with_(_ngram(p).model_copy(update={"method": "ngram_gpu"})),
        "suffix": lambda: with_(_suffix(p), "off"),
        "suffix_cold": lambda: with_(_suffix(p, "cold"), "cold"),
        "suffix_warm": lambda: with_(_suffix(p, "warm"), "warm"),
        "padded_ngram_repeat": lambda: with_(_drafter(p, "PaddedNgram", gamma, **_ngram_options(p), fill="repeat")),
        "padded_ngram_skip": lambda: with_(_drafter(p, "PaddedNgram", gamma, **_ngram_options(p), when_empty="skip")),
        "padded_ngram_schedule": lambda: with_(
            _drafter(p, "PaddedNgram", gamma, **_ngram_options(p), gamma_schedule=p.gamma_schedule)
        ),
        "padded_ngram_captured": lambda: with_(_drafter(p, "PaddedNgram", gamma, **_ngram_options(p)), **captured),
        "padded_ngram_captured_full": lambda: with_(
            _drafter(p, "PaddedNgram", gamma, **_ngram_options(p)), **captured, **any_step
        ),
        "plain_ngram_captured_full": lambda: with_(
            _drafter(p, "PaddedNgram", gamma, **_ngram_options(p), fill="none"), **captured, **any_step
        ),
        "ngram_captured_full": lambda: with_(_ngram(p), **captured, **any_step),
        # as shipped, FULL graphs exist for 1 + gamma tokens a request only, which a shorter length is not
        "padded_ngram_captured_schedule": lambda: with_(
            _drafter(p, "PaddedNgram", gamma, **_ngram_options(p), gamma_schedule=p.captured_gamma_schedule),
            **captured, **any_step,
        ),
        "full": lambda: with_(
            _suffix(p, "cold"), "cold",
            cudagraph_mode=None if base.enforce_eager else "PIECEWISE",
            gpu_memory_utilization=None if base.in_process else 0.80,
        ),
        "full_gmu_default": lambda: with_(
            _suffix(p, "cold"), "cold", cudagraph_mode=None if base.enforce_eager else "PIECEWISE"
        ),
    }  # fmt: skip
    if name in fixed:
        return fixed[name]()
    for prefix, drafter, options in (
        ("padded_ngram", "PaddedNgram", _ngram_options(p)),
        ("plain_ngram", "PaddedNgram", _ngram_options(p) | {"fill": "none"}),
        ("padded_suffix", "PaddedSuffix", _suffix_options(p)),
        ("plain_suffix", "PaddedSuffix", _suffix_options(p) | {"fill": "none"}),
    ):
        rest = name.removeprefix(prefix)
        if name.startswith(prefix) and (rest == "" or (rest.startswith("_g") and rest[2:].isdigit())):
            return with_(_drafter(p, drafter, int(rest[2:] or gamma), **options))
    if name.startswith("ngram_g") and name[7:].isdigit():
        return with_(_ngram(p, num_speculative_tokens=int(name[7:])))
    if name.startswith("ngram_min") and name[9:].isdigit():
        return with_(_ngram(p, prompt_lookup_min=int(name[9:])))
    if name.startswith("suffix_g") and name[8:].isdigit():
        return with_(_suffix(p, gamma=int(name[8:])), "off")
    if name.startswith("suffix_") and name[7:] in modes:
        return with_(_suffix(p), "off", cudagraph_mode=modes[name[7:]], num_gpu_blocks_override=p.fixed_num_gpu_blocks)
    if name.startswith("vanilla_") and name[8:] in modes:
        return with_(None, None, cudagraph_mode=modes[name[8:]], num_gpu_blocks_override=p.fixed_num_gpu_blocks)
    if name.startswith("suffix_gmu") and name[10:].isdigit():
        return with_(_suffix(p), "off", gpu_memory_utilization=int(name[10:]) / 100)
    if name.startswith("vanilla_gmu") and name[11:].isdigit():
        return with_(None, None, gpu_memory_utilization=int(name[11:]) / 100)
    raise ParamsError(f"setting is {name!r}{_nearest(name, fixed)}, allowed: {', '.join(fixed)}, and their variants")


def cells(
    p: Profile,
    settings: Iterable[str],
    *,
    workloads: Iterable[str] | None = None,
    seeds: Iterable[int] | None = None,
    batch_sizes: Iterable[int] | None = None,
    repeats: int = 1,
    keep_tokens: bool = False,
    form: str | None = None,
) -> list[Cell]:
    """Engine cells of `settings` x workloads x seeds x batch sizes x repeats; what is not given is the profile's."""
    made = []
    for name in settings:
        engine, memory = setting(p, name)
        for repeat in range(repeats):
            for batch in batch_sizes or p.batch_sizes:
                for seed in seeds if seeds is not None else p.seeds:
                    for workload in workloads or p.workloads:
                        made.append(
                            Cell(
                                engine=engine.model_copy(update={"repeat": repeat}),
                                workload=Workload(
                                    name=workload,
                                    answers=p.answers,
                                    path=p.own_log if workload == "jsonl" else None,
                                    form=form or p.form,
                                    num_prompts=p.prompts_at(batch),
                                    input_tokens=p.input_tokens,
                                    seed=seed,
                                    reuse_prompts=p.reuse_prompts,
                                ),
                                output_tokens=p.output_tokens,
                                ignore_eos=p.ignore_eos,
                                batch_size=batch,
                                memory=memory,
                                # vanilla's token streams feed the drafter replay; a parrot's are known
                                keep_tokens=keep_tokens or (name == "vanilla" and repeat == 0 and p.answers == "model"),
                                setting=name,
                            )
                        )
    return made


def spread(p: Profile, settings: Iterable[str], **options) -> list[Cell]:
    """All workloads and seeds at the profile's batch sizes, and its batch sweep on the sweep workloads, one seed each.

    A batch of the sweep has a seed of its own, so that no engine sees a prompt twice.
    """
    settings = list(settings)
    made = cells(p, settings, **options)
    for batch in p.batch_sweep:
        own = {"workloads": p.sweep_workloads, "seeds": [_swept_seed(batch)], "batch_sizes": [batch]}
        made += cells(p, settings, **options | own)
    return made


def _swept_seed(batch_size: int) -> int:
    return 1000 + batch_size


def narrow(p: Profile, settings: Iterable[str], **options) -> list[Cell]:
    """The sweep workloads with the first seed only, at the profile's batch sizes: for levers with many values."""
    return cells(p, settings, **{"workloads": p.sweep_workloads, "seeds": p.seeds[:1]} | options)


def wide(p: Profile, among: Iterable[str] | None = None) -> list[Cell]:
    """The settings of `p.wide` (those `among` the named ones) on all workloads and seeds at its batch sizes."""
    return [
        c
        for batch, settings in p.wide.items()
        for name, repeats in settings.items()
        if among is None or name in among
        for c in cells(p, [name], batch_sizes=[batch], repeats=max(repeats, default=-1) + 1)
        if c.engine.repeat in repeats
    ]


def controls(p: Profile) -> list[Cell]:
    """Vanilla and the ngram drafters on the sweep workloads with the profile's `controls`, each as <setting>_<control>."""
    drafters = [name for name in ("vanilla", "ngram", "padded_ngram") if name in p.rungs]
    changed = {"raw": {"form": "raw"}, "ignore_eos": {"ignore_eos": True}}
    return [
        cell.model_copy(update={"setting": f"{cell.setting}_{control}"})
        for control in p.controls
        for cell in narrow(p.model_copy(update=changed[control]), drafters)
    ]


def acceptance_rates(records: Iterable[Record], source: Synthetic, batch_sizes: Iterable[int]) -> tuple[float, ...]:
    """Unconditional acceptance by draft position, filling included, of the source's cells; empty without any."""
    batches = set(batch_sizes)
    counted = [r for r in named(records, source.setting, workload=source.workload) if r.cell.batch_size in batches]
    if not counted:
        return ()
    total = metrics.pooled(counted)
    # three digits: the rates are part of a cell's identity
    return tuple(round(n / total.num_drafts, 3) for n in total.num_accepted_tokens_per_pos)


def synthetic_cells(p: Profile, records: Iterable[Record]) -> list[Cell]:
    """Shapes that cannot be measured with real acceptance: drafts of full length, accepted by chance as often as those
    of `p.synthetic`'s setting were in `records` (vLLM's synthetic rejection sampling), beside vanilla as shipped.

    Prompts are random ids and every request gives `output_tokens`. Empty where `records` hold no such setting.
    """
    s = p.synthetic
    if s.architectures:
        setting(p, s.setting)  # refuses a name that it does not know
    rates = acceptance_rates(records, s, p.batch_sizes)
    made = []
    for architecture in s.architectures if rates else ():
        own = p.model_copy(update={"model": model_of(p, architecture)})
        walking = setting(own, "walking")[0]
        drafts = walking.speculative.model_copy(
            update={"num_speculative_tokens": len(rates), "synthetic_acceptance_rates": rates}
        )
        for name, engine, gamma in (
            (SYNTHETIC[0], setting(own, "vanilla")[0], None),
            (SYNTHETIC[1], walking.model_copy(update={"speculative": drafts}), len(rates)),
        ):
            made += [
                Cell(
                    engine=engine,
                    workload=Workload(name="random", form="raw", num_prompts=batch, input_tokens=s.input_tokens),
                    output_tokens=s.output_tokens, ignore_eos=True, batch_size=batch, draft_tokens=gamma, setting=name,
                )
                for batch in s.batch_sizes
            ]  # fmt: skip
    return made


def notebook_cells(p: Profile, notebook: str) -> list[Cell]:
    """The engine cells that notebook `01` to `04`, or `08`, measures."""
    baseline = spread(p, ["vanilla"], repeats=p.repeats)
    match notebook:
        case "01":
            return baseline
        case "02":
            compared = ("vanilla", "ngram")
            lengths = [f"ngram_g{n}" for n in p.draft_lengths if n != p.ngram.num_speculative_tokens]
            return (
                baseline + spread(p, ["ngram"]) + narrow(p, [*lengths, "ngram_min1"]) + controls(p) + wide(p, compared)
            )
        case "03":
            first = p.seeds[:1]
            return (
                baseline
                + spread(p, ["ngram", "suffix"])
                + cells(p, ["suffix_cold", "suffix_warm"], seeds=first)
                + narrow(p, [f"suffix_g{n}" for n in p.suffix.draft_lengths])
                + wide(p, ("vanilla", "ngram", "suffix"))
            )
        case "04":
            modes = [f"suffix_{mode.lower()}" for mode in p.cudagraph_modes]
            memory = [f"suffix_gmu{round(100 * share)}" for share in p.gpu_memory_utilizations]
            control = [rung for rung in p.rungs if rung in CONTROL]
            rungs = [rung for rung in p.rungs if rung not in CONTROL and rung != "vanilla"]
            first = p.model_copy(update={"seeds": p.seeds[:1]})
            made = (
                baseline
                + spread(p, rungs)
                + narrow(p, control, seeds=p.seeds)
                + narrow(p, [*modes, *memory])
                + spread(first, p.arms, workloads=p.sweep_workloads)
                + wide(p)
            )
            return list({c.cell_id: c for c in made}.values())  # a control is wide at the profile's batch size, too
        case "08" if p.answers != "model":
            return []  # the study's own mixes, which no parrot says
        case "08":
            # mixes of fresh prompts and of prompts that the single workloads have used, suffix memory off and on
            fresh, again = (p.model_copy(update={"reuse_prompts": reuse}) for reuse in (False, True))
            mixes, first = [name for name in WORKLOADS if name.startswith("mix-")], p.seeds[:1]
            moved = [f"vanilla_{mode.lower()}" for mode in p.cudagraph_modes if mode == "PIECEWISE"]
            return (
                cells(fresh, ["suffix", "suffix_cold"], workloads=WORKLOADS, seeds=first)
                + cells(again, ["suffix", "suffix_warm"], workloads=mixes, seeds=first)
                + narrow(p, ["ngram", "ngram_g12", *moved])
            )
    raise ParamsError(f"notebook is {notebook!r}, allowed: 01, 02, 03, 04, 08")


def named(records: Iterable, setting: str, **where) -> list:
    """The records of a setting, optionally of one `workload`, `batch_size`, `seed` or `repeat`."""
    found = [r for r in records if r.cell.setting == setting and r.status == "ok"]
    for key, value in where.items():
        place = {"workload": lambda r: r.cell.workload.name, "seed": lambda r: r.cell.workload.seed,
                 "batch_size": lambda r: r.cell.batch_size, "repeat": lambda r: r.cell.engine.repeat}[key]  # fmt: skip
        found = [r for r in found if place(r) == value]
    return found


def swept(p: Profile, records: Iterable, setting: str, *, batch_size: int, **where) -> list:
    """As `named`, without what `wide` adds to the batch sweep."""
    found = named(records, setting, batch_size=batch_size, **where)
    return [r for r in found if batch_size in p.batch_sizes or r.cell.workload.seed == _swept_seed(batch_size)]


def everywhere(p: Profile, records: Iterable[Record], setting: str, batch_size: int) -> list[Record]:
    """The records of a setting with the profile's seeds that have vanilla of their own round beside them, over all rounds."""
    records = [r for r in records if r.cell.workload.seed in p.seeds]
    plain = named(records, "vanilla", batch_size=batch_size)
    return stats.beside(named(records, setting, batch_size=batch_size), plain)


class WideRound(NamedTuple):
    """What one round of measurement holds of a setting of `Profile.wide` at a batch size."""

    setting: str
    records: list[Record]


def wide_rounds(p: Profile, records: Iterable[Record], batch_size: int) -> list[WideRound]:
    """The settings of `p.wide` at a batch size, once for each round of measurement that has vanilla beside them."""
    records = [r for r in records if r.cell.workload.seed in p.seeds]
    plain = named(records, "vanilla", batch_size=batch_size)
    return [
        WideRound(name, members)
        for name in p.wide.get(batch_size, {})
        if name != "vanilla"
        for members in stats.rounds(stats.beside(named(records, name, batch_size=batch_size), plain))
    ]
