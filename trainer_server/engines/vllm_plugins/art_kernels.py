"""Kernels in C for vLLM's CPU worker, compiled on the machine that they run on.

`load()` compiles `art_kernels.c` once, by the machine's C compiler, and keeps the library in vLLM's environment.
Without a compiler the plugins compute the same by PyTorch, which takes longer; so they do with `ART_KERNELS=0`.

Shapes: N tokens, E hidden size, V vocabulary; further ones in `art_kernels.c`.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import torch

SOURCE = Path(__file__).with_suffix(".c")
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-shared", "-fPIC")
COLUMNS = 32
"""Columns of the head that `art_head` takes at a time."""
BLOCK = 16
"""Columns of a matrix that `art_linear` takes at a time."""
NUMBERS = (torch.bfloat16, torch.float32)
"""What the kernels compute with."""

log = logging.getLogger("vllm.art")


class Kernels:
    """The compiled functions, on tensors.

    Args:
        path: The compiled library.

    Raises:
        OSError: It cannot be loaded.
    """

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        pointer, count, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
        self._lora_linear, self._add_norm, self._head = library.art_lora_linear, library.art_add_norm, library.art_head
        kind = ctypes.c_int
        self._lora_linear.argtypes = [pointer, count, pointer, count, *4 * [pointer], *5 * [count], number, kind]
        self._add_norm.argtypes = [*4 * [pointer], count, pointer, count, count, number, kind]
        self._head.argtypes = [*3 * [pointer], *3 * [count]]
        self._silu_mul, self._rotate = library.art_silu_mul, library.art_rotate
        self._silu_mul.argtypes = [pointer, pointer, count, count, kind]
        self._rotate.argtypes = [pointer, count, count, pointer, count, count, pointer, pointer, *3 * [count], kind]
        self._linear = library.art_linear
        self._linear.argtypes = [pointer, pointer, count, pointer, *3 * [count]]
        functions = (self._lora_linear, self._add_norm, self._silu_mul, self._rotate, self._head, self._linear)
        for function in functions:
            function.restype = None
        self.has_head = bool(library.art_has_head())
        """Whether `head` can be called: it needs a processor that multiplies pairs of bf16 numbers."""

    def lora_linear(
        self,
        y_NO: torch.Tensor,
        x_NI: torch.Tensor,
        down: torch.Tensor,
        up: torch.Tensor,
        slots_N: torch.Tensor,
        ends_C: torch.Tensor,
        scale: float,
    ) -> None:
        """Adds scale · (x Aᵀ) Bᵀ to y, in place, each row with the adapter of its slot; slot −1: none.

        Args:
            y_NO: bf16 or fp32, as x, down and up; with contiguous rows.
            x_NI: With contiguous rows.
            down: (S, C·R, I).
            up: (S, R, O).
            slots_N: int64.
            ends_C: Where each slice of the outputs ends; int64.
            scale: The adapters' scale.
        """
        (rows, inputs), (_, rank, outputs) = x_NI.shape, up.shape
        pointers = (matrix.data_ptr() for matrix in (down, up, slots_N, ends_C))
        sizes = rows, inputs, outputs, len(ends_C), rank
        self._lora_linear(*_rows(y_NO), *_rows(x_NI), *pointers, *sizes, scale, x_NI.dtype is torch.float32)

    def add_norm(
        self, x_NE: torch.Tensor, residual_NE: torch.Tensor, weight_E: torch.Tensor, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """RMSNorm of x + residual in x's dtype, and that sum in fp32.

        Args:
            x_NE: bf16 or fp32, contiguous.
            residual_NE: bf16 or fp32, contiguous.
            weight_E: Of x's dtype.
            epsilon: Of the norm.
        """
        y_NE, sum_NE = torch.empty_like(x_NE), torch.empty_like(x_NE, dtype=torch.float32)
        pointers = (matrix.data_ptr() for matrix in (y_NE, sum_NE, x_NE, residual_NE))
        narrow, size = residual_NE.dtype is torch.bfloat16, x_NE.shape[-1]
        sizes = x_NE.numel() // size, size
        self._add_norm(*pointers, narrow, weight_E.data_ptr(), *sizes, epsilon, x_NE.dtype is torch.float32)
        return y_NE, sum_NE

    def silu_mul(self, x_NF: torch.Tensor) -> torch.Tensor:
        """silu of the first half of each row, times the second half, in x's dtype: bf16 or fp32. x is contiguous."""
        size = x_NF.shape[-1] // 2
        y = x_NF.new_empty((*x_NF.shape[:-1], size))
        self._silu_mul(y.data_ptr(), x_NF.data_ptr(), y.numel() // size, size, x_NF.dtype is torch.float32)
        return y

    def rotate(
        self, positions_N: torch.Tensor, q: torch.Tensor, k: torch.Tensor | None, size: int, cos_sin: torch.Tensor
    ) -> None:
        """Rotary position embedding in place, each number of a head with that half of the rotated ones further.

        Args:
            positions_N: int64.
            q: (N, heads · size), bf16 or fp32, with contiguous rows.
            k: The same of the keys; None: there are none.
            size: Numbers of a head.
            cos_sin: (positions, rotated numbers of a head), the cosines and then the sines; of q's dtype, contiguous.
        """
        key = (*_rows(k), k.shape[-1] // size) if k is not None else (None, 0, 0)
        pointers, sizes = (cos_sin.data_ptr(), positions_N.data_ptr()), (len(positions_N), size, cos_sin.shape[-1] // 2)
        self._rotate(*_rows(q), q.shape[-1] // size, *key, *pointers, *sizes, q.dtype is torch.float32)

    def linear(self, x_NI: torch.Tensor, weight_BIC: torch.Tensor) -> torch.Tensor:
        """x Wᵀ in fp32, (N, O), of a matrix that `pack_linear` has packed. x is fp32, with contiguous rows."""
        blocks, inputs, columns = weight_BIC.shape
        y_NO = torch.empty(len(x_NI), blocks * columns)
        self._linear(y_NO.data_ptr(), *_rows(x_NI), weight_BIC.data_ptr(), len(x_NI), inputs, blocks * columns)
        return y_NO

    def head(self, x_NE: torch.Tensor, packed_head: torch.Tensor) -> torch.Tensor:
        """Logits in fp32 of a head that `pack_head` has packed. x is bf16 and contiguous."""
        blocks, pairs, columns, _ = packed_head.shape
        logits_NV = torch.empty(len(x_NE), blocks * columns)
        self._head(
            logits_NV.data_ptr(), x_NE.data_ptr(), packed_head.data_ptr(), len(x_NE), 2 * pairs, blocks * columns
        )
        return logits_NV


def _rows(matrix: torch.Tensor) -> tuple[int, int]:
    """Where a matrix begins, and how many numbers further its next row does."""
    return matrix.data_ptr(), matrix.stride(0)


def pack_head(weight_VE: torch.Tensor) -> torch.Tensor | None:
    """The head as `Kernels.head` reads it: (V / 32, E / 2, 32, 2); None where V or E is no multiple."""
    vocabulary, size = weight_VE.shape
    if vocabulary % COLUMNS or size % 2:
        return None
    return weight_VE.view(-1, COLUMNS, size // 2, 2).transpose(1, 2).contiguous()


def pack_linear(weight_OI: torch.Tensor) -> torch.Tensor | None:
    """A matrix as `Kernels.linear` reads it: (O / 16, I, 16) in bf16. None where O is no multiple, or bf16 does not
    hold the numbers exactly; it does those of most checkpoints."""
    outputs, inputs = weight_OI.shape
    narrow_OI = weight_OI.bfloat16()
    if outputs % BLOCK or not torch.equal(narrow_OI.float(), weight_OI):
        return None
    return narrow_OI.view(-1, BLOCK, inputs).transpose(1, 2).contiguous()


@cache
def load() -> Kernels | None:
    """The kernels, compiled if they are not yet; None without a compiler, which the log says, or where switched off."""
    if os.environ.get("ART_KERNELS") == "0":
        return None
    try:
        return Kernels(compile_kernels(Path(sys.prefix) / "lib"))
    except (OSError, subprocess.SubprocessError) as error:
        why = (getattr(error, "stderr", None) or str(error)).strip()[-300:]
        log.warning("LoRA on this CPU takes longer than it could: no C kernels (%s). Install gcc and start again.", why)
        return None


def compile_kernels(where: Path) -> Path:
    """Compiles the kernels, or finds them compiled.

    Args:
        where: Directory of the library. Its name has a digest of source, flags and processor.

    Raises:
        OSError: There is no compiler, or the directory cannot be written.
        subprocess.SubprocessError: The compiler failed.
    """
    digest = hashlib.sha256(b"\0".join([SOURCE.read_bytes(), " ".join(FLAGS).encode(), processor().encode()]))
    path = where / f"art_kernels-{digest.hexdigest()[:16]}.so"
    if path.exists():
        return path
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise OSError(f"no C compiler: none of {', '.join(COMPILERS)} is on the PATH")
    with tempfile.TemporaryDirectory(dir=where) as scratch:
        library = Path(scratch) / path.name
        line = [compiler, *FLAGS, str(SOURCE), "-o", str(library), "-lm"]
        subprocess.run(line, check=True, capture_output=True, text=True, timeout=120)
        library.replace(path)
    return path


def processor() -> str:
    """What the compiled code depends on: architecture, and the instructions that the processor has."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return platform.machine() + next((line for line in lines if line.startswith(("flags", "Features"))), "")
