"""Builds what is published: the source distribution, a wheel without the native kernel, and one with it for each platform.

The wheel without the kernel is built from the source distribution, so a file that is missing there is missed here. The others are
that wheel with one file more, `quintet/kernel/_native.abi3.so`, which serves every Python from 3.11 on (ADR 35). Zig links it, so no
container and no old Linux is needed for a wheel that runs on one: glibc 2.17 or musl 1.2. auditwheel and abi3audit check what was built.

    python deploy/wheels.py                      all of it into dist/, for the processor of this machine
    python deploy/wheels.py --arch aarch64       wheels for another one (`rustup target add` as it says)
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from wheel.wheelfile import WheelFile  # type: ignore[import-not-found,import-untyped,unused-ignore]

ROOT: Final = Path(__file__).parents[1]
KERNEL: Final = "quintet/kernel/_native.abi3.so"
PYTHON_TAG: Final = "cp311-abi3"
WHEEL_BYTES_MAX: Final = 5_000_000


class Platform(NamedTuple):
    """What a kernel is built for: Rust's name of it, Zig's ending for the oldest glibc, the tag of the wheel, and the name that the
    C library has there if it is not the one that the linker wrote."""

    target: str
    glibc: str
    tag: str
    libc: str = ""


def platforms(arch: str) -> tuple[Platform, ...]:
    return (
        Platform(f"{arch}-unknown-linux-gnu", ".2.17", f"manylinux_2_17_{arch}.manylinux2014_{arch}"),
        Platform(f"{arch}-unknown-linux-musl", "", f"musllinux_1_2_{arch}", f"libc.musl-{arch}.so.1"),
    )


def run(*command: str, **environment: str) -> str:
    """Run a program of this environment; its output, or the end of the build with what it said."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"wheels: {' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def build_pure(folder: Path, source: Path = ROOT) -> Path:
    """The source distribution, and the wheel that is built from it."""
    options = ("-q", "--no-build-isolation", "--offline", "--no-create-gitignore")
    run("uv", "build", *options, "-o", str(folder), str(source), QUINTET_PURE="1")
    (wheel,) = folder.glob("*-none-any.whl")
    return wheel


def check_targets(wanted: Iterable[Platform]) -> None:
    """Before minutes are spent on the first of them."""
    installed = Path(run("rustc", "--print", "sysroot").strip()) / "lib" / "rustlib"
    missing = [where.target for where in wanted if not (installed / where.target / "lib").is_dir()]
    if missing:
        names = " ".join(missing)
        sys.exit(f"wheels: Rust has no standard library for {names}: rustup target add {names}")


def build_kernel(where: Platform) -> Path:
    """The kernel for a platform. RUSTFLAGS: a library for musl is loaded by a Python that has musl already."""
    run(
        *("cargo-zigbuild", "zigbuild", "--release", "--features", "abi3"),
        *("--manifest-path", "kernel/Cargo.toml", "--target", f"{where.target}{where.glibc}"),
        RUSTFLAGS="-C target-feature=-crt-static -C strip=symbols",
    )
    target = ROOT / os.environ.get("CARGO_TARGET_DIR", "kernel/target")  # as cargo does
    built = target / where.target / "release" / "lib_native.so"
    if where.libc:
        run("patchelf", "--replace-needed", "libc.so", where.libc, str(built))
    return built


def with_kernel(pure: Path, kernel: Path, tag: str, folder: Path) -> Path:
    """A copy of a wheel that has the kernel, and says so in its name and in its WHEEL."""
    made = folder / pure.name.replace("py3-none-any", f"{PYTHON_TAG}-{tag}")
    with WheelFile(pure) as source, WheelFile(made, "w") as target:
        for item in source.infolist():
            if item.filename.endswith("/RECORD"):
                continue  # written anew
            data = source.read(item)
            target.writestr(
                item, _described(data.decode(), tag.split(".")) if item.filename.endswith("/WHEEL") else data
            )
        target.write(str(kernel), KERNEL)
    return made


def _described(text: str, tags: Iterable[str]) -> bytes:
    lines = text.replace("Root-Is-Purelib: true", "Root-Is-Purelib: false").splitlines()
    kept = [line for line in lines if line and not line.startswith("Tag:")]
    return "\n".join([*kept, *(f"Tag: {PYTHON_TAG}-{tag}" for tag in tags), ""]).encode()


def check(wheel: Path, tag: str) -> None:
    """What the tools of the packaging authority say of a wheel with a kernel. Libraries are looked for in an empty folder, since this
    machine's are of one libc and the wheel may be for the other; those it needs are in the policy of its tag."""
    with tempfile.TemporaryDirectory() as nothing:
        said = " ".join(run("auditwheel", "show", "--ldpaths", nothing, str(wheel)).split())
    if not any(f'following platform tag: "{each}"' in said for each in tag.split(".")):
        sys.exit(f"wheels: auditwheel does not take {wheel.name} for {tag}:\n{said}")
    run("abi3audit", "--strict", "--assume-minimum-abi3", "3.11", str(wheel))


def main() -> None:
    options = argparse.ArgumentParser(description="Build the source distribution and the wheels.")
    options.add_argument("--arch", action="append", help="processor, as Rust calls it: x86_64, aarch64")
    options.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the files [dist]")
    options.add_argument("--pure", action="store_true", help="only what needs no Rust")
    chosen = options.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    wanted = [each for arch in chosen.arch or [platform.machine()] for each in platforms(arch)]
    if chosen.pure:
        wanted = []
    else:
        check_targets(wanted)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pure = build_pure(folder)
        for where in wanted:
            check(with_kernel(pure, build_kernel(where), where.tag, folder), where.tag)
        for file in sorted(folder.iterdir()):
            size = file.stat().st_size
            if size > WHEEL_BYTES_MAX:
                sys.exit(f"wheels: {file.name} has {size:,} bytes; the limit is {WHEEL_BYTES_MAX:,}")
            shutil.copy(file, chosen.out)
            sys.stdout.write(f"{size:>10,}  {file.name}\n")


if __name__ == "__main__":
    main()
