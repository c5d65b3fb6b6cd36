"""Hints for primitives of JAX that have no rule: each says what to write instead."""

from __future__ import annotations

_OF_EIGENVALUES = "write the world without eigenvalues, or hold the matrix constant"
_OF_A_FORM = "write the world without this form of a matrix, or hold the matrix constant"
_OF_SPARSE = "jnp.zeros(rows).at[i].add(a.data * x[j]) with i, j = a.indices.T, or a product with a.todense()"
_OF_DEVICES = "a server runs instances in parallel: write the step of one, with jax.vmap over what it has several of"
_OF_A_TABLE = "jnp.interp in a table of it, or a series of one's own"
_OF_BITS = "for each bit k of an unsigned x add up"
HINTS: dict[str, str] = {
    "eigh": _OF_EIGENVALUES,
    "eig": _OF_EIGENVALUES,
    "svd": "write the world without singular values, or hold the matrix constant",
    "schur": _OF_A_FORM,
    "hessenberg": _OF_A_FORM,
    "tridiagonal": _OF_A_FORM,
    "tridiagonal_solve": "two jax.lax.scan, forward to eliminate and back to substitute, or jnp.linalg.solve",
    "bcoo_dot_general": _OF_SPARSE,
    "bcsr_dot_general": _OF_SPARSE.replace("a.indices.T", "a.to_bcoo().indices.T"),
    "spsolve": "jnp.linalg.solve of the dense matrix, or jax.scipy.sparse.linalg.cg with a function of x",
    "ragged_dot_general": "a product for each group, of rows that jnp.where sets to 0 outside of it",
    "reduce": "jnp.sum, jnp.prod, jnp.max or jnp.min, or jax.lax.scan along the axis",
    "reduce_xor": "jnp.sum(x) % 2 of bools, ^ in a jax.lax.scan of integers",
    "fft": "a product with the constant matrices of cosines and sines, real and imaginary parts apart",
    "population_count": f"{_OF_BITS} x >> k & 1",
    "clz": f"{_OF_BITS} x >> k == 0",
    "lgamma": "jnp.log of a product, Stirling's series where x is large, or jnp.interp in a table of it",
    **dict.fromkeys(("digamma", "polygamma", "zeta", "igamma", "igammac", "regularized_incomplete_beta"), _OF_A_TABLE),
    **dict.fromkeys(("bessel_i0e", "bessel_i1e"), _OF_A_TABLE),
    "shard_map": _OF_DEVICES,
    "pmap": _OF_DEVICES,
    "check": "equinox.error_if, which ends a run with an error, or checkify.checkify around the function that checks",
    "rng_uniform": "jax.random.uniform with a key of the state",
}
