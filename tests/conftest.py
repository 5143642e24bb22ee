"""Every test runs with float64 available and strict promotion: a float32 array stays one or the test fails."""

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
