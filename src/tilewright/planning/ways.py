"""The ways in which the engine's kernels can compute a product on a GPU, each with its predicted time.

A kernel's header names its sets of parameters and predicts the time of a launch (its table ``time``). Where C has too few
tiles for all multiprocessors, k can be cut into parts, whose sums another kernel adds in a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..host.machine import seconds_text
from ..kernels.cuda_kernel import Card, CudaKernel, blocks_at_once
from ..problem import itemsize_of
from .tuned import best_params

#: A part of k has at least so many steps, and there are so many parts at most.
_LEAST_STEPS, _MOST_PARTS = 4, 256
#: The most bytes of shared memory of a block, on GPUs that have kernels that apply epilogues.
MOST_SHARED = 227 * 1024


@dataclass(frozen=True)
class EngineShape:
    """The product as a kernel sees it. ``out``: the dtype that it stores. ``a_start``, ``b_start``: of how many bytes, at
    most 128, the beginnings of what follows each other of A or of B are multiples. ``a_down``: columns of A follow each
    other in memory; ``b_across``: rows of B do; ``c_down``: columns of C do. ``a_vector``, ``b_vector``: the most bytes that
    one access may have. ``vectors``: those of an epilogue that the kernel applies, with a number for each of its columns;
    None where it applies none. ``blocks``: each 128 of k have scales of their own."""

    dtype: str
    out: str
    m: int
    n: int
    k: int
    batch: int = 1
    a_start: int = 128
    b_start: int = 128
    a_down: bool = False
    b_across: bool = True
    a_vector: int = 16
    b_vector: int = 16
    vectors: int | None = None
    blocks: bool = False
    c_down: bool = False


@dataclass(frozen=True)
class Way:
    """One way to compute a product: a kernel, its parameters, the parts of k, and the predicted seconds of the launch."""

    kernel: CudaKernel
    params: Mapping[str, int]
    parts: int
    seconds: float


def ways(kernel: CudaKernel, product: EngineShape, card: Card) -> list[Way]:
    """Every way that the kernel's header names, the fastest first. If ``tilewright tune`` found parameters for this GPU,
    only with these.

    >>> from tilewright.catalog import cuda_engine
    >>> from tilewright.kernels.cuda_kernel import Card
    >>> hopper, product = cuda_engine()["cuda/hopper"], EngineShape("bfloat16", "bfloat16", 4096, 4096, 4096)
    >>> [(way.params["BN"], way.parts) for way in ways(hopper, product, Card())][:1]
    [(256, 1)]
    """
    shape = product.m, product.n, product.k
    tuned = best_params(kernel, card.name, product.dtype, shape) if card.name else None
    m, n, k = shape
    is_finished, found = product.vectors is not None, []
    for params in kernel.sets(m, n, k, itemsize_of(product.dtype)) if tuned is None else [kernel.checked(tuned)]:
        if product.blocks and not (kernel.blocks and kernel.blocks(**params)):
            continue
        if is_finished:
            shared = kernel.launch(*shape, **params).shared_bytes
            if shared + kernel.shared_to_finish(params, product.vectors or 0) > MOST_SHARED:
                continue
        blocks = kernel.blocks_of(m, n, k, params) * product.batch
        for parts in (1,) if is_finished else _parts(kernel, params, product, blocks, card.sms):
            found.append(Way(kernel, params, parts, _seconds(kernel, params, product, parts, blocks, card)))
    return sorted(found, key=lambda way: way.seconds)


def part_steps(kernel: CudaKernel, params: Mapping[str, int], dtype: str, k: int, parts: int) -> int:
    """The steps of each part of k but the last, which may be shorter.

    >>> from tilewright.catalog import cuda_engine
    >>> part_steps(cuda_engine()["cuda/hopper"], {}, "bfloat16", 640, 3)
    4
    """
    return _part_steps(-(-k // kernel.step_of_k(itemsize_of(dtype), params)), parts)


def why_first(found: list[tuple[Way, float, tuple[str, ...]]]) -> str:
    """Why the first of these ways was chosen: it and the next ones with their times in seconds, in which copies count, and
    with words on what each computes and copies."""
    (first, seconds, words), others = found[0], found[1:4]
    lost = [f"{_name(way, text, first, words)}: {seconds_text(other)}" for way, other, text in others]
    return f"predicted to be the fastest, {seconds_text(seconds)}" + (f"; next {'; '.join(lost)}" if lost else "")


def _name(way: Way, words: tuple[str, ...], first: Way, words_of_first: tuple[str, ...]) -> str:
    """What is different in another way."""
    changed = [way.kernel.name] if way.kernel is not first.kernel else []
    changed += [f"{name}={value}" for name, value in way.params.items() if first.params.get(name) != value]
    if way.parts != first.parts:
        changed.append(f"{way.parts} part{'s' * (way.parts > 1)} of k")
    changed += [text for text, other in zip(words, words_of_first, strict=True) if text != other]
    return ", ".join(changed)


def _part_steps(steps: int, parts: int) -> int:
    return -(-steps // parts)


def _parts(kernel: CudaKernel, params: Mapping[str, int], product: EngineShape, blocks: int, sms: int) -> Iterator[int]:
    yield 1
    step = kernel.step_of_k(itemsize_of(product.dtype), params)
    if not step:
        return
    steps = -(-product.k // step)
    fill = blocks_at_once(sms, {**params, "PER_SM": 1}) // max(1, blocks)
    few = () if kernel.persistent else _fewer_generations(blocks, sms)
    wanted = {min(parts, steps // _LEAST_STEPS, _MOST_PARTS) for parts in (fill // 2, fill, 2 * fill, 4 * fill, *few)}
    yield from sorted({-(-steps // _part_steps(steps, parts)) for parts in wanted if parts > 1} - {1})


def _fewer_generations(blocks: int, sms: int) -> Iterator[int]:
    """Small numbers of parts, each with which the multiprocessors wait less for the last ones than with the one before.

    >>> list(_fewer_generations(288, 132))  # three generations of whole tiles, five of halves
    [2, 3, 5]
    """
    least = float(-(-blocks // sms))
    for parts in range(2, 9):
        generations = -(-blocks * parts // sms)
        if generations < 0.95 * least * parts:
            least = generations / parts
            yield parts


def _seconds(
    kernel: CudaKernel,
    params: Mapping[str, int],
    product: EngineShape,
    parts: int,
    blocks: int,
    card: Card,
) -> float:
    part = product.k
    if parts > 1:
        part = part_steps(kernel, params, product.dtype, product.k, parts) * kernel.step_of_k(
            itemsize_of(product.dtype), params
        )
    return kernel.seconds(
        **params,
        m=product.m,
        n=product.n,
        k=product.k,
        batch=product.batch,
        parts=parts,
        part=part,
        size=itemsize_of(product.dtype),
        out_size=itemsize_of(product.out if parts == 1 else sums_dtype(product.dtype)),
        sms=card.sms,
        memory_ratio=card.memory_ratio,
        blocks=blocks * parts,
        a_start=product.a_start,
        b_start=product.b_start,
        a_down=product.a_down,
        b_across=product.b_across,
        a_vector=product.a_vector,
        b_vector=product.b_vector,
        finished=product.vectors is not None,
        scaled=product.blocks,
        c_down=product.c_down and parts == 1,
    )


def sums_dtype(compute: str) -> str:
    """The dtype of sums of products.

    >>> sums_dtype("bfloat16"), sums_dtype("int8"), sums_dtype("complex128")
    ('float32', 'int32', 'complex128')
    """
    exact = {
        "int8": "int32",
        "uint8": "int32",
        "float64": "float64",
        "complex64": "complex64",
        "complex128": "complex128",
    }
    return exact.get(compute, "float32")
