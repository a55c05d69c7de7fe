"""What all tests share: how code is compiled, and a place for it, so that no worker compiles what another one has.

Most of a test's time is compilation. Without LLVM's optimisations and XLA's newer emitters of fused loops that takes
half as long (a run of PoFL 2.6 s of CPU time, from 5.0; the debug engine 2.9 s, from 8.1), and the short runs of
tests do not miss them.

Every program is stored, however small, in ``.pytest_cache/jax`` (``make clean`` removes it): what one worker has
compiled the other one loads, and so does a worker that had to forget its programs, and the next run of the tests. A
summary at the end says how many were compiled (``tests.compile_counter``). Where Flower or BoTorch is not installed,
what needs it is not even looked at for docstring examples.
"""

import ctypes
import gc
import os
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

FLAGS = (
    "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
)
KNOWN = ("0.10.",)  # jaxlib that knows these flags: one that does not ends the process
if version("jaxlib").startswith(KNOWN) and FLAGS not in os.environ.get("XLA_FLAGS", ""):  # a worker has inherited them
    os.environ["XLA_FLAGS"] = f"{FLAGS} {os.environ.get('XLA_FLAGS', '')}".strip()
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")  # a small program loads in a third of the time
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import jax  # noqa: E402
import pytest  # noqa: E402

pytest_plugins = ["tests.compile_counter"]
collect_ignore_glob = (
    [] if find_spec("flwr") else ["src/profl/run/flower/*", "tests/federation.py", "tests/flower_run.py"]
) + ([] if find_spec("botorch") else ["benchmarks/rivals/bayes.py"])


LONG = (
    *("test_methods", "test_docs", "test_robust", "test_engines", "test_filter_shapes", "test_speed", "test_settled"),
    *("test_convergence", "test_flower", "test_prm", "test_bench_deployments", "test_problem", "test_rules"),
    *("test_spread", "test_units", "test_memory", "test_papers", "test_field_cases"),
    *("test_loop", "test_clusters", "test_checkpoints", "test_dropped", "test_gradient", "test_cli"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long come first: workers then end at about the same time, each with something short."""
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


def pytest_collection_finish() -> None:
    """What is imported stays: looking through it for garbage again and again would take a twentieth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


MANY, MOST = 1.5e9, 3e9  # bytes that a worker may hold after a file, and after a test, before it forgets its programs


@pytest.fixture(autouse=True, scope="module")
def _forget_the_code_of_a_file() -> Iterator[None]:
    """The tests of a file share programs, those of two files few: a worker that has grown forgets them in between."""
    yield
    _forget_beyond(MANY)


@pytest.fixture(autouse=True)
def _forget_the_code_of_a_test() -> Iterator[None]:
    yield
    _forget_beyond(MOST)


def _forget_beyond(size: float) -> None:
    """Keep neither compiled code nor the memory that compiling took."""
    if sys.platform == "linux" and _resident() > size:
        jax.clear_caches()
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium: the system's own, or the one that playwright keeps."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install -e '.[dev]'")
    system = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with api.sync_playwright() as playwright:
        try:
            found = playwright.chromium.launch(executable_path=system, args=["--no-sandbox"])
        except api.Error as error:
            pytest.skip(f"no browser: apt-get install chromium, or playwright install chromium ({error.message[:80]})")
        yield found
        found.close()
