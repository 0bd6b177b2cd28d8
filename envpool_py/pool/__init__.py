"""What a user calls: the pool classes, ``make``, and their options."""
