"""What a kernel gets besides its plain arguments: values of its variables, and arrays of pointers."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import OperandError, UsageError

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

#: What is found and computed does not depend on the binary.
pytestmark = pytest.mark.usefixtures("without_disassembly")

FILTER = """
namespace image {
__constant__ float weights[3];
static __constant__ short shifts[2];
}
__constant__ double scale;
__device__ int offset = 4;
struct Window { int first; float size; };
__constant__ Window window;
__constant__ float unused;
__global__ void k(float* y)
{
    int i = threadIdx.x;
    y[i] = image::weights[i] * (float)scale + offset + image::shifts[i & 1] + window.first * window.size;
}
"""
POINTERS = """
__global__ void k(float** rows, float* sums, int count, int n)
{
    int i = threadIdx.x;
    float sum = 0;
    for (int r = 0; r < count; r++) sum += rows[r][i];
    sums[i] = sum;
    rows[0][i] = n > 0 ? -1 : rows[0][i];
}
"""


def filtered(**constants: object) -> list[float]:
    return tw.microscope(FILTER, "k", 1, 3, [np.zeros(3, np.float32)], constants=constants).arrays[0].tolist()


def test_variables_have_the_values_that_are_given() -> None:
    weights = np.array([1, 2, 3], np.float32)
    window = np.array((2, 0.5), np.dtype([("first", np.int32), ("size", np.float32)]))
    assert filtered() == [4, 4, 4], "the values that the source gives"
    given = {"image::weights": weights, "image::shifts": np.array([100, 200], np.int16), "window": window}
    assert filtered(**given, scale=2, offset=-1) == [102, 204, 106]
    assert filtered(scale=2.0, **{"image::weights": weights[::-1]}, offset=np.int32(0)) == [6, 4, 2]


@pytest.mark.parametrize(
    ("constants", "words"),
    [
        (
            {"weights": 1},
            r"constants: the kernel uses no __constant__ or __device__ variable 'weights': .*image::weights",
        ),
        ({"unused": 1.0}, "the kernel uses no .* variable 'unused'"),
        ({"image::weights": np.zeros(3)}, r"constants\['image::weights'\] has 24 bytes, the variable 12"),
        ({"image::weights": 1.0}, r"constants\['image::weights'\] is a number, but .* a \.b8\[12\]"),
        ({"offset": 1.5}, r"constants\['offset'\] is 1\.5"),
        ({"offset": "1"}, r"constants\['offset'\] is a str"),
        ({"scale": np.array(["a"])}, "is an array of <U1"),
        ([1], r"constants must be a dictionary of values by name, given \[1\]"),
    ],
)
def test_a_value_that_does_not_fit(constants: object, words: str) -> None:
    with pytest.raises((UsageError, OperandError), match=words) as error:
        tw.microscope(FILTER, "k", 1, 3, [np.zeros(3, np.float32)], constants=constants)
    assert "\n" not in str(error.value)


def test_a_list_of_arrays_is_an_array_of_pointers() -> None:
    rows = [np.full(32, i, np.float32) for i in range(3)]
    seen = tw.microscope(POINTERS, "k", 1, 32, [rows, np.zeros(32, np.float32), 3, 1], outputs=[1])
    assert seen.findings == []
    assert (seen.arrays[1] == 3).all()
    assert [row[0] for row in seen.arrays[0]] == [-1, 1, 2]
    assert [row[0] for row in rows] == [0, 1, 2], "the caller's arrays stay as they are"
    same = tw.microscope(POINTERS, "k", 1, 32, [[rows[1]] * 2, np.zeros(32, np.float32), 2, 1])
    assert (same.arrays[1] == 2).all()
    assert [row[0] for row in same.arrays[0]] == [-1, -1], "an array that is given twice is one"


def test_findings_name_the_array_of_a_list() -> None:
    rows = [np.zeros(32, np.float32), np.zeros(30, np.float32)]
    seen = tw.microscope(POINTERS, "k", 1, 32, [rows, np.zeros(32, np.float32), 2, 0])
    assert [finding.kind for finding in seen.findings] == ["out of bounds"]
    assert "of argument 0[1] (float32, shape (30,)" in seen.findings[0].text
    beyond = tw.microscope(POINTERS, "k", 1, 32, [rows[:1], np.zeros(32, np.float32), 2, 0])
    assert "byte 8 of argument 0 (uint64, shape (1,)" in beyond.findings[0].text
    unwritten = tw.microscope(POINTERS, "k", 1, 32, [rows, np.zeros(32, np.float32), 1, 0], outputs=[0])
    assert [(f.kind, f.text[:16]) for f in unwritten.findings] == [("output never written", "argument 0[1]: 1")]


@pytest.mark.parametrize("rows", [[1, 2], ["a"], [[np.zeros(3, np.float32), 1.5]]])
def test_a_list_of_anything_else_is_refused(rows: list) -> None:
    with pytest.raises(OperandError, match=r"argument 0\[.*\] is a (int|str|float): a member of a list is an array"):
        tw.microscope(POINTERS, "k", 1, 32, [rows, np.zeros(32, np.float32), 1, 0])
