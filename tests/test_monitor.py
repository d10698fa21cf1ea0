"""The monitor reads its window only, survives dying children, and writes no zero for an absent instrument."""

from __future__ import annotations

import subprocess
import sys
import time
import types

import pytest

from lib.measure import machine, monitor

GPU_FIELDS = ("gpu_busy_pct", "gpu_power_w", "gpu_energy_j", "sm_clock_mhz", "gpu_memory_gib")


class FakeNvml(types.ModuleType):
    """Two GPUs: busy 40 and 60 %, 100 and 200 W, 1.5 and 3 GHz, 1 and 2 GiB, 7 J a reading and GPU."""

    NVML_CLOCK_SM = 1

    class NVMLError(Exception):
        pass

    def __init__(self, unsupported: tuple[str, ...] = ()) -> None:
        super().__init__("pynvml")
        self.unsupported, self.energy_mj, self.open = unsupported, 0, 0

    def _check(self, name: str) -> None:
        assert self.open == 1
        if name in self.unsupported:
            raise self.NVMLError(name)

    def nvmlInit(self):
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetUUID(self, gpu):
        return f"GPU-{'ab'[gpu]}000"

    def nvmlDeviceGetUtilizationRates(self, gpu):
        self._check("busy")
        return types.SimpleNamespace(gpu=(40, 60)[gpu])

    def nvmlDeviceGetPowerUsage(self, gpu):
        return (100_000, 200_000)[gpu]

    def nvmlDeviceGetClockInfo(self, gpu, clock):
        return (1500, 3000)[gpu]

    def nvmlDeviceGetMemoryInfo(self, gpu):
        return types.SimpleNamespace(used=(gpu + 1) * 2**30)

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu):
        self._check("energy")
        self.energy_mj += 7000
        return self.energy_mj


@pytest.fixture
def no_nvml(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)


def watch(seconds: float = 0.05, **arguments):
    with monitor.Monitor(interval_s=0.01, **arguments) as m:
        time.sleep(seconds)
    return m.result()


def test_without_a_gpu_its_fields_are_none(no_nvml):
    result = watch()
    assert all(getattr(result, name) is None for name in GPU_FIELDS)
    assert result.num_samples >= 2 and result.window_s >= 0.05


def test_a_driver_without_devices_is_no_gpu(monkeypatch):
    fake = FakeNvml()
    fake.nvmlInit = lambda: (_ for _ in ()).throw(fake.NVMLError("no driver"))
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    assert watch().gpu_busy_pct is None


def test_means_and_sums_over_the_visible_gpus(monkeypatch):
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    result = watch()
    assert (result.gpu_busy_pct, result.sm_clock_mhz) == (50, 2250)
    assert (result.gpu_power_w, result.gpu_memory_gib) == (300, 3)
    assert result.gpu_energy_j == (21 + 28) - (7 + 14)  # two readings a GPU, each 7 J after the one before
    assert fake.open == 0


@pytest.mark.parametrize(
    ("visible", "num_gpus", "power"),
    [
        ("1", None, 200),
        ("GPU-b", None, 200),
        ("0,1", 1, 100),
        ("1,0", None, 300),
        ("", None, None),
        ("MIG-x", None, None),
    ],
)
def test_only_visible_gpus_count(monkeypatch, visible, num_gpus, power):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert watch(num_gpus=num_gpus).gpu_power_w == power


@pytest.mark.parametrize(("unsupported", "field"), [("busy", "gpu_busy_pct"), ("energy", "gpu_energy_j")])
def test_what_the_driver_does_not_offer_is_none(monkeypatch, unsupported, field):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml((unsupported,)))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    result = watch()
    assert [name for name in GPU_FIELDS if getattr(result, name) is None] == [field]


def test_busy_samples_that_reach_before_the_window_are_left_out(monkeypatch):
    fake = FakeNvml()
    opened = time.perf_counter()
    busy = lambda gpu: types.SimpleNamespace(gpu=100 if time.perf_counter() - opened > 0.1 else 0)  # noqa: E731
    fake.nvmlDeviceGetUtilizationRates = busy
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(monitor, "_AVERAGING_S", 0.15)
    assert watch(0.3).gpu_busy_pct == 100


def test_cpu_share_counts_children_and_only_the_window(no_nvml):
    pytest.importorskip("psutil")
    burn = "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)  # before the window
    with monitor.Monitor(interval_s=0.02) as m:
        time.sleep(0.3)
    idle = m.result()
    with monitor.Monitor(interval_s=0.02) as m:
        burn += "\nprint(flush=True)\ntime.sleep(30)"
        child = subprocess.Popen([sys.executable, "-c", burn], stdout=subprocess.PIPE)
        child.stdout.readline()
    busy = m.result()
    child.kill()
    child.communicate()
    used_s = busy.cpu_pct / 100 * busy.window_s
    assert used_s >= 0.4  # the child's processor time, whatever else ran on the machine
    assert idle.cpu_pct / 100 * idle.window_s < 0.4


def test_a_child_that_died_keeps_what_it_had_used(no_nvml):
    burn = "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass"
    with monitor.Monitor(interval_s=0.02) as m:
        subprocess.run([sys.executable, "-c", burn], check=True)
    assert m.result().cpu_pct / 100 * m.result().window_s >= 0.4


def test_a_process_that_is_gone_has_no_share(no_nvml):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"])
    with monitor.Monitor(pid=child.pid, interval_s=0.02) as m:
        child.kill()
        child.wait()
    assert m.result().cpu_pct is None


def test_the_result_comes_after_the_window_even_if_it_fails(no_nvml):
    m = monitor.Monitor()
    with pytest.raises(RuntimeError, match="after the with block"):
        m.result()
    with pytest.raises(KeyError), m:
        raise KeyError
    assert m.result().window_s >= 0


def test_interval_must_be_positive():
    with pytest.raises(ValueError, match="interval_s must be above 0"):
        monitor.Monitor(interval_s=0)


def test_what_an_engine_inherits_is_recorded_without_paths_and_secrets(monkeypatch):
    for name in machine.inherited_env():
        monkeypatch.delenv(name)
    given = {
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "CUDA_VISIBLE_DEVICES": "2,3",
        "VLLM_CACHE_ROOT": "/home/me",
        "VLLM_API_KEY": "abc",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert machine.provenance().inherited_env == given | {"VLLM_CACHE_ROOT": "set", "VLLM_API_KEY": "set"}
