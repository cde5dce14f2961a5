"""The prior of what is relevant."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from klimb.surrogate.relevance import prior_shape


@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.booleans())
def test_the_prior_is_that_of_what_is_relevant_and_something_for_all(seed, n, full):
    rng = np.random.default_rng(seed)
    W = np.diag(rng.dirichlet(np.ones(n)))
    if full and n > 1:
        turn = stats.ortho_group.rvs(n, random_state=rng)
        W = turn @ W @ turn.T
    V = prior_shape(W if full else np.diag(W))
    V = V if full else np.diag(V)
    np.testing.assert_allclose(V, 0.2 * W + 0.8 * np.eye(n) / n, atol=1e-15)
    assert np.trace(V) == pytest.approx(1)
