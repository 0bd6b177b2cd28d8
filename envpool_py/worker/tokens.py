"""Tokens: what requests and answers are known by. An env id in the low bits, a generation above.

A process gives back the token that it was sent; the parent raises the generation to disown a
request, and drops answers to older ones.
"""

#: The bits of the id.
ID_BITS = 20
ID_MASK = (1 << ID_BITS) - 1
#: How many there are before they begin anew.
GENERATIONS = 1 << (31 - ID_BITS)
