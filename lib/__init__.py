"""When does speculation pay? A thin library in packages by what they need.

results   needs tables only: run (what was asked), settings (the menu), records and table (what was measured), metrics,
          stats, style (figures). `results.load` is a DataFrame, `results.compare` forms the ratios.
measure   needs an engine: profiles and plan (what to measure), weights, parrot, shapes, recorded, streams, workloads,
          corpus, requestlog (what is said), engines (starts worker, the only importer of vLLM; forkserver lets one import
          serve many), monitor and machine, ray (many GPUs). `measure.collect` is what notebooks call.
answer    what a reader's own traffic needs: replay (drafters, exactly), stepcost (time of a
          step), recommend.
ledger    the study's claims as data, decided over the tables.

Beside them: notebooks (runs them with papermill), readme (its tables), `python -m lib --help` (the command line).
Start reading at `results.run`, then `results.records`, then `measure.engines`.
"""
