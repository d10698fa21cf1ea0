"""GPU busy share, clock, power, energy, memory (NVML) and CPU share of a process tree, over one window only.

    with monitor.Monitor() as watch:
        llm.generate(...)
    watch.result()  # -> records.Monitor

Absent instruments give None, never zero. Cumulative counters (energy, CPU seconds) are differenced between
the window's two ends; the rest is sampled by one thread.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time

import psutil

from lib.results import records

# NVML reports busy share and power as averages over up to the last second (nvml.h, nvmlUtilization_t:
# "between 1 second and 1/6 second depending on the product"; power from Ampere on: one second), so samples
# taken earlier reach out of the window.
_AVERAGING_S = 1.0


class Monitor:
    """Samples from `with` to its end; `result()` afterwards gives a `records.Monitor`.

    `pid`: root of the process tree whose CPU time counts (None: this process). `interval_s`: seconds
    between samples. `num_gpus`: only the first so many visible GPUs (None: all in CUDA_VISIBLE_DEVICES).
    Busy share and SM clock are means over the GPUs; power, energy and memory are sums. ValueError for an
    interval that is not above zero.
    """

    def __init__(self, pid: int | None = None, interval_s: float = 0.1, num_gpus: int | None = None) -> None:
        if not interval_s > 0:
            raise ValueError(f"interval_s must be above 0 seconds, got {interval_s}")
        self._pid, self._interval_s, self._num_gpus = pid or os.getpid(), interval_s, num_gpus
        self._result: records.Monitor | None = None

    def __enter__(self) -> Monitor:
        self._result = None
        self._gpus = _Gpus(self._num_gpus)
        self._stop = threading.Event()
        self._num_samples = 0
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)
        self._gpus.start()
        self._cpu = _cpu_seconds(self._pid)
        self._start = time.perf_counter()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        window_s = time.perf_counter() - self._start
        self._sample(window_s)
        gpu = self._gpus.finish()
        used = _cpu_seconds(self._pid)
        cpu_pct = None if used is None or self._cpu is None else 100 * (used - self._cpu) / window_s
        self._result = records.Monitor(window_s=window_s, num_samples=self._num_samples, cpu_pct=cpu_pct, **gpu)

    def result(self) -> records.Monitor:
        """The window's means; RuntimeError while the window is open."""
        if self._result is None:
            raise RuntimeError("result() must come after the with block has ended")
        return self._result

    def _run(self) -> None:
        due = self._start + self._interval_s
        while not self._stop.wait(max(0.0, due - time.perf_counter())):
            now = time.perf_counter()
            self._sample(now - self._start)
            due = max(due + self._interval_s, now)  # a late sample is not made up for

    def _sample(self, elapsed_s: float) -> None:
        self._num_samples += 1
        self._gpus.sample(elapsed_s)


def _cpu_seconds(pid: int) -> float | None:
    """CPU seconds of a process, its descendants, and those of them that ended and were waited for; None if it is gone."""
    try:
        root = psutil.Process(pid)
    except psutil.Error:
        return None
    total = 0.0
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # it ended just now: its parent has its time
            total += sum(process.cpu_times()[:4])  # user, system, and both of its children
    return total


class _Gpus:
    """The visible GPUs through NVML; what a driver does not offer stays None."""

    def __init__(self, num_gpus: int | None) -> None:
        self._num_gpus = num_gpus
        self._handles: list = []
        self._columns: dict[str, list[tuple[float, float]]] = {}  # name -> (elapsed s, value over the GPUs)

    def start(self) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception:  # no package, no driver library, no driver: no GPU to read
            return
        self._nvml = pynvml
        self._handles = _visible(pynvml)[: self._num_gpus]
        self._readers = {
            "gpu_busy_pct": lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
            "gpu_power_w": lambda gpu: pynvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,  # mW
            "sm_clock_mhz": lambda gpu: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
            "gpu_memory_gib": lambda gpu: pynvml.nvmlDeviceGetMemoryInfo(gpu).used / 2**30,
        }
        self._energy_j = self._over_gpus(self._read_energy, total=True)

    def _read_energy(self, gpu: object) -> float:
        return self._nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3  # mJ since the driver was loaded

    def _over_gpus(self, read, total: bool) -> float | None:
        if not self._handles:
            return None
        try:
            values = [float(read(gpu)) for gpu in self._handles]
        except self._nvml.NVMLError:
            return None
        return sum(values) if total else sum(values) / len(values)

    def sample(self, elapsed_s: float) -> None:
        if not self._handles:
            return
        for name, read in self._readers.items():
            value = self._over_gpus(read, total=name in ("gpu_power_w", "gpu_memory_gib"))
            if value is not None:
                self._columns.setdefault(name, []).append((elapsed_s, value))

    def finish(self) -> dict[str, float | None]:
        if not self._handles:
            return {}
        end_j = self._over_gpus(self._read_energy, total=True)
        self._nvml.nvmlShutdown()
        means: dict[str, float | None] = {}
        for name, column in self._columns.items():
            if name in ("gpu_busy_pct", "gpu_power_w"):
                # in a window shorter than the average only the last sample lies mostly inside
                column = [row for row in column if row[0] >= _AVERAGING_S] or column[-1:]
            means[name] = sum(value for _, value in column) / len(column)
        means["gpu_energy_j"] = None if end_j is None or self._energy_j is None else end_j - self._energy_j
        return means


def _visible(pynvml) -> list:
    """Handles of the GPUs in CUDA_VISIBLE_DEVICES (indices in PCI order, or UUID prefixes); all if unset."""
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return handles
    chosen = []
    for name in (part.strip() for part in wanted.split(",")):
        if name.isdigit() and int(name) < len(handles):
            chosen.append(handles[int(name)])
        elif name.startswith("GPU-"):
            chosen += [gpu for gpu in handles if str(pynvml.nvmlDeviceGetUUID(gpu)).startswith(name)][:1]
        else:  # as CUDA does: what follows an unknown name is not visible
            break
    return chosen
