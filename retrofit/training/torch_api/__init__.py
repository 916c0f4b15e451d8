"""The one place that says what a library's functions mean to a training, a file per subject.

Sets of full names hold functions (`torch.save`), sets of bare names hold methods of whatever object (`detach`); the
comment above a set gives the meaning of each name in it. A set that another one is part of is built from it.
"""
