"""Builds the wheel out of the archive of `make package`: a backend of PEP 517 without dependencies.

    pip wheel ./python                                # build/package/tailrace-VERSION-ARCH.tar.gz
    python3 python/wheel_backend.py                   # the same without pip, into build/package
    python3 python/wheel_backend.py ARCHIVE.tar.gz FOLDER

The wheel holds the module and, in tailrace/dist, what the archive holds: the binary, its libraries
(found by $ORIGIN), the configs and the licences. TAILRACE_ARCHIVE names another archive. The tag of
the wheel is what the files need: the machine of the binary, and the newest version of glibc that
any of them names.
"""
import base64
import hashlib
import os
import pathlib
import re
import sys
import tarfile
import tomllib
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
MACHINES = {62: "x86_64", 183: "aarch64"}  # e_machine of an ELF header
# Of all files, so that one archive gives one wheel, byte for byte.
TIME = (2026, 1, 1, 0, 0, 0)


def find_archive():
    named = os.environ.get("TAILRACE_ARCHIVE")
    if named:
        return pathlib.Path(named)
    folder = HERE.parent / "build" / "package"
    found = sorted(folder.glob("tailrace-*.tar.gz"), key=lambda path: path.stat().st_mtime)
    if not found:
        sys.exit(f"error: there is no {folder}/tailrace-VERSION-ARCH.tar.gz. Run `make package`, "
                 "or name an archive in TAILRACE_ARCHIVE.")
    return found[-1]


def read_archive(path):
    """The files as {name below the top folder: (bytes, may be executed)}. A link is its file."""
    files = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive.getmembers():
                name = member.name.removeprefix("./").partition("/")[2]
                if not name or member.isdir():
                    continue
                if not (member.isfile() or member.issym()) or ".." in name.split("/"):
                    sys.exit(f"error: {path} has {member.name}, which is no file")
                content = archive.extractfile(member)
                files[name] = (content.read(), bool(member.mode & 0o100), member.issym())
    except (OSError, KeyError, tarfile.TarError) as error:
        sys.exit(f"error: {path} cannot be read: {error}")
    if "bin/tailrace" not in files:
        sys.exit(f"error: {path} has no bin/tailrace; it has to be an archive of `make package`")
    return {name: (content, runs) for name, (content, runs, _) in keep_sonames(files).items()}


def keep_sonames(files):
    """Drops the names of a library that no loader looks for, because a wheel has no links."""
    needed = set()
    for name, (content, _, _) in files.items():
        if is_elf(content):
            needed.update(re.findall(rb"[\w+.-]+\.so[\w.-]*", content))
    return {name: file for name, file in files.items()
            if not name.startswith("lib/") or name.rpartition("/")[2].encode() in needed}


def is_elf(content):
    return content[:4] == b"\x7fELF"


def platform_tag(files):
    machine = MACHINES.get(int.from_bytes(files["bin/tailrace"][0][18:20], "little"))
    if machine is None:
        sys.exit("error: bin/tailrace is for a machine that no tag of a wheel is known for")
    versions = {tuple(map(int, version))
                for content, _ in files.values() if is_elf(content)
                for version in re.findall(rb"\0GLIBC_(\d+)\.(\d+)(?:\.\d+)?(?=\0)", content)}
    major, minor = max(versions)
    return f"manylinux_{major}_{minor}_{machine}"


def read_project():
    with open(HERE / "pyproject.toml", "rb") as file:
        return tomllib.load(file)["project"]


def version_of(archive):
    found = re.fullmatch(r"tailrace-(\d+(?:\.\d+)+)-\w+\.tar\.gz", archive.name)
    if not found:
        sys.exit(f"error: {archive.name} is not called tailrace-VERSION-ARCH.tar.gz")
    return found[1]


def make_wheel(archive, folder):
    """Writes the wheel into `folder`; its name."""
    archive, folder = pathlib.Path(archive), pathlib.Path(folder)
    project, version, files = read_project(), version_of(archive), read_archive(archive)
    tag = f"py3-none-{platform_tag(files)}"
    info = f"tailrace-{version}.dist-info"
    entries = {f"tailrace/dist/{name}": file for name, file in files.items()}
    for source in sorted((HERE / "tailrace").glob("*.py")):
        entries[f"tailrace/{source.name}"] = (source.read_bytes(), False)
    for name in ("LICENSE", "NOTICE"):
        entries[f"{info}/licenses/{name}"] = (files[f"share/doc/tailrace/{name}"][0], False)
    scripts = "".join(f"{name} = {place}\n" for name, place in project["scripts"].items())
    texts = {
        "METADATA": f"Metadata-Version: 2.1\nName: tailrace\nVersion: {version}\n"
                    f"Summary: {project['description']}\nLicense: {project['license']['text']}\n"
                    f"Requires-Python: {project['requires-python']}\n",
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: tailrace\nRoot-Is-Purelib: false\nTag: {tag}\n",
        "entry_points.txt": f"[console_scripts]\n{scripts}",
    }
    entries.update({f"{info}/{name}": (text.encode(), False) for name, text in texts.items()})
    record = "".join(f"{name},sha256={digest(content)},{len(content)}\n"
                     for name, (content, _) in entries.items())
    entries[f"{info}/RECORD"] = (f"{record}{info}/RECORD,,\n".encode(), False)

    folder.mkdir(parents=True, exist_ok=True)
    name = f"tailrace-{version}-{tag}.whl"
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, (content, runs) in entries.items():
            entry = zipfile.ZipInfo(path, TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if runs else 0o100644) << 16
            wheel.writestr(entry, content)
    return name


def digest(content):
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


# The calls of PEP 517.
def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return make_wheel(find_archive(), wheel_directory)


def build_sdist(sdist_directory, config_settings=None):
    sys.exit("error: there is no source distribution; the wheel comes from `make wheel`")


if __name__ == "__main__":
    if len(sys.argv) not in (1, 3):
        sys.exit("use: wheel_backend.py [ARCHIVE.tar.gz FOLDER]")
    chosen, target = sys.argv[1:] or (find_archive(), HERE.parent / "build" / "package")
    print(pathlib.Path(target) / make_wheel(chosen, target))
