"""Which environment variables the children of the server get: those that they need, so that no secret reaches them by
accident. vLLM and the trainer import code of many projects, and the keys of the server and of judges are not theirs.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

from trainer_server.wire import ConfigError

INHERITED = (
    # the system
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "TMP", "TEMP", "XDG_*",
    "LD_LIBRARY_PATH", "LD_PRELOAD",
    # the network
    "[Hh][Tt][Tt][Pp]_[Pp][Rr][Oo][Xx][Yy]", "[Hh][Tt][Tt][Pp][Ss]_[Pp][Rr][Oo][Xx][Yy]",
    "[Nn][Oo]_[Pp][Rr][Oo][Xx][Yy]", "[Aa][Ll][Ll]_[Pp][Rr][Oo][Xx][Yy]",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    # Python, and compilers of kernels
    "PYTHON*", "VIRTUAL_ENV", "CC", "CXX", "CPATH", "LIBRARY_PATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH",
    # processors, GPUs, and their libraries
    "OMP_*", "GOMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "DNNL_*", "ONEDNN_*", "MALLOC_*", "ATEN_*",
    "CUDA_*", "CUDNN_*", "CUBLAS_*", "NVIDIA_*", "NCCL_*", "GLOO_*", "UCX_*", "TORCH*", "PYTORCH_*", "TRITON_*",
    # models
    "HF_*", "HUGGINGFACE_*", "TRANSFORMERS_*", "TOKENIZERS_*", "SAFETENSORS_*",
    "ACCELERATE_*", "FSDP_*", "BNB_*",
    # our own, none of them secret
    "ART_CPU_LORA", "ART_KERNELS", "ART_PRECISION", "ART_START", "ART_FAULT",
)  # fmt: skip
"""Names that every child gets, as patterns of fnmatch."""
SECRET = ("*_TOKEN", "*_KEY", "*_SECRET", "*_PASSWORD")
"""Names that no child gets by a pattern. Children need no token of the hub: the model is on this machine."""


def inherited_environment(names: Iterable[str] = (), patterns: Collection[str] = ()) -> dict[str, str]:
    """The part of this process's environment that a child gets.

    Args:
        names: Further variables that the user wants it to have.
        patterns: Further patterns, of what this kind of child needs.
    """
    wanted = (*INHERITED, *patterns)
    chosen = set(names)
    return {
        name: value
        for name, value in os.environ.items()
        if name in chosen or (_matches(name, wanted) and not _matches(name, SECRET))
    }


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def check_present(option: str, names: Iterable[str]) -> None:
    """Raises ConfigError for a variable that is not set, or a name that cannot be one."""
    for name in names:
        if "=" in name:
            raise ConfigError(
                f"{option} {name.partition('=')[0]}=…: give the name only. Others can read command lines; the value is "
                "taken from the server's environment"
            )
        if name not in os.environ:
            raise ConfigError(f"{option} {name}: the server's environment has no such variable")
