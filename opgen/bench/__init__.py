"""`opgen bench`: ops of opgen beside the best that PyTorch users can write, and beside the limit.

A row (`row`) names a workload. Its contenders are checked against each other (`agreement`), called
in turn in one process (`timing`), and compared round by round (`statistics`) with each other and
with what the machine can do (`limits`).
"""
