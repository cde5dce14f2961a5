"""The paper's experiments: a TOML file per figure, what runs them, and the paper's claims with a verdict.

plan        a figure's file -> its variants, each with settings that are complete and hashed
run         settings and a seed -> the rows of one run
pool        many runs in worker processes
store       runs on disk, and one tidy results file per figure
reproduce   a figure from its file to its picture
sweep       the hyper-parameter sweep of one variant
claims      what the paper says, computed from the results files
"""
