"""The habits that people expect of a command line: suggestions, groups, versions, variables."""

from __future__ import annotations

import importlib.metadata
import json
import re

import click
import pytest
from click.testing import CliRunner
from helpers.spellings import work_beside

import chordcache
from chordcache.arguments import did_you_mean
from chordcache.cli import COMMANDS, cli
from chordcache.cli.commands import GroupedCommand, heading_of

NAMES = [name for commands in COMMANDS.values() for name in commands]
CONTEXT = click.Context(cli, info_name="chordcache", **cli.context_settings)
GROUPED = [name for name in NAMES if isinstance(cli.get_command(CONTEXT, name), GroupedCommand)]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Function that runs a command in an empty folder, in this process."""
    monkeypatch.chdir(tmp_path)
    return lambda *args, **env: CliRunner().invoke(cli, args, prog_name="chordcache", env=env)


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["help", "biuld"], 2, "chordcache help: error: got 'biuld', expected a command. Did you mean 'build'?\n"),
        (["\x1b[31m"], 2, "chordcache: error: got '\\x1b[31m', expected a command: scan, index"),
        (["build", "--teir", "npz"], 2, "build: error: got '--teir', expected an option. Did you mean '--tier'?\n"),
        (["--teir"], 2, "chordcache: error: got '--teir', expected an option. See 'chordcache --help'.\n"),
        (["build", "--jobs"], 2, "build: error: --jobs: got nothing, expected a value\n"),
        (["build", "--json=1"], 2, "build: error: --json: got a value, expected none\n"),
        (["merge", "a"], 2, "merge: error: --output: got nothing, expected CACHE. See 'chordcache merge --help'.\n"),
        (["verify", "a", "b"], 2, "got unexpected extra argument (b). See 'chordcache verify --help'.\n"),
        (["scan", ".", "--level", "HEADER"], 2, "Did you mean 'headers'?"),
        (["completion", "fsh"], 2, "Did you mean 'fish'?"),
        (["doctor", "-c", "quite-another"], 10, ", multimodal, smallest\n"),
    ],
)  # fmt: skip
def test_mistyped_words(run, args, code, message):
    result = run(*args)
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr


@pytest.mark.parametrize(
    ("args", "command", "code", "message"),
    [
        (["ls", "nowhere", "--json"], "ls", 10, "no cache at "),
        (["scan", "--json", ".", "--level", "x"], "scan", 2, "--level: got 'x', expected one of headers, "),
        (["biuld", "--json"], None, 2, "got 'biuld', expected a command"),
    ],
)
def test_errors_are_json_where_the_result_is(run, args, command, code, message):
    result = run(*args)
    assert (result.exit_code, result.stdout) == (code, "")
    data = json.loads(result.stderr)
    assert data["error"].startswith(message)
    assert data == {**data, "command": command, "version": chordcache.__version__, "exit_code": code}


@pytest.fixture(scope="module")
def index(tmp_path_factory, make_video, run_cli):
    folder = tmp_path_factory.mktemp("habits")
    make_video(folder / "videos" / "a.mp4")
    assert run_cli("scan", "videos", cwd=folder).returncode == 0
    return folder / "index.json"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--tier", "lmbd"], "--tier: got 'lmbd', expected one of lmdb, npz, hdf5. Did you mean 'lmdb'?\n"),
        (["-c", "multi"], "--config: got 'multi', expected a YAML file or a preset: "),
        (["-c", "wrong.yaml"], "frames.qualty: got an unknown key, expected one of short_side, fps"),
        (["-c", "wrong.yaml"], ". Did you mean 'quality'?\n"),
    ],
)
def test_mistyped_settings_of_a_build(run, tmp_path, index, args, message):
    (tmp_path / "wrong.yaml").write_text("frames: {qualty: 80}")
    result = run("build", str(index), *args)
    assert result.exit_code in (2, 10)
    assert message in result.stderr


def test_odd_words_are_compared():
    for text in ("", "\0", "x" * 100_000, "\udcff"):
        assert did_you_mean(text, ["build"]) == ""
    assert did_you_mean("LMDB", ["lmdb"]) == ". Did you mean 'lmdb'?"


@pytest.mark.parametrize("name", ["scan", "build"])
def test_help_of_a_command(run, name):
    result = run("help", name)
    assert result.exit_code == 0
    assert result.stdout == run(name, "--help").stdout
    assert f"Usage: chordcache {name}" in result.stdout


@pytest.mark.parametrize("name", [[], *([name] for name in NAMES)], ids=" ".join)
def test_help_fits_100_columns(name):
    result = CliRunner().invoke(cli, [*name, "--help"], prog_name="chordcache", terminal_width=100)
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert " ".join(["Example:\n    chordcache", *name]) in result.stdout


def test_the_list_of_commands_has_their_first_sentences():
    for commands in COMMANDS.values():
        for name, summary in commands.items():
            assert cli.get_command(CONTEXT, name).get_short_help_str(200) == summary


@pytest.mark.parametrize("args", [["-V"], ["--version"]])
def test_version(run, args):
    assert run(*args).stdout == f"chordcache, version {importlib.metadata.version('chordcache')}\n"


def test_a_broken_library_does_not_end_the_versions_of_doctor(run_process, tmp_path):
    (tmp_path / "av.py").write_text("raise SystemError('libavcodec.so.62: cannot open\\nshared object file')")
    result = run_process("doctor", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    message = "FFmpeg cannot be loaded: SystemError: libavcodec.so.62: cannot open shared object file"
    assert message in result.stdout


@pytest.mark.parametrize("name", GROUPED)
def test_every_option_belongs_to_a_group(name, run):
    command = cli.get_command(CONTEXT, name)
    options = [param for param in command.params if isinstance(param, click.Option)]
    assert [option.name for option in options if heading_of(name, option.name) is None] == []
    text = run(name, "--help").stdout
    sections = text.partition("Example:")[2]
    for option in options:
        assert len(re.findall(rf"  {re.escape(', '.join(option.opts))}(?!\w)", sections)) == 1
    assert "--help" in sections.partition("\nOutput:")[2]


@pytest.mark.parametrize("name", NAMES)
def test_defaults_and_variables_are_not_written_by_hand(name):
    options = [param for param in cli.get_command(CONTEXT, name).params if isinstance(param, click.Option)]
    assert [option.name for option in options if re.search(r"\[|default|CHORDCACHE_", option.help)] == []


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("spelling", ["../cache", "link"])
def test_commands_take_a_cache_of_any_spelling(run, tmp_path, monkeypatch, index, spelling):
    work, cache = work_beside(tmp_path, monkeypatch), spelling.format(tmp_path)
    other = cache.rstrip("/") + "-2"
    (work / "link-2").symlink_to("../cache-2")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache-2").mkdir()
    commands = [
        *(["build", str(index), "-o", cache], ["build", str(index), "-o", other]),
        *(["build", str(index), "-o", cache, "--dry-run", "--sample", "1"], ["verify", cache, "--deep", "--source"]),
        *(["info", cache], ["info", cache, "a"], ["ls", cache], ["show", cache, "a", "-o", "a.png"]),
        *(["export", cache, "-o", "out", "--format", "folder"], ["report", cache]),
        *(["merge", cache, other, "-o", "../merged"], ["pack", cache, "-o", "../p"], ["unpack", "../p", "-o", "../u"]),
        ["gc", cache],
        *(["verify", cache, "--repair"], ["doctor", str(work)]),
    ]  # fmt: skip
    for command in commands:
        result = run(*command)
        assert (result.exit_code, command) == (0, command), result.stderr
    variable = run("ls", CHORDCACHE_CACHE=cache)
    assert variable.exit_code == 0, variable.stderr
    assert len(variable.stdout.splitlines()) == 2
    monkeypatch.chdir(tmp_path)
    assert run("verify", "cache").exit_code == 0
    assert {path.name for path in work.iterdir()} == {"away", "link", "link-2", "out", "report.html", "a.png"}


def test_variables_are_defaults(run, tmp_path, index):
    variables = {"CHORDCACHE_CACHE": "mine", "CHORDCACHE_TIER": "lmdb,npz", "CHORDCACHE_CONFIG": "multimodal"}
    planned = json.loads(run("build", str(index), "--dry-run", "--json", **variables).stdout)
    assert planned["cache"].endswith("mine")
    assert {tier: sorted(features) for tier, features in planned["features"].items()} == {
        "lmdb": ["frames"],
        "npz": ["mel"],
    }
    planned = json.loads(run("build", str(index), "--dry-run", "--json", "--tier", "lmdb", **variables).stdout)
    assert list(planned["features"]) == ["lmdb"]
    assert (
        "/mine'; make one with 'chordcache build -o CACHE' (CHORDCACHE_CACHE=mine is set"
        in run("info", **variables).stderr
    )
    assert "/other'; make one with 'chordcache build -o CACHE'\n" in run("info", "other", **variables).stderr


@pytest.mark.parametrize("words", ["verify", "gc", "info", "ls"])
def test_the_cache_of_the_variable_and_of_the_option(run, words):
    result = run(*words.split(), CHORDCACHE_CACHE="mine")
    assert result.exit_code == 10
    assert "CHORDCACHE_CACHE=mine" in result.stderr
    result = run(*words.split(), "-o", "other", CHORDCACHE_CACHE="mine")
    assert result.exit_code == 10
    assert re.search("no cache at '.*other'", result.stderr)


def test_a_key_needs_no_cache_where_one_is_known(run):
    for args, cache in ((["show", "a"], "mine"), (["info", "-o", "other", "a"], "other"), (["show", "x", "a"], "x")):
        result = run(*args, CHORDCACHE_CACHE="mine")
        assert result.exit_code == 10
        assert re.search(f"no cache at '.*{cache}'", result.stderr)
    assert run("gc", "a", "-o", "b").stderr == "chordcache gc: error: -o: got 'b' and 'a', expected one cache\n"
    both = run("info", "a", "-o", "b", "c")
    assert both.stderr == "chordcache info: error: -o: got it with CACHE and KEY, expected one cache\n"


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"CHORDCACHE_JOBS": "many"}, "--jobs: got 'many', expected an integer (CHORDCACHE_JOBS=many is set in"),
        ({"CHORDCACHE_TIER": "lmdb npx"}, "--tier: got 'npx', expected one of lmdb, npz, hdf5. Did you mean 'npz'?"),
        ({"CHORDCACHE_TIER": "npx"}, "(CHORDCACHE_TIER=npx is set in the environment)\n"),
        ({"CHORDCACHE_CONFIG": "flwo"}, "(CHORDCACHE_CONFIG=flwo is set in the environment)\n"),
        ({"CHORDCACHE_CONFIG": "no.yaml"}, "(CHORDCACHE_CONFIG=no.yaml is set in the environment)\n"),
        ({"CHORDCACHE_FILE_MEMORY": "7"}, "(CHORDCACHE_FILE_MEMORY=7 is set in the environment)\n"),
        ({"CHORDCACHE_STALL_TIMEOUT": "0"}, "(CHORDCACHE_STALL_TIMEOUT=0 is set in the environment)\n"),
        ({"CHORDCACHE_FILE_TIMEOUT": "x"}, "--file-timeout: got 'x', expected a number (CHORDCACHE_FILE_TIMEOUT=x"),
    ],
)  # fmt: skip
def test_errors_name_the_variable(run, index, variables, message):
    result = run("build", str(index), **variables)
    assert result.exit_code in (2, 10)
    assert message in result.stderr


def test_an_error_of_an_option_does_not_name_the_variable(run, index):
    result = run("build", str(index), "-j", "0", "--tier", "npx", CHORDCACHE_JOBS="2", CHORDCACHE_TIER="lmdb")
    assert result.exit_code == 2
    assert "CHORDCACHE_" not in result.stderr


def test_variables_are_in_the_help(run):
    text = " ".join(run("build", "--help").stdout.split())
    for name in ("JOBS", "TIER", "CONFIG", "CACHE", "FILE_MEMORY", "FILE_TIMEOUT", "STALL_TIMEOUT"):
        assert f"env var: CHORDCACHE_{name}" in text
