"""An OCI image layout in a directory. The same input gives the same bytes.

    oci-layout            the version of the layout
    index.json            the manifest of the image, with its name
    blobs/sha256/<hex>    layers (tar.gz), the configuration and the manifest

The formats are those of the OCI image specification 1.1.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"

Descriptor = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """One file, link or directory of a layer. A directory without a source is empty."""

    name: str  # the path in the image, without a leading slash
    source: Path | None = None
    mode: int | None = None  # that of the source if left out
    owner: int = 0


@dataclass(frozen=True)
class Layer:
    descriptor: Descriptor
    diff_id: str  # the digest of the tar file before compression


@dataclass(frozen=True)
class Image:
    """An image of a layout: its configuration and its layers."""

    config: dict[str, Any]
    layers: list[Layer]


class _Hashed:
    """A writer that notes the digest and the size of what passes through."""

    def __init__(self, out: IO[bytes]) -> None:
        self.digest = hashlib.sha256()
        self.size = 0
        self._out = out

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.size += len(data)
        return self._out.write(data)

    def flush(self) -> None:
        self._out.flush()


class Layout:
    """A layout that is written. `epoch_s` is the time of every file in it."""

    def __init__(self, path: Path, epoch_s: int) -> None:
        self._path = path
        self._epoch_s = epoch_s
        (path / "blobs" / "sha256").mkdir(parents=True)
        (path / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')

    def add_layer(self, entries: list[Entry]) -> Layer:
        """Write a layer with these entries, in the order of their names."""
        packed_path = self._path / "layer"
        with packed_path.open("wb") as file:
            packed = _Hashed(file)
            with gzip.GzipFile("", "wb", 6, packed, mtime=0) as zipped:
                plain = _Hashed(zipped)
                with tarfile.open(fileobj=plain, mode="w|", format=tarfile.PAX_FORMAT) as tar:
                    for entry in sorted(entries, key=lambda entry: entry.name):
                        self._add_entry(tar, entry)
        descriptor = self._describe(LAYER, packed)
        packed_path.rename(self._blob(descriptor["digest"]))
        return Layer(descriptor, f"sha256:{plain.digest.hexdigest()}")

    def add_base(self, base: Path, image: Image) -> None:
        """Copy the layers of an image of another layout."""
        for layer in image.layers:
            name = layer.descriptor["digest"].partition(":")[2]
            shutil.copyfile(base / "blobs" / "sha256" / name, self._blob(layer.descriptor["digest"]))

    def finish(self, image: Image, name: str, annotations: dict[str, str]) -> str:
        """Write the configuration, the manifest and the index. Return the digest of the manifest."""
        config = image.config | {"rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in image.layers]}}
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self._add_json(CONFIG, config),
            "layers": [layer.descriptor for layer in image.layers],
            "annotations": annotations,
        }
        described = self._add_json(MANIFEST, manifest)
        described["platform"] = {"architecture": config["architecture"], "os": config["os"]}
        described["annotations"] = {"org.opencontainers.image.ref.name": name}
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [described]}
        (self._path / "index.json").write_text(json.dumps(index, indent=1))
        return str(described["digest"])

    def _add_entry(self, tar: tarfile.TarFile, entry: Entry) -> None:
        info = tarfile.TarInfo(entry.name)
        if entry.source is None:
            info.type, info.mode = tarfile.DIRTYPE, 0o755
        else:
            info = tar.gettarinfo(entry.source, entry.name)
            info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
            if info.islnk():  # a second name of a file that the layer has: store the content again
                info.type, info.size = tarfile.REGTYPE, entry.source.stat().st_size
        info.mode = info.mode if entry.mode is None else entry.mode
        info.uid = info.gid = entry.owner
        info.uname = info.gname = ""
        info.mtime = self._epoch_s
        if info.isreg() and entry.source is not None:
            with entry.source.open("rb") as file:
                tar.addfile(info, file)
        else:
            tar.addfile(info)

    def _add_json(self, media_type: str, value: dict[str, Any]) -> Descriptor:
        data = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self._blob(digest).write_bytes(data)
        return {"mediaType": media_type, "digest": digest, "size": len(data)}

    def _describe(self, media_type: str, written: _Hashed) -> Descriptor:
        return {"mediaType": media_type, "digest": f"sha256:{written.digest.hexdigest()}", "size": written.size}

    def _blob(self, digest: str) -> Path:
        return self._path / "blobs" / "sha256" / digest.partition(":")[2]


def read(path: Path, architecture: str) -> Image:
    """Return the image of a layout for this architecture. Raise `ValueError` if it has none, or a blob is damaged."""
    index = json.loads((path / "index.json").read_text())
    manifest = _manifest(path, index, architecture)
    config = _blob_json(path, manifest["config"]["digest"])
    if config["architecture"] != architecture:
        raise ValueError(f"{path} has an image for {config['architecture']}, and not for {architecture}")
    ids = config["rootfs"]["diff_ids"]
    return Image(config, [Layer(row, diff_id) for row, diff_id in zip(manifest["layers"], ids, strict=True)])


def unpack(path: Path, image: Image, target: Path) -> None:
    """Write the files of an image into a directory. Raise `ValueError` if a layer differs from its digest."""
    for layer in image.layers:
        plain = gzip.decompress(_blob(path, layer.descriptor["digest"]))
        if f"sha256:{hashlib.sha256(plain).hexdigest()}" != layer.diff_id:
            raise ValueError(f"a layer of {path} differs from {layer.diff_id}")
        command_input = target / ".layer.tar"
        command_input.write_bytes(plain)
        with tarfile.open(command_input) as tar:
            tar.extractall(target, filter="fully_trusted")
        command_input.unlink()


def _manifest(path: Path, index: dict[str, Any], architecture: str) -> dict[str, Any]:
    """Return the manifest for the architecture, which can be behind an index of several."""
    for row in _rows(path, index):
        found = row.get("platform", {}).get("architecture", architecture)
        if row["mediaType"] == MANIFEST and found == architecture:
            return _blob_json(path, row["digest"])
    raise ValueError(f"{path} has no image for {architecture}")


def _rows(path: Path, index: dict[str, Any]) -> Iterator[Descriptor]:
    for row in index["manifests"]:
        if row["mediaType"] == INDEX:
            yield from _rows(path, _blob_json(path, row["digest"]))
        else:
            yield row


def _blob_json(path: Path, digest: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(_blob(path, digest))
    return value


def _blob(path: Path, digest: str) -> bytes:
    data = (path / "blobs" / "sha256" / digest.partition(":")[2]).read_bytes()
    if f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
        raise ValueError(f"a blob of {path} differs from its digest {digest}")
    return data
