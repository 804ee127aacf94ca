"""Completion in bash, zsh and fish. A script of the shell asks this program for the words that may come next.

The program answers with lines: the kind of path that may come next ("file", "dir" or "none"), the part of the word
before the path (such as ``--output=``), then one line for each other word. Click's own scripts complete a path only if
nothing else can be there, and break words at commas and ``=``.
"""

from __future__ import annotations

import os

from click.shell_completion import CompletionItem, ShellComplete, add_completion_class, split_arg_string

SHELLS = ("bash", "zsh", "fish")
"""Shells that have a completion"""

_BASH = """\
%(complete_func)s() {
    local program=${1/#\\~\\//$HOME/} word=${COMP_WORDS[COMP_CWORD]}
    local -a lines paths
    mapfile -t lines < <(
        COMP_LINE=${COMP_LINE:0:COMP_POINT} %(complete_var)s=bash_complete "$program" 2>/dev/null
    )
    COMPREPLY=("${lines[@]:2}")
    case ${lines[0]}:${#COMPREPLY[@]} in
        file:0) compopt -o default ;;
        dir:0) compopt -o dirnames ;;
        file:*)
            mapfile -t paths < <(compgen -f -- "$word")
            compopt -o filenames
            COMPREPLY+=("${paths[@]}")
            ;;
    esac
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

_ZSH = """\
#compdef %(prog_name)s
%(complete_func)s() {
    local -a lines described
    local program=${~words[1]} line="${(j: :)words[1,CURRENT-1]} $QIPREFIX$PREFIX"
    lines=("${(@f)$(COMP_LINE=$line %(complete_var)s=zsh_complete $program 2>/dev/null)}")
    compset -p ${#lines[2]}
    described=($lines[3,-1])
    _describe -V 'values' described
    case $lines[1] in
        file) _files ;;
        dir) _files -/ ;;
    esac
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i -D }
    compdef %(complete_func)s %(prog_name)s
fi
"""

_FISH = """\
function %(complete_func)s
    set -l program (commandline -opc)[1]
    set -l lines (COMP_LINE=(commandline -cp) %(complete_var)s=fish_complete $program 2>/dev/null)
    set -l word (commandline -ct)
    set -l path (string sub --start (math (string length -- "$lines[2]") + 1) -- "$word")
    set -l paths (complete -C "'' $path" | string replace -r '\\t.*' '')
    test "$lines[1]" = dir; and set paths (string match -r '.*/$' -- $paths)
    contains -- "$lines[1]" file dir; or set paths
    printf '%%s\\n' $lines[2]$lines[3..-1] $lines[2]$paths
end
complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""


class _Complete(ShellComplete):
    """The answer to the script of any shell."""

    mark = ""
    """Text between a word and its description, "" if the shell does not show descriptions"""

    def complete(self) -> str:
        """Return the answer to the script."""
        line = os.environ.get("COMP_LINE", "")
        words = split_arg_string(line)[1:]
        is_begun = len(words) == len(split_arg_string(f"{line}x")) - 1  # else a letter here begins another word
        word = words.pop() if words and is_begun else ""
        items = self.get_completions(words, word)
        path = next((item for item in items if item.type in ("file", "dir")), None)
        begin = word[: word.find("=") + 1] if word.startswith("-") else ""
        if path is not None:
            begin = word[: len(word) - len(path.value)]
        plain = [self._line_of(item) for item in items if item.type == "plain"]
        return "\n".join(("none" if path is None else path.type, begin, *plain))

    def _line_of(self, item: CompletionItem) -> str:
        text = " ".join((item.help or "").split())
        return f"{item.value}{self.mark}{text}" if self.mark and text else str(item.value)


for _shell, _script, _mark in (("bash", _BASH, ""), ("zsh", _ZSH, ":"), ("fish", _FISH, "\t")):
    add_completion_class(type(_shell, (_Complete,), {"name": _shell, "source_template": _script, "mark": _mark}))
