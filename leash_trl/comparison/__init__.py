"""A comparison of methods: several arms, at the points of their grids, over the same seeds.

`run` has one run and its commands, `queue` runs the commands of several runs at the same time, `tables` computes the
statistics of finished runs, also for reports, and `page` writes them. `leash compare` decides which runs there are.
"""
