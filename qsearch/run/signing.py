"""Signatures of .qmod files: Ed25519 over the hashes of all members, by ``cryptography``.

A signature shows whether a file is, byte for byte, what the owner of a key signed: members have one
archive (``compiler.runtime.archive``), and no other is read. It says nothing about the module:
``qsearch verify`` proves that. The member ``signature.json`` holds the signature and the public key
it was made with, which only helps to name the key: trust comes from ``--key``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from compiler.errors import ArtifactError, raised_as
from compiler.runtime.archive import (
    json_bytes,
    read_archive,
    read_json,
    write_archive,
)
from compiler.runtime.files import replaced
from qsearch.errors import SettingsError, system_errors
from qsearch.run.run_folder import PathLike

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

SIGNATURE: Final = "signature.json"
_DOMAIN: Final = b"qsearch .qmod signature 1\n"
_ALGORITHM: Final = "ed25519"
_MAX_KEY_BYTES: Final = 10_000
_OTHER_KEY: Final = {
    "private": (
        b"PUBLIC KEY",
        "this is the public key",
        "give --sign the private key that `qsearch keygen` wrote, without a password",
    ),
    "public": (
        b"PRIVATE KEY",
        "this is a private key",
        "give --key the .pub file that `qsearch keygen` wrote",
    ),
}
"""Kind of key -> what marks the other kind, and what is said of a file that holds it."""

SignatureState = Literal["unsigned", "not checked", "valid", "other key", "invalid"]


@dataclass(frozen=True, slots=True)
class Signature:
    """Standing of the signature of a file.

    Attributes:
        state: "not checked" for a file that is signed where no key was given; "other key" for a
            signature of a key that is not the given one; "invalid" where the file was changed.
        key: fingerprint of the key that the file names; None where it is not signed.
        asked: whether a key was given, so that anything but "valid" speaks against the file.
    """

    state: SignatureState
    key: str | None = None
    asked: bool = False

    @property
    def holds(self) -> bool:
        """False when a key was given and the file is not signed by it."""
        return self.state == "valid" or not self.asked


UNSIGNED: Final = Signature("unsigned")


def keygen(path: PathLike = "qsearch.key") -> tuple[Path, str]:
    """Write a pair of Ed25519 keys: the private one to ``path``, the public one to ``path``.pub.

    Returns:
        The path of the public key, and its fingerprint.
    Raises:
        SettingsError: a file is there already or cannot be written, or cryptography is missing.
    """
    serialization, ed25519 = _cryptography()
    private = Path(path)
    public = private.with_name(f"{private.name}.pub")
    key = ed25519.Ed25519PrivateKey.generate()
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    shown = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    for target in (private, public):
        if target.exists():
            raise SettingsError(
                f"{target} is there already, and is not replaced", fix="choose another name with -o"
            )
    for target, data, mode in ((private, secret, 0o600), (public, shown, 0o644)):
        what = f"{target} cannot be written"
        with (
            system_errors(SettingsError, what, fix="choose another name with -o"),
            replaced(target, mode) as file,
        ):
            file.write(data)
    return public, fingerprint(key.public_key())


def fingerprint(key: Ed25519PublicKey) -> str:
    """First 32 hex digits of the SHA-256 of a public key."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:32]


def private_key(path: Path) -> Ed25519PrivateKey:
    """The private key that ``qsearch keygen`` wrote.

    Raises:
        SettingsError: no such file, or it holds no private Ed25519 key.
    """
    found: Ed25519PrivateKey = _read_key(path, "private")
    return found


def public_key(path: Path) -> Ed25519PublicKey:
    """The public key that ``qsearch keygen`` wrote.

    Raises:
        SettingsError: no such file, or it holds no public Ed25519 key.
    """
    found: Ed25519PublicKey = _read_key(path, "public")
    return found


def _read_key(path: Path, kind: Literal["private", "public"]) -> Any:
    serialization, ed25519 = _cryptography()
    fix = "check the path; `qsearch keygen` makes a pair of keys"
    with (
        system_errors(SettingsError, f"the key {path} cannot be read", fix=fix),
        path.open("rb") as file,
    ):
        data = file.read(_MAX_KEY_BYTES)
    try:
        if kind == "private":
            key = serialization.load_pem_private_key(data, password=None)
        else:
            key = serialization.load_pem_public_key(data)
    except Exception as error:  # cryptography raises its own, ValueError and TypeError
        other, hint, fix = _OTHER_KEY[kind]
        raise SettingsError(
            f"{path} holds no {kind} key that can be read: {hint if other in data else error}",
            fix=fix,
        ) from error
    if not isinstance(key, getattr(ed25519, f"Ed25519{kind.title()}Key")):
        raise SettingsError(f"{path} is no Ed25519 key", fix="make one with `qsearch keygen`")
    return key


def sign_file(path: Path, key: Ed25519PrivateKey) -> str:
    """Sign a .qmod in place, in the stead of a signature it has.

    Returns:
        The fingerprint of the key.
    Raises:
        ArtifactError: the file is damaged, or cannot be written.
    """
    members = read_archive(path)
    members.pop(SIGNATURE, None)
    made = _signature_bytes(key.public_key().public_bytes_raw(), key.sign(_message(members)))
    write_archive(path, {**members, SIGNATURE: made})
    return fingerprint(key.public_key())


def check_signature(members: Mapping[str, bytes], trusted: Ed25519PublicKey | None) -> Signature:
    """Check the signature among the members.

    Args:
        members: of an archive whose hashes hold.
        trusted: the public key that the reader trusts; None checks nothing.
    """
    asked = trusted is not None
    raw = members.get(SIGNATURE)
    if raw is None:
        return Signature("unsigned", None, asked)
    try:
        content = read_json(raw, SIGNATURE)
        named = bytes.fromhex(str(content.get("public_key")))
        signature = bytes.fromhex(str(content.get("signature")))
    except (ArtifactError, ValueError):
        return Signature("invalid", None, asked)
    if raw != _signature_bytes(named, signature):  # no signature covers its own member
        return Signature("invalid", None, asked)
    shown = hashlib.sha256(named).hexdigest()[:32]
    if trusted is None:
        return Signature("not checked", shown)
    if named != trusted.public_bytes_raw():
        return Signature("other key", shown, True)
    from cryptography.exceptions import InvalidSignature

    rest = {name: data for name, data in members.items() if name != SIGNATURE}
    try:
        trusted.verify(signature, _message(rest))
    except InvalidSignature:
        return Signature("invalid", shown, True)
    return Signature("valid", shown, True)


def _message(members: Mapping[str, bytes]) -> bytes:
    """Return the signed message: name and SHA-256 of every member but the signature."""
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in members.items()}
    return _DOMAIN + json_bytes(digests)


def _signature_bytes(public: bytes, signature: bytes) -> bytes:
    """The member ``signature.json``."""
    names = {"algorithm": _ALGORITHM, "public_key": public.hex(), "signature": signature.hex()}
    return json_bytes(names)


def _cryptography() -> tuple[Any, Any]:
    what = "signatures need the package cryptography"
    fix = "pip install 'qsearch[sign]'"
    with raised_as(SettingsError, what, ImportError, fix=fix):
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    return serialization, ed25519
