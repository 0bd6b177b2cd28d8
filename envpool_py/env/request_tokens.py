"""Tokens: the numbers of requests, from the parent to the process of an env and back.

A token is an int64 that names one request: the env id in the low bits, then two bits for a reset
and for a request without a row, then the env's *generation*. An env is asked with a token and
answers with the same one. A request is cancelled by increasing the env's generation: a late answer
has an older generation, and is dropped.
"""

from __future__ import annotations

import struct

#: The bits of a token that hold the env id.
ID_MASK = (1 << 24) - 1
#: The bit of a plain reset; without it the request is a step.
RESET = 1 << 24
#: The bit of a request without a row.
ASK = 1 << 25
#: The increment of one generation.
GENERATION = 1 << 26
TOKEN_BYTES = 8

#: Return the bytes of a token, in the byte order of the machine.
pack_token = struct.Struct("=q").pack
