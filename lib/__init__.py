"""When does speculation pay? A thin library in two chains that meet at one record.

Measure side:  params -> cells, ladder -> corpus, models, workloads -> engines (starts `worker`, the only importer of
               vLLM; `reproduce` lets `nursery` import it once and fork the CPU profile's workers)
Instrument:    parrot (checkpoints that say a given text) <- recorded (the texts), streams (made-up ones with the
               published counters)
Replay side:   table (the committed records) -> results (for pandas; the place that forms ratios) -> figures, and
               records -> metrics -> stats -> figures; neither vLLM nor a GPU is needed
On top:        steptime (the law), busy (the GPU's busy share, split), replay (drafters over recorded streams),
               recommend (law + replay -> a setting), sweep (many engine cells, many GPUs),
               published (the article's data), claims (its ledger; `rules` and `reanalysis` decide the verdicts)
Leaves:        shapes (architectures without weights), drafters (loaded inside the engine by vLLM's `custom_class`),
               monitor (NVML, psutil)

Start reading at `cells` (what an engine cell is), then `records` (what a measurement holds), then `engines.measure`.
`python -m lib --help` lists the commands.
"""
