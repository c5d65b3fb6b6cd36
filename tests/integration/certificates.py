"""Certificates for tests: a CA, and what it signs, by the openssl command."""

import os
import pathlib
import subprocess


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


class Authority:
    """A CA with its files in a folder of its own."""

    def __init__(self, folder: pathlib.Path, name: str = "ca"):
        self.folder = folder
        self.key, self.certificate = folder / f"{name}.key", folder / f"{name}.pem"
        _openssl(
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", f"/CN={name}",
            "-keyout", str(self.key), "-out", str(self.certificate),
        )  # fmt: skip

    def sign(self, name: str, days: int = 30) -> "tuple[pathlib.Path, pathlib.Path]":
        """Certificate and key for localhost and 127.0.0.1; negative days: expired."""
        key, request = self.folder / f"{name}.key", self.folder / f"{name}.csr"
        certificate, extra = self.folder / f"{name}.pem", self.folder / f"{name}.ext"
        extra.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        _openssl(
            "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost",
            "-keyout", str(key), "-out", str(request),
        )  # fmt: skip
        _openssl(
            "x509", "-req", "-in", str(request), "-CA", str(self.certificate), "-CAkey",
            str(self.key), "-CAcreateserial", "-days", str(days), "-extfile", str(extra),
            "-out", str(certificate),
        )  # fmt: skip
        return certificate, key


class Secret:
    """A folder as Kubernetes mounts one: names that lead through a symlink which is swapped."""

    def __init__(self, folder: pathlib.Path):
        self.folder, self._version = folder, 0
        folder.mkdir()

    def put(self, **files: pathlib.Path) -> None:
        self._version += 1
        data = self.folder / f"v{self._version}"
        data.mkdir()
        for name, source in files.items():
            (data / name).write_bytes(source.read_bytes())
            link = self.folder / name
            if not link.is_symlink():
                link.symlink_to(pathlib.Path("data") / name)
        fresh = self.folder / "fresh"
        fresh.symlink_to(data.name)
        os.replace(fresh, self.folder / "data")
