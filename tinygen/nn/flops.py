"""Floating-point operations of a traced function: its matrix products and convolutions, a multiply-add counted as two.

Counted on the jaxpr, as in papers. XLA's cost analysis misses the products that a GPU's libraries compute and the number of
iterations of a loop. What config.remat recomputes is counted again.
"""

import collections
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from jax.extend import core


class Product(NamedTuple):
    """`batch` products of [rows, inner] by [inner, columns]."""

    batch: int
    rows: int
    inner: int
    columns: int

    def flops(self, tile: int = 1) -> int:
        """Operations with every size but the batch padded to a multiple of `tile`."""
        rows, inner, columns = (-(-size // tile) * tile for size in self[1:])
        return 2 * self.batch * rows * inner * columns


Products = collections.Counter[Product]  # how often each is computed


def products(function: Callable[..., Any], *arguments: Any) -> Products:
    """`products_of` a function on arguments of these shapes (arrays or ShapeDtypeStructs)."""
    return products_of(jax.make_jaxpr(function)(*arguments))


def flops(counted: Products, tile: int = 1) -> int:
    """Operations of all products; tile: see `Product.flops`"""
    return sum(times * product.flops(tile) for product, times in counted.items())


def products_of(traced: core.ClosedJaxpr | core.Jaxpr) -> Products:
    """The products of a traced function, over all devices together.

    A convolution is the product of its patches with its kernel. A `cond` counts as its most expensive branch; a `while_loop`, whose
    length is unknown, as one iteration.
    """
    total: Products = collections.Counter()
    for equation in traced.eqns:
        name, inner = equation.primitive.name, [products_of(each) for each in _jaxprs(equation.params)]
        if name == "dot_general":
            total[_of_dot(equation)] += 1
        elif name == "rounded_product":
            total[_of_rounded(equation)] += 1
        elif name == "conv_general_dilated":
            total[_of_convolution(equation)] += 1
        elif name == "cond":
            total += max(inner, key=flops)
        else:
            times = equation.params["length"] if name == "scan" else 1
            for each in inner:
                total += collections.Counter({product: times * count for product, count in each.items()})
    return total


def _of_dot(equation: core.JaxprEqn) -> Product:
    (contracted, _), (batch, _) = equation.params["dimension_numbers"]
    left, right = map(_shape, equation.invars)
    inner, parallel = (math.prod(left[axis] for axis in axes) for axes in (contracted, batch))
    return Product(parallel, math.prod(left) // (inner * parallel), inner, math.prod(right) // (inner * parallel))


def _of_rounded(equation: core.JaxprEqn) -> Product:
    """The primitive of `tinygen.nn.matmul`."""
    *batch, rows, columns = _shape(equation.outvars[0])
    left = _shape(equation.invars[0])
    return Product(math.prod(batch), rows, math.prod(left[-2:]) // rows, columns)


def _of_convolution(equation: core.JaxprEqn) -> Product:
    """Each group is a separate product."""
    kernel, out, numbers = _shape(equation.invars[1]), _shape(equation.outvars[0]), equation.params["dimension_numbers"]
    groups = equation.params["feature_group_count"] * equation.params["batch_group_count"]
    columns = kernel[numbers.rhs_spec[0]]
    return Product(groups, math.prod(out) // columns, math.prod(kernel) // columns, columns // groups)


def _shape(variable: Any) -> tuple[int, ...]:
    return variable.aval.shape


def _jaxprs(parameters: Any) -> Iterator[core.ClosedJaxpr | core.Jaxpr]:
    """The jaxprs among an equation's parameters: of a jit, a scan, the branches of a cond."""
    for value in parameters.values():
        for each in value if isinstance(value, tuple | list) else [value]:
            if isinstance(each, core.ClosedJaxpr | core.Jaxpr):
                yield each
