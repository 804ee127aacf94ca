"""Pretrained models: where their files are, of which kind they are, and whether they are the same as before.

A model is named by a local folder, or by its name on the Hugging Face Hub: "owner/model", or "owner/model/subfolder".
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from chordcache.digests import digest_file, hex64
from chordcache.errors import UsageError, printable

_MAX_CONFIG_BYTES = 1 << 20


def location(model: str) -> dict[str, str]:
    """Return the arguments of ``from_pretrained`` that say where a model is.

    Examples
    --------
    >>> location("/models/vae")
    {'pretrained_model_name_or_path': '/models/vae'}
    >>> location("Wan-AI/Wan2.1-T2V-1.3B-Diffusers/vae")
    {'pretrained_model_name_or_path': 'Wan-AI/Wan2.1-T2V-1.3B-Diffusers', 'subfolder': 'vae'}
    """
    if is_folder(model):
        return {"pretrained_model_name_or_path": os.path.expanduser(model)}
    owner, name, *folders = (*model.split("/"), "")
    subfolder = "/".join(filter(None, folders))
    place = {"pretrained_model_name_or_path": f"{owner}/{name}" if name else owner}
    return {**place, "subfolder": subfolder} if subfolder else place


def is_folder(model: str) -> bool:
    """Return whether a model is named by a folder, even if it does not exist."""
    return os.path.isdir(model) or model.startswith(("/", "./", "../", "~"))


def config_of(key: str, model: str, file: str = "config.json", *, optional: bool = False) -> dict[str, Any]:
    """Return the content of a JSON file of a model, a folder or a name. For a name on the Hub, it may be downloaded.

    ``key`` is the key in the config of the build, for messages. If the file is absent and ``optional``, return an empty
    dict. Raise ``UsageError`` if it is absent otherwise, or holds something else.
    """
    got = f"{key}: got '{printable(model)}'"
    if not model:
        raise UsageError(f"{key}: got no model, expected the folder of a model or its name on the Hugging Face Hub")
    try:
        path = Path(model).expanduser() / file if is_folder(model) else _from_hub(model, file)
        with open(path, "rb") as opened:
            settings = json.loads(opened.read(_MAX_CONFIG_BYTES))
    except (OSError, ValueError) as error:
        if optional and isinstance(error, FileNotFoundError):
            return {}
        where = f"a folder with the {file} of a model" if is_folder(model) else "a folder, or a name on the Hub"
        raise UsageError(f"{got}, expected {where} ({type(error).__name__}). Check the path or the name.") from None
    if not isinstance(settings, dict):
        raise UsageError(f"{got}, expected a folder whose {file} holds the settings of a model")
    return settings


def kind_of_model(key: str, model: str, field: str, kinds: Collection[str]) -> str:
    """Return the kind that a ``field`` of a model's config.json states: "model_type" or "_class_name".

    Raise ``UsageError`` if config.json is missing, or states none of ``kinds``.
    """
    kind = config_of(key, model).get(field)
    if kind not in kinds:
        raise UsageError(
            f"{key}: got '{printable(model)}' of type '{printable(str(kind))}', expected one of: "
            f"{', '.join(sorted(kinds))}"
        )
    return str(kind)


def problem_of_model(key: str, arguments: Mapping[str, Any], field: str, kinds: Collection[str]) -> str | None:
    """Return the reason why the argument "model" cannot be used, or None. See ``kind_of_model``."""
    try:
        kind_of_model(key, arguments["model"], field, kinds)
    except UsageError as error:
        return str(error)
    return None


def load_network(name: str, model: str) -> Any:
    """Return a network, a class of transformers, with the weights of a model, in float32 on the CPU.

    Raise ``UsageError`` if the model does not have all weights of the class. Others are not loaded.
    """
    import torch  # takes seconds, and few builds need it
    import transformers

    return _loaded(transformers, name, model, dtype=torch.float32)


def load_vae(name: str, model: str) -> Any:
    """Return a VAE, a class of diffusers, with the weights of a model, as ``load_network``."""
    import diffusers  # takes seconds, and few builds need it
    import torch

    # low_cpu_mem_usage needs another package
    return _loaded(diffusers, name, model, torch_dtype=torch.float32, low_cpu_mem_usage=False)


def _loaded(library: Any, name: str, model: str, **options: Any) -> Any:
    """Load a network in silence. Raise ``UsageError`` if ``from_pretrained`` filled weights with random numbers."""
    library.utils.logging.disable_progress_bar()
    library.utils.logging.set_verbosity_error()
    network, info = getattr(library, name).from_pretrained(
        **location(model), **options, output_loading_info=True, ignore_mismatched_sizes=True
    )
    random = sorted({*info["missing_keys"], *(weight for weight, *_ in info["mismatched_keys"])})
    if random:
        raise UsageError(
            f"model: got '{printable(model)}', where {len(random)} of the weights of {name} are absent or of another "
            f"shape, such as {printable(random[0])}. Take a model that has all of them."
        )
    return network.eval()


def hash_of_files(*models: str) -> str:
    """Return a hash of the files of local folders, or "" for names on the Hub, which stand for their files."""
    folders = [Path(model).expanduser() for model in models if is_folder(model)]
    digests = [list(_digests(folder)) for folder in folders if folder.is_dir()]
    return hex64(json.dumps(digests).encode()) if digests else ""


def check_files(files: str, *models: str) -> None:
    """Raise ``UsageError`` if a machine has other files than that on which the build was planned.

    ``files`` is what ``hash_of_files`` returned there.
    """
    if hash_of_files(*models) != files:
        names = " or ".join(f"'{printable(model)}'" for model in models)
        raise UsageError(f"model: got other files in {names} than where the build was started, expected the same ones")


def _digests(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.name.startswith(".") and path.suffix != ".md":
            facts = path.stat()
            yield path.name, _digest(str(path), facts.st_size, facts.st_mtime_ns, facts.st_ino)


@lru_cache(maxsize=1000)
def _digest(path: str, *_: int) -> str:
    """Return the digest of a file. It is read once, and again if its size, time or inode changed."""
    return digest_file(path)


def _from_hub(model: str, file: str) -> str:
    from huggingface_hub import hf_hub_download  # comes with diffusers and transformers
    from huggingface_hub.errors import EntryNotFoundError

    place = location(model)
    try:
        path: str = hf_hub_download(place["pretrained_model_name_or_path"], file, subfolder=place.get("subfolder"))
    except EntryNotFoundError as error:
        if isinstance(error, FileNotFoundError):  # it is absent from the disk, and the Hub was not reached
            raise
        raise FileNotFoundError(str(error)) from error
    return path
