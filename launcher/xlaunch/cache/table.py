# SPDX-License-Identifier: Apache-2.0
"""The table of compile caches: another row supports another cache.

Autotuning results and the graphs of AOTAutograd are in Inductor's directory.
"""

import enum
from typing import NamedTuple

from xlaunch.machine.topology import Vendor


class Format(enum.Enum):
    """How a file of a cache is checked without loading it."""

    ELF = "ELF"
    PICKLE = "pickle"
    JSON = "JSON"
    LOCK = "lock"
    """A lock that is held while the file exists: if its holder is killed, others wait forever."""
    ANY = "any"


class Entries(NamedTuple):
    """One kind of file in a cache."""

    kind: str
    """**Ex.:** ``"compiled graphs"``."""
    pattern: str
    """For `fnmatch`, relative to the cache's directory; an asterisk matches slashes too."""
    format: Format = Format.ANY


class Part(enum.StrEnum):
    """A fact of the machine that entries depend on."""

    ARCHITECTURE = "architecture"
    INSTRUCTION_SET = "instruction_set"
    """The extensions that code generators use."""
    CPU_MODEL = "cpu_model"
    """Vendor, family and model, for code generators that tune for them and check."""
    C_LIBRARY = "c_library"
    """For libraries that the system's linker creates."""
    PYTHON = "python"
    """Major and minor version: extension modules and marshalled code."""
    GPUS = "gpus"
    GPU_DRIVER = "gpu_driver"


class Variable(NamedTuple):
    """An environment variable that a launch sets for a cache."""

    name: str
    value: str
    reason: str
    option: str | None = None
    """The option that asks for this value. **Ex.:** ``"--cache-dir /caches"``."""


class Cache(NamedTuple):
    """A compile cache: a row of `CACHES`."""

    name: str
    """Also its subdirectory."""
    variable: str
    """The variable that names its directory."""
    source: str
    """Where the variable is documented."""
    parts: tuple[Part, ...]
    packages: tuple[str, ...] = ()
    """Distributions whose versions entries depend on; the first is the one that uses the cache."""
    entries: tuple[Entries, ...] = ()
    """The first kind that matches a file is its kind; others are ``other files``."""
    vendor: Vendor | None = None
    """The cache is set up only on machines with a GPU of this vendor."""
    switches: tuple[Variable, ...] = ()
    """Variables with fixed values that the cache needs to be useful."""
    changes_behaviour: bool = False
    """Using it changes what a program does: only with `--cache all`."""
    unit: str | None = None
    """A regular expression. Files in whose paths it matches the same text form one unit: imported whole
    or not at all, and pruned together. None: each file is a unit."""
    weights: bool = False
    """Its files contain the weights of models."""


_CODE = (Part.ARCHITECTURE, Part.INSTRUCTION_SET)
_LINKED = (*_CODE, Part.C_LIBRARY)
_GPU_CODE = (Part.ARCHITECTURE, Part.GPUS, Part.GPU_DRIVER)

CACHES = (
    Cache(
        "inductor",
        "TORCHINDUCTOR_CACHE_DIR",
        "https://docs.pytorch.org/tutorials/recipes/torch_compile_caching_configuration_tutorial.html",
        (*_LINKED, Part.PYTHON),
        ("torch", "triton"),
        (
            Entries("locks", "*.lock"),
            Entries("compiled graphs", "fxgraph/*", Format.PICKLE),
            Entries("AOTAutograd graphs", "aotautograd/*", Format.PICKLE),
            Entries("autotuning results", "*.best_config", Format.JSON),
            Entries("profiles (PGO)", "dynamo/*", Format.PICKLE),
            Entries("libraries", "*.so", Format.ELF),
            Entries("sources", "*.cpp"),
            Entries("sources", "*.py"),
        ),
    ),
    Cache(
        "optimized",
        "XRUNTIME_CACHE_DIR",
        "docs/optimize.md",
        _LINKED,
        ("torch", "xlaunch"),
        (
            Entries("locks", "*.lock"),
            Entries("compiled models", "*.so", Format.ELF),
            Entries("descriptions", "*.json", Format.JSON),
            Entries("packed weights", "weights-*.bin"),
        ),
        unit=r"[^/]*",  # the directory of a compiled form
        weights=True,
    ),
    Cache(
        "triton",
        "TRITON_CACHE_DIR",
        "https://triton-lang.org/main/python-api/triton.html, triton/knobs.py",
        (Part.ARCHITECTURE, Part.C_LIBRARY, Part.PYTHON, Part.GPUS),
        ("triton", "pytorch-triton", "triton-xpu"),
        (
            Entries("libraries", "*.so", Format.ELF),
            Entries("GPU code", "*.cubin", Format.ELF),
            Entries("GPU code", "*.hsaco", Format.ELF),
            Entries("descriptions", "*.json", Format.JSON),
        ),
    ),
    Cache(
        "torch_extensions",
        "TORCH_EXTENSIONS_DIR",
        "https://docs.pytorch.org/docs/stable/cpp_extension.html",
        (*_LINKED, Part.PYTHON),
        ("torch",),
        (
            Entries("libraries", "*.so", Format.ELF),
            Entries("locks", "*/lock", Format.LOCK),
            Entries("objects", "*.o", Format.ELF),
        ),
        unit=r"[^/]*",  # an extension: ninja compares the times of its files
    ),
    Cache(
        "numba",
        "NUMBA_CACHE_DIR",
        "https://numba.readthedocs.io/en/stable/reference/envvars.html",
        (*_CODE, Part.CPU_MODEL, Part.PYTHON),
        ("numba", "llvmlite"),
        (Entries("indices", "*.nbi", Format.PICKLE), Entries("functions", "*.nbc", Format.PICKLE)),
        unit=r".*?(?=(\.[0-9]+)?\.nb[ic]$)",  # an index names its functions by number
    ),
    Cache(
        "cuda",
        "CUDA_CACHE_PATH",
        "https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars",
        _GPU_CODE,
        vendor=Vendor.NVIDIA,
        switches=(
            Variable("CUDA_CACHE_MAXSIZE", "4294967296", "the driver keeps 1 GiB unless told to"),
        ),
        unit=r"",  # one index
    ),
    Cache(
        "cupy",
        "CUPY_CACHE_DIR",
        "https://docs.cupy.dev/en/stable/reference/environment.html",
        _GPU_CODE,
        ("cupy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x"),
        vendor=Vendor.NVIDIA,
    ),
    Cache(
        "sycl",
        "SYCL_CACHE_DIR",
        "https://intel.github.io/llvm/EnvironmentVariables.html",
        _GPU_CODE,
        ("intel-sycl-rt", "dpcpp-cpp-rt"),
        (Entries("locks", "*.lock", Format.LOCK),),
        vendor=Vendor.INTEL,
        switches=(
            Variable(
                "SYCL_CACHE_PERSISTENT", "1", "SYCL keeps nothing between runs unless told to"
            ),
        ),
    ),
    Cache(
        "neo",
        "NEO_CACHE_DIR",
        "https://github.com/intel/compute-runtime/blob/master/programmers-guide/COMPILER_CACHE.md",
        _GPU_CODE,
        vendor=Vendor.INTEL,
    ),
    Cache(
        "miopen",
        "MIOPEN_CUSTOM_CACHE_DIR",
        "https://rocm.docs.amd.com/projects/MIOpen/en/latest/conceptual/cache.html",
        _GPU_CODE,
        vendor=Vendor.AMD,
    ),
    Cache(
        "miopen_tuning",
        "MIOPEN_USER_DB_PATH",
        "https://rocm.docs.amd.com/projects/MIOpen/en/latest/conceptual/perfdb.html",
        _GPU_CODE,
        vendor=Vendor.AMD,
    ),
    Cache(
        "jax",
        "JAX_COMPILATION_CACHE_DIR",
        "https://docs.jax.dev/en/latest/persistent_compilation_cache.html",
        (*_CODE, Part.CPU_MODEL, Part.GPUS, Part.GPU_DRIVER),
        ("jax", "jaxlib"),
        changes_behaviour=True,
    ),
)

BY_NAME = {cache.name: cache for cache in CACHES}
VARIABLES = tuple([cache.variable for cache in CACHES])

KEEP_NOTHING = "0"
"""With this value of XRUNTIME_CACHE_DIR xruntime keeps nothing."""

PROFILE_VARIABLE = "TORCH_COMPILE_JOB_ID"
"""With `--cache all` torch records which sizes changed (PGO), so that later runs compile for changing sizes
at once. See https://docs.pytorch.org/tutorials/recipes/torch_compile_caching_tutorial.html"""
