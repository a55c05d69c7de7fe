"""Files that were damaged, deterministic from a number: ``python -m tests.mutations NUMBER`` does one of them again."""

from __future__ import annotations

import copy
import io
import json
import shutil
import sys
import zipfile
from pathlib import Path

import jax
import numpy as np

import profl
from profl.storage import append_log, archive
from profl.storage.checkpoints import Checkpoints

ODD = [None, [], {}, -1, 0, 2**70, 1e999, "", "\x1b[2J\n", [[]], {"a": {}}, True, "x" * 5000, [None, None]]
ABSURD = [(10**15,), (2**62, 8), (0, 10**18), (-1,), (3, 3, 3, 3)]
STATE = {"theta": np.arange(6.0).reshape(2, 3), "n": np.int32(7)}
LIKE = {"rounds": {"y": np.zeros(2)}, "said": (0, 0, "")}


def make(folder: Path) -> None:
    """A folder of checkpoints, and a saved run."""
    with Checkpoints(folder / "kept", {"run": "a"}) as saved:
        rounds, said = [], []
        for number in range(1, 5):
            rounds.append({"y": np.full(2, float(number))})
            said.append((number, 0, f"so it is {number}"))
            saved.save(number, STATE, {"rounds": rounds, "said": said}, {"spells": [[1, 2.5, None]]})
    run = profl.simulate(profl.cases.housing(clients=2), profl.pfl(), rounds=2, samples=20, seeds=[0], progress=False)
    run.save(folder / "run.npz")


def content(folder: Path) -> dict[str, object]:
    """What is read from both, or the error; anything but ``InputError`` gets out."""
    found: dict[str, object] = {}
    try:
        with Checkpoints(folder / "kept", {"run": "a"}) as saved:
            found["kept"] = saved.newest(STATE, LIKE)
    except profl.InputError as error:
        found["kept"] = error
    try:
        found["run"] = vars(profl.load(folder / "run.npz"))
    except profl.InputError as error:
        found["run"] = error
    return found


def same(one: object, other: object) -> bool:
    first, second = (jax.tree.flatten(tree) for tree in (one, other))
    return first[1] == second[1] and all(map(_same_leaf, first[0], second[0]))


def _same_leaf(a: object, b: object) -> bool:
    one, other = np.asarray(a), np.asarray(b)
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))


# -- what may happen to the bytes of a file ----------------------------------------------------------------------------


def flip(rng, data):
    for place in rng.integers(len(data), size=rng.integers(1, 8)):
        data[place] ^= 1 << rng.integers(8)
    return data


def cut(rng, data):
    return data[: rng.integers(len(data))]


def zero(rng, data):
    start = rng.integers(len(data))
    end = min(start + rng.integers(1, 200), len(data))
    data[start:end] = bytes(int(end - start))
    return data


def swap(rng, data):
    size = int(rng.integers(1, max(len(data) // 4, 2)))
    a, b = sorted(rng.integers(max(len(data) - size, 1), size=2).tolist())
    data[a : a + size], data[b : b + size] = data[b : b + size], data[a : a + size]
    return data


def insert(rng, data):
    place = int(rng.integers(len(data)))
    return data[:place] + rng.bytes(int(rng.integers(1, 100))) + data[place:]


def garbage(rng, data):
    return bytearray(rng.bytes(int(rng.integers(0, 3000))))


def header(rng, data):
    """A number in one of the headers of the archive: how it is packed, how long it is, where it lies."""
    marks = [i for i in range(len(data) - 3) if data[i : i + 4] in (b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06")]
    if not marks:
        return flip(rng, data)
    place = int(rng.choice(marks)) + int(rng.integers(4, 46))
    size = int(rng.choice([1, 2, 4]))
    data[place : place + size] = rng.bytes(size) if rng.random() < 0.5 else b"\xff" * size
    return data


BYTES = [flip, cut, zero, swap, insert, garbage, header, header]


# -- and to what it says -----------------------------------------------------------------------------------------------


def opened(path: Path) -> tuple[dict[str, bytes], dict[str, object]]:
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    return members, json.loads(str(np.load(io.BytesIO(members.pop("meta.npy")))))


def closed(path: Path, members: dict[str, bytes], text: str) -> None:
    meta = io.BytesIO()
    np.save(meta, np.array(text))
    with zipfile.ZipFile(path, "w") as file:
        for name, member in {**members, "meta.npy": meta.getvalue()}.items():
            file.writestr(name, member)


def somewhere(rng, tree):
    """A dict or a list within a JSON value, and a key of it."""
    places = []

    def walk(inner):
        for key, value in inner.items() if isinstance(inner, dict) else enumerate(inner):
            places.append((inner, key))
            if isinstance(value, (dict, list)):
                walk(value)

    walk(tree)
    return places[rng.integers(len(places))]


def edit(rng, path, sealed):
    """Another value, or none, somewhere in the text; ``sealed``: with a sha256 that fits again."""
    members, meta = opened(path)
    for _ in range(rng.integers(1, 4)):
        inner, key = somewhere(rng, meta)
        if rng.random() < 0.3:
            del inner[key]
        else:
            inner[key] = copy.deepcopy(ODD[rng.integers(len(ODD))])
    if sealed:
        meta.pop("sha256", None)
        arrays = {name.removesuffix(".npy"): np.load(io.BytesIO(data)) for name, data in members.items()}
        meta["sha256"] = archive.checksum(arrays, meta)
    text = json.dumps(meta)
    if rng.random() < 0.1:
        text = "[" * 100_000 if rng.random() < 0.5 else text.replace("{", '{"a": ' * 2000, 1)
    closed(path, members, text)


def shape(rng, path, sealed):
    """An array of another type and shape, or one that claims to be absurdly large."""
    members, meta = opened(path)
    name = sorted(members)[rng.integers(len(members))]
    data = io.BytesIO()
    if rng.random() < 0.5:
        np.lib.format.write_array_header_1_0(
            data, {"descr": str(rng.choice(["<f8", "|O", "<U4", "|V3"])), "fortran_order": False, "shape": absurd(rng)}
        )
        data.write(b"\0" * 64)
    else:
        np.save(data, [np.zeros((2, 2)), np.arange(3), np.array("x")][rng.integers(3)])
    members[name] = data.getvalue()
    if sealed:
        try:
            meta.pop("sha256")
            arrays = {name.removesuffix(".npy"): np.load(io.BytesIO(data)) for name, data in members.items()}
            meta["sha256"] = archive.checksum(arrays, meta)
        except Exception:
            meta["sha256"] = "none"
    closed(path, members, json.dumps(meta))


def absurd(rng):
    return ABSURD[rng.integers(len(ABSURD))]


def record(rng, path, sealed):
    """A record of the history that is none, with all hashes right."""
    members, meta = opened(path)
    kinds = [["['y']", str(rng.choice(["<f8", "|O", "<U4", "nonsense"])), list(absurd(rng))]]
    head = ODD[rng.integers(len(ODD))] if rng.random() < 0.5 else ["rounds", kinds]
    packed, append_log._pack = append_log._pack, lambda *_: json.dumps(head).encode() + b"\n" + bytes(16)
    try:
        meta["history"] = [*append_log.append(path.parent, meta["run"], append_log.START, {}, [("rounds", {})], 4)]
    finally:
        append_log._pack = packed
    meta.pop("sha256")
    arrays = {name.removesuffix(".npy"): np.load(io.BytesIO(data)) for name, data in members.items()}
    meta["sha256"] = archive.checksum(arrays, meta)
    closed(path, members, json.dumps(meta))


def mutate(number: int, folder: Path) -> tuple[str, bool]:
    """(what was done, whether a file may say something else now) to one of the files in a folder."""
    rng = np.random.default_rng(number)
    path = folder / ["kept/round-00000004.npz", "kept/history-00000000", "run.npz"][number % 3]
    if path.suffix == ".npz" and rng.random() < 0.5:
        sealed = bool(rng.random() < 0.6)
        work = [edit, edit, shape, record if "round" in path.name else shape][rng.integers(4)]
        work(rng, path, sealed)
        return f"{work.__name__} in {path.name}", sealed or work is record
    work = BYTES[rng.integers(len(BYTES))]
    path.write_bytes(bytes(work(rng, bytearray(path.read_bytes()))))
    return f"{work.__name__} in {path.name}", False


def check(number: int, original: Path, folder: Path, expected: dict[str, object]) -> str:
    """Damage a copy and read it; what is wrong with that, or nothing."""
    again = f"python -m tests.mutations {number}"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(original, folder)
    try:
        what, other = mutate(number, folder)
        found = content(folder)
    except Exception as error:
        return f"{again}: {type(error).__name__}: {error!s:.200}"
    for name, value in found.items():
        if isinstance(value, profl.InputError):
            if len(str(value).splitlines()) != 1 or len(str(value)) > 1500 or not str(value).isprintable():
                return f"{again}: {what}: not one line: {value!s:.200}"
        elif not other and not same(value, expected[name]):
            return f"{again}: {what}: read as something else"
    return ""


if __name__ == "__main__":
    place = Path(sys.argv[2] if len(sys.argv) > 2 else "out/mutations")
    shutil.rmtree(place, ignore_errors=True)
    make(place / "original")
    shutil.copytree(place / "original", place / "copy")
    print(mutate(int(sys.argv[1]), place / "copy"))
    print(content(place / "copy"))
