"""The relevance surrogate: a quadratic model that learns which directions matter, and how far to trust it.

A Gaussian process whose mean is a quadratic explains the returns of the latest episodes. Its prior says that
few parameters and few directions matter, and which ones is learned on the way: their relevance shapes the
prior of the gradient and of the curvature. Nothing is tuned by hand: the amplitudes of signal and noise are
those of the greatest likelihood, and how well held-out episodes are predicted decides how far the belief may
move.

Symbols, all in coordinates z whitened by the belief, which is N(0, I) there:

    z (N, n), J (N,)    episodes and their returns;  model  J ~ b + g.z + z'Hz/2
    W (n, n)            relevance of directions, trace 1, (n,) if diagonal
    V (n, n)            W and something for all, trace 1: it shapes the prior of g and H
    k = z'V z'          kernel  t1 k + t2 k^2 + t3 q q' + t6 c.c' + constant,  q = (|z|^2 - n) / sqrt(2n),
    c (n,)              c_i = v_i x_i^2 with the parameters x around the mean and their share v of V
    y                   returns, or the normal scores of their ranks, in units of their spread; twins m + s,
                        m - s as their odd and even part
    t (6,)              amplitudes: linear, quadratic, isotropic, remainder, further remainder of the even
                        part, curvature along the parameters
    Q                   skill: the share of the variance of held-out returns that is explained, in [0, 1)
    p, d                precision and mean of the new belief in the eigenbasis of H

docs/algorithms/auto-update.md derives the update and gives the reason of every constant.

    twins, noise     episodes in pairs, and how much of their returns is noise
    returns          their units, their ranks, what they tell before any fit
    relevance        V, how W is learned, and what it says of each parameter
    model            the fit: t, g, H and Q
    step             how far the mean, the shape and the scale of the belief go
    learning         one update of all this
    follow           the same for the state of a search: what to sample, what to learn from
    turns            when a search is over, and what comes next
"""
