"""What a file that torch has written says of its sizes, compared with what it has."""

from __future__ import annotations

import os
import zipfile
from typing import IO, Any

import torch

from fastnet.backend.torch._internals import Unpickler

__all__ = ["require_claims"]

# what torch goes by to tell its two forms apart
_ARCHIVE = b"PK\x03\x04"
_MAGIC = 0x1950A86A20F9469CFC6C


class _Claimed(ValueError):
    """A size that a file does not have."""


def require_claims(path: str) -> None:
    """Check that a file has all the numbers that it claims, before any of them is read.

    The tensors that it describes are made on the device "meta", where they take no memory. Nothing
    in the file is executed.

    Args:
        path: A file that `torch.save` has written.

    Raises:
        ValueError: If it claims more than it has, or is of neither of torch's two forms.
    """
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        is_archive = file.read(len(_ARCHIVE)) == _ARCHIVE
        file.seek(0)
        (_check_archive if is_archive else _check_older)(file, size)


def _check_archive(file: IO[bytes], size: int) -> None:
    with zipfile.ZipFile(file) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        claimed = sum(entry.file_size for entry in archive.infolist())
        if claimed > size:
            # torch compresses nothing, so that there is nothing to blow up
            raise _too_much(claimed, size)
        described = [name for name in entries if name.endswith("/data.pkl")]
        if len(described) != 1:
            raise ValueError("it is an archive, but not one of torch")
        folder = described[0].removesuffix("data.pkl")

        def check(key: str, claimed: int) -> None:
            entry = entries.get(f"{folder}data/{key}")
            if entry is None or entry.file_size != claimed:
                raise _too_much(claimed, 0 if entry is None else entry.file_size)

        with archive.open(described[0]) as text:
            try:
                _describe(text, check)
            except _Claimed:
                raise
            except Exception:
                # not every kind of tensor can be on "meta"; torch itself checks this form again
                return


def _check_older(file: IO[bytes], size: int) -> None:
    claims: dict[str, int] = {}

    def check(key: str, claimed: int) -> None:
        claims[key] = claimed
        if sum(claims.values()) > size:
            raise _too_much(sum(claims.values()), size)

    if _unpickler(file, check).load() != _MAGIC:
        raise ValueError("it was not written by torch")
    for _ in ("version", "machine"):
        _unpickler(file, check).load()
    _describe(file, check)


def _describe(file: IO[bytes], check: Any) -> None:
    """Make what a file describes, without its numbers."""
    storages: list[tuple[torch.UntypedStorage, int]] = []
    _unpickler(file, check, storages).load()
    for storage, claimed in storages:
        # one that was too small for its tensor has grown
        if storage.nbytes() > claimed:
            raise _too_much(storage.nbytes(), claimed)


def _unpickler(file: IO[bytes], check: Any, storages: list[Any] | None = None) -> Any:
    """Return a reader of pickles that makes storages without memory."""

    def make_storage(saved: Any) -> Any:
        if not isinstance(saved, tuple) or len(saved) < 5 or saved[0] != "storage":
            raise ValueError("it describes something else than tensors")
        kind, key, numel = saved[1], saved[2], saved[4]
        dtype = torch.uint8 if kind is torch.UntypedStorage else kind.dtype
        claimed = numel * torch.empty((), dtype=dtype).element_size()
        check(str(key), claimed)
        storage: Any = torch.UntypedStorage(claimed, device="meta")  # type: ignore[no-untyped-call]
        if storages is not None:
            storages.append((storage, claimed))
        # `_internal` suppresses a warning that is meant for users of the class.
        make: Any = torch.storage.TypedStorage
        return make(wrap_storage=storage, dtype=dtype, _internal=True)

    reader: Any = Unpickler(file)
    reader.persistent_load = make_storage
    return reader


def _too_much(claimed: int, size: int) -> _Claimed:
    return _Claimed(f"it claims {claimed} bytes, but has {size}")
