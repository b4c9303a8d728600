"""A comparison of methods: several arms, at the points of their grids, over the same seeds.

`run` knows one run and its commands, `queue` runs the commands of several runs at the same time, `tables` has the
statistics of the finished ones, for reports too, and `page` writes them. `leash compare` decides which runs there are.
"""
