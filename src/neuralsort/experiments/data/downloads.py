"""Files of data sets: where they come from, and whether they are what they should be."""

import hashlib
import os
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


class DataError(Exception):
    """Data that is missing or not what it should be; the message says what to do."""


@dataclass(frozen=True)
class Download:
    """The files of a data set.

    Attributes:
        digests: SHA-256 of every file by name.
        mirrors: Addresses of folders with the files, or with the archive.
        archive: Name and SHA-256 of an archive that holds them, if they come in one.
        folder: Of the files, below the folder of the data set or in place of it.
    """

    digests: Mapping[str, str]
    mirrors: tuple[str, ...]
    archive: tuple[str, str] | None = None
    folder: str = ""


DOWNLOADS = {
    "mnist": Download(
        {
            "train-images-idx3-ubyte.gz": (
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
            ),
            "train-labels-idx1-ubyte.gz": (
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
            ),
            "t10k-images-idx3-ubyte.gz": (
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
            ),
            "t10k-labels-idx1-ubyte.gz": (
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
            ),
        },
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
    ),
    "fashion-mnist": Download(
        {
            "train-images-idx3-ubyte.gz": (
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"
            ),
            "train-labels-idx1-ubyte.gz": (
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"
            ),
            "t10k-images-idx3-ubyte.gz": (
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"
            ),
            "t10k-labels-idx1-ubyte.gz": (
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"
            ),
        },
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        ),
    ),
    "cifar10": Download(
        {
            "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        },
        ("https://www.cs.toronto.edu/~kriz/",),
        (
            "cifar-10-binary.tar.gz",
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
        "cifar-10-batches-bin",
    ),
}


def data_directories(data_dir: Path | None) -> list[Path]:
    """Where files are looked for before anything is downloaded: the option, then the variable."""
    named = [data_dir, os.environ.get("NEURALSORT_DATA")]
    return [Path(one).expanduser() for one in named if one]


def find(name: str, data_dir: Path | None = None, *, download: bool = True) -> dict[str, Path]:
    """The files of a data set, checked; downloaded into the user's cache where none are given.

    Args:
        name: One of `DOWNLOADS`.
        data_dir: A folder that holds one of the data set's name, or the files themselves.
        download: Whether to fetch what is not there.

    Raises:
        DataError: If a file is corrupt, or missing and not to be had.
    """
    found = {}
    inside = DOWNLOADS[name].folder
    for file, digest in DOWNLOADS[name].digests.items():
        parts = dict.fromkeys((f"{name}/{inside}", name, inside, ""))
        places = [folder / part / file for folder in data_directories(data_dir) for part in parts]
        path = next((place for place in places if place.is_file()), None)
        if path is None:
            path = (_download if download else _cached)(name, file, places)
        found[file] = _checked(path, digest)
    return found


def _checked(path: Path, digest: str) -> Path:
    came = hashlib.sha256(path.read_bytes()).hexdigest()
    if came != digest:
        raise DataError(
            f"{path} is not the file it should be: SHA-256 {came[:12]}..., expected "
            f"{digest[:12]}... It is corrupt or something else; delete it and run "
            "`neuralsort data fetch`, or point --data-dir to a good copy."
        )
    return path


def _missing(name: str, file: str, places: list[Path], why: str) -> DataError:
    folders = dict.fromkeys(str(place.parent) for place in places)
    looked = ", ".join(folders) or "no folder (none was named)"
    files = ", ".join(DOWNLOADS[name].digests)
    return DataError(
        f"{file} is missing: looked in {looked}; {why} Put {files} into a folder `{name}` and "
        "name its parent with --data-dir or NEURALSORT_DATA; `--data digits` needs no download."
    )


def _cache(name: str) -> Path:
    import pooch

    return Path(pooch.os_cache("neuralsort")) / name


def _cached(name: str, file: str, places: list[Path]) -> Path:
    path = _cache(name) / DOWNLOADS[name].folder / file
    if not path.is_file():
        raise _missing(name, file, [*places, path], "it was not downloaded before.")
    return path


def _download(name: str, file: str, places: list[Path]) -> Path:
    import pooch

    entry, folder = DOWNLOADS[name], _cache(name)
    unpacked = folder / entry.folder / file
    if entry.archive is not None and unpacked.is_file():
        return unpacked
    wanted, digest = entry.archive or (file, entry.digests[file])
    failures = []
    for mirror in entry.mirrors:
        try:
            path = Path(
                pooch.retrieve(mirror + wanted, f"sha256:{digest}", fname=wanted, path=folder)
            )
        except Exception as error:  # whatever a mirror does, the next may be better
            failures.append(f"{mirror}: {error}")
            continue
        if entry.archive is None:
            return path
        with tarfile.open(path) as archive:
            archive.extractall(folder, filter="data")
        return unpacked
    raise _missing(name, file, places, f"the download failed ({'; '.join(failures)}).")
