"""The token of a request: an int64 that the request and its answer have in common.

It has the env id in the low bits, then two bits for a reset and for a request without a row, then
the env's *generation*. An env has one request at a time, so the next one has the same token. A
request is cancelled by increasing the env's generation: a late answer has an older generation, and
is dropped.
"""

import struct

#: The bits of a token that hold the env id.
ID_MASK = (1 << 24) - 1
#: The bit of a reset without arguments, which is sent as its token alone, as a step is.
RESET = 1 << 24
#: The bit of a request without a row.
ASK = 1 << 25
#: The increment of one generation.
GENERATION = 1 << 26
TOKEN_BYTES = 8

#: Return the bytes of a token, in the byte order of the machine.
pack_token = struct.Struct("=q").pack
