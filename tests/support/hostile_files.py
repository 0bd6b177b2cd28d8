"""Damaged and hostile files: every field of a good file, changed in every way."""

import functools
import io
import json
import os
import pickle
import zipfile
import zlib

import numpy as np

from envpool_py.record import file_format, plain_codec

NESTED = functools.reduce(lambda inner, _: [inner], range(200), [])
#: In place of any value in JSON.
WRONG = {
    "negative": -1,
    "huge": 2**62,
    "overflow": 2**70,
    "float": 0.5,
    "text": "\x1b[31m[/red]",
    "null": None,
    "list": [1, 2],
    "object": {"\x1b": 1},
    "nested": NESTED,
    "sizes": [2**31, 2**31, 2**31],
}


def changed(tree, path=()):
    """Yield (name, copy) of plain values, with one part of each copy removed or replaced."""
    for name, wrong in WRONG.items():
        yield "/".join([*path, name]), wrong
    keys = tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in list(keys)[:12]:
        less = tree.copy()
        less.pop(key)
        yield "/".join([*path, str(key), "missing"]), less
        for name, part in changed(tree[key], (*path, str(key))):
            copy = tree.copy()
            copy[key] = part
            yield name, copy


def arrays_instead(array):
    """Yield (name, array): what a file could have in place of an array."""
    number = array.dtype.kind in "biuf"
    yield "text", np.full(array.shape, "\x1b[31m")
    yield "axis", array[..., None]
    yield "complex", np.zeros(array.shape, complex)
    yield "scalar", np.zeros(())
    yield "empty", array.reshape(-1)[:0]
    if array.ndim:
        yield "less", array[:-1]
    if number and array.dtype.kind != "b":
        limits = (np.finfo if array.dtype.kind == "f" else np.iinfo)(array.dtype)
        for name, value in (("least", limits.min), ("greatest", limits.max)):
            last = array.copy()
            last.reshape(-1)[-1:] = value
            yield name, last
            yield f"all-{name}", np.full_like(array, value)
    if array.dtype.kind == "f":
        yield "nan", np.full_like(array, np.nan)


def npy(header, data=b"", version=(1, 0)):
    """Return an array's file, whatever the header says."""
    text = header.encode() + b"\n"
    return b"\x93NUMPY" + bytes(version) + len(text).to_bytes(2, "little") + text + data


HEADER = "{'descr': %s, 'fortran_order': False, 'shape': %s}"
#: Files in place of that of an array.
CRAFTED = {
    "objects": npy(HEADER % ("'|O'", "(1,)"), pickle.dumps(print)),
    "huge": npy(HEADER % ("'<i8'", "(4611686018427387904,)")),
    "wraps": npy(HEADER % ("'<i8'", "(4294967296, 4294967296)")),
    "wraps-to-few": npy(HEADER % ("'<i8'", "(2305843009213693953,)"), bytes(8)),
    "negative": npy(HEADER % ("'<i8'", "(-1,)"), bytes(8)),
    "two-negative": npy(HEADER % ("'<i8'", "(-1, -1)"), bytes(8)),
    "true": npy(HEADER % ("'<i8'", "(True,)"), bytes(8)),
    "no-tuple": npy(HEADER % ("'<i8'", "7"), bytes(8)),
    "no-bytes": npy(HEADER % ("'<U0'", "(1000000000,)")),
    "empty-rows": npy(HEADER % ("'<i8'", "(1000000000, 0)")),
    "long-text": npy(HEADER % ("'<U536870911'", "(1,)")),
    "no-character": npy(HEADER % ("'<U1'", "(1,)"), b"\xff" * 4),
    "no-bool": npy(HEADER % ("'|b1'", "(2,)"), b"\x02\xff"),
    "structured": npy(HEADER % ("[('a', '<i8')]", "(1,)"), bytes(8)),
    "structured-objects": npy(HEADER % ("[('a', '|O')]", "(1,)"), bytes(8)),
    "sub-array": npy(HEADER % ("('<i8', (1000000, 1000000))", "(1,)"), bytes(8)),
    "other-order": npy(HEADER % ("'>i8'", "(1,)"), bytes(8)),
    "void": npy(HEADER % ("'|V8'", "(1,)"), bytes(8)),
    "nested": npy("(" * 3000 + ")" * 3000),
    "minus": npy("-" * 9000 + "1"),
    "long-header": npy("{" + " " * 60_000 + "}"),
    "call": npy("__import__('os')"),
    "no-header": npy(""),
    "version": npy(HEADER % ("'<i8'", "(1,)"), bytes(8), (9, 9)),
    "nothing": b"",
    "no-npy": b"PK\x03\x04" * 9,
}


def damaged(data):
    """Yield (name, bytes): a file cut off, and with flipped bits."""
    for part in (1, 5, 40, 90, 99):
        yield f"cut-{part}", data[: len(data) * part // 100]
    places = np.random.default_rng(0).integers(len(data), size=40)
    for place in [*range(0, 40, 3), *places.tolist()]:
        yield f"flip-{place}", data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :]


def zipped(members, compression=zipfile.ZIP_STORED):
    """Return an archive of (name, bytes)."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return file.getvalue()


def saved(array):
    """Return an array's file."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def archives(good, text):
    """Yield (name, bytes): the archive, with each array changed; ``text``: the array of JSON."""
    with np.load(io.BytesIO(good)) as file:
        arrays = dict(file)
    members = {name: saved(array) for name, array in arrays.items()}
    head = json.loads(str(arrays[text]))
    for name, copy in changed(head):
        yield f"{text}:{name}", zipped({**members, text: saved(np.array(json.dumps(copy)))})
    for name in [*range(30), *range(90, 1200, 100)]:
        deep = np.array("[" * 10 ** (name % 6) if name < 6 else "{" * name)
        yield f"{text}:deep-{name}", zipped({**members, text: saved(deep)})
    for number, (name, array) in enumerate(arrays.items()):
        for how, other in arrays_instead(array):
            yield f"{name}:{how}", zipped({**members, name: saved(other)})
        others = {one: members[one] for one in members if one != name}
        yield f"{name}:missing", zipped(others)
        for how, data in CRAFTED.items():
            if number < 3 or how in ("huge", "wraps", "objects"):
                yield f"{name}:crafted-{how}", zipped({**members, name: data})
    yield "unknown", zipped({**members, "unknown": saved(np.zeros(3))})
    bomb = npy(HEADER % ("'|u1'", "(100000000,)")) + bytes(100_000_000)
    yield "bomb", zipped({**members, "extras/bomb": bomb}, zipfile.ZIP_DEFLATED)
    yield "lzma", zipped(members, zipfile.ZIP_LZMA)
    place = good.rindex(b"PK\x01\x02")
    for offset in (20, 24, 42):  # sizes and place of the last member
        at = place + offset
        yield f"field-{offset}", good[:at] + b"\xfe\xff\xff\x7f" + good[at + 4 :]
    end = good.rindex(b"PK\x05\x06")
    for offset in (10, 12, 16):  # number, size and place of the directory
        at = end + offset
        yield f"end-{offset}", good[:at] + b"\xfe\xff\xff\x7f" + good[at + 4 :]
    yield from damaged(good)


def folders(good):
    """Yield (name, bytes by file): a folder of episodes, with each file and column changed."""
    files = {path.name: path.read_bytes() for path in good.iterdir()}
    for name, copy in changed(json.loads(files["metadata.json"])):
        yield f"metadata:{name}", {**files, "metadata.json": json.dumps(copy).encode()}
    for depth in (30, 1000, 100_000):
        yield f"metadata:deep-{depth}", {**files, "metadata.json": b"[" * depth}
    table = np.load(io.BytesIO(files["episodes.npy"]))
    for column in table.dtype.names:
        for how, other in arrays_instead(table[column]):
            columns = {each: table[each] for each in table.dtype.names} | {column: other}
            if other.shape[:1] == table.shape:
                kinds = [(name, each.dtype, each.shape[1:]) for name, each in columns.items()]
                changed_table = np.zeros(len(table), kinds)
                for name, each in columns.items():
                    changed_table[name] = each
                yield f"{column}:{how}", {**files, "episodes.npy": saved(changed_table)}
    for name, data in files.items():
        yield f"{name}:missing", {each: files[each] for each in files if each != name}
        for how, crafted in CRAFTED.items():
            yield f"{name}:crafted-{how}", {**files, name: crafted}
        for how, less in damaged(data):
            yield f"{how}-{name}", {**files, name: less}
        if name not in ("metadata.json", "episodes.npy"):
            for how, other in arrays_instead(np.load(io.BytesIO(data))):
                yield f"{name}:{how}", {**files, name: saved(other)}
    yield "unknown", {**files, "unknown.npy": saved(np.zeros(3))}


def chunk(kind, body):
    return file_format.CHUNK_HEAD.pack(len(body), zlib.crc32(body, zlib.crc32(kind)), kind) + body


def chunks_of(record):
    """Return the kinds and bodies of the chunks of a record."""
    found, rest = [], record[len(file_format.MAGIC) :]
    while rest:
        length, _, kind = file_format.CHUNK_HEAD.unpack_from(rest)
        body = rest[file_format.CHUNK_HEAD.size :][:length]
        found.append((kind, body))
        rest = rest[file_format.CHUNK_HEAD.size + length :]
    return found


def records(good):
    """Yield (name, bytes): the record, with each field of each kind of chunk changed."""
    chunks = chunks_of(good)

    def with_chunk(n, body, kind=None):
        whole = [*chunks]
        whole[n] = (kind or whole[n][0], body)
        return file_format.MAGIC + b"".join(chunk(*each) for each in whole)

    for name, copy in changed(json.loads(chunks[0][1])):
        yield f"header:{name}", with_chunk(0, json.dumps(copy).encode())
    yield "header:deep", with_chunk(0, b"[" * 100_000)
    kinds = [kind for kind, _ in chunks]
    for kind in dict.fromkeys(kinds[1:]):
        n = kinds.index(kind)
        text, _, values = chunks[n][1].partition(b"\n")
        for name, copy in changed(json.loads(text)):
            body = json.dumps(copy).encode() + b"\n" + values
            yield f"{kind.decode()}:{name}", with_chunk(n, body)
        for how in ("[" * 100_000, '{"tuple":' * 5000, '{"array":["<U0",[1000000000]]}'):
            yield f"{kind.decode()}:{how[:10]}", with_chunk(n, how.encode() + b"\n")
        yield f"{kind.decode()}:other-kind", with_chunk(n, chunks[n][1], b"?")
        for other in dict.fromkeys(kinds[1:]):
            yield f"{kind.decode()}-as-{other.decode()}", with_chunk(n, chunks[n][1], other)
        less = file_format.MAGIC + b"".join(chunk(*each) for each in chunks[:n] + chunks[n + 1 :])
        yield f"{kind.decode()}:missing", less
        column = plain_codec.encode([None, [np.zeros((2, 0)), np.full(2, "x")]])
        yield f"{kind.decode()}:columns", with_chunk(n, column)
        empty = b'[null,[{"array":["<f8",[1000000000,0]]}]]\n'
        yield f"{kind.decode()}:empty-rows", with_chunk(n, empty)
    yield from damaged(good)


def pickles(good):
    """Yield (name, bytes): pickles of a VecNormalize, with each part changed, and crafted ones."""
    start = b"\x80\x04"
    yield "deep-key", start + b")" + b"\x85" * 500_000 + b"}."
    yield "deep-list", start + b"]" * 10 + b"\x85" * 150_000 + b"."
    yield "memo", start + b"Nr\xff\xff\xff\x7f."
    yield "long-bytes", start + b"\x8e" + b"\xff" * 7 + b"\x00" + b"."
    yield "bytearray", start + b"cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R."
    yield "encode", start + b"c_codecs\nencode\n\x8c\x03abc\x8c\x03hex\x86R."
    yield "int", start + b"\x8b\xff\xff\xff\x7f" + b"\x01" * 999 + b"."
    yield "big-int", pickle.dumps(1 << 8_000_000)
    yield "tuple-key", start + b"})" + b"\x85" * 9_000 + b"Ns."
    yield "longer-tuple-key", start + b"})" + b"\x85" * 190_000 + b"Ns."
    for order in ("<", ">", "|", "x"):
        text = b"cnumpy\ndtype\n\x8c\x02f8\x89\x88\x87R(K\x03\x8c\x01%bNNNJ\xff\xff\xff\xffJ"
        yield f"dtype-{ord(order)}", start + text % order.encode() + b"\xff\xff\xff\xffK\x00tb."
    pointers = b"cnumpy._core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R"
    objects = b"(K\x01K\x04\x85cnumpy\ndtype\n\x8c\x02O8\x89\x88\x87R\x89C\x20%btb."
    yield "pointers", start + pointers + objects % (b"A" * 32)
    state = pickle.loads(good).__getstate__()
    for name, value in state.items():
        for how, wrong in {**WRONG, "bytes": b"x", "big": 1 << 80_000, "set": {1}}.items():
            broken = pickle.loads(good)
            vars(broken)[name] = wrong
            yield f"{name}:{how}", pickle.dumps(broken)
        if hasattr(value, "mean"):
            for part in ("mean", "var", "count"):
                for how, array in [*arrays_instead(np.array(getattr(value, part))), ("null", None)]:
                    broken = pickle.loads(good)
                    setattr(getattr(broken, name), part, array)
                    yield f"{name}.{part}:{how}", pickle.dumps(broken)
    for old, new in (
        (b"f8", b"O8"),
        (b"f8", b"V8"),
        (b"f8", b"U8"),
        (b"f8", b"f4"),
        (b"_reconstruct", b"_recunstruct"),
    ):
        yield f"{old.decode()}-is-{new.decode()!a}", good.replace(old, new)
    yield from damaged(good)


def special_files(folder):
    """Make what is no regular file, and links to it; return the paths."""
    folder.mkdir()
    os.mkfifo(folder / "fifo")
    (folder / "to-fifo").symlink_to("fifo")
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "random").symlink_to("/dev/urandom")
    return [folder / name for name in ("fifo", "to-fifo", "zero", "random")]
