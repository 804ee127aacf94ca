"""Completion in bash, zsh and fish. A script of the shell asks this program for the words that may come next.

The program answers with lines: the kind of path that may come next ("file", "dir" or "none"), the part of the word
before the path (such as ``--output=``), then one line for each other word. Click's own scripts complete a path only if
nothing else can be there, and break words at commas and ``=``.
"""

from __future__ import annotations

import os

from click.shell_completion import CompletionItem, ShellComplete, add_completion_class, split_arg_string

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
    local -a lines words_only described
    local program=${~words[1]} line="${(j: :)words[1,CURRENT-1]} $QIPREFIX$PREFIX"
    lines=("${(@f)$(COMP_LINE=$line %(complete_var)s=zsh_complete $program 2>/dev/null)}")
    compset -p ${#lines[2]}
    words_only=(${lines[3,-1]:#*:*})
    described=(${(M)lines[3,-1]:#*:*})
    (( $#described )) && _describe -V 'values' described
    (( $#words_only )) && compadd -V values -a words_only
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
    printf '%%s\\n' $lines[3..-1]
    set -l paths (complete -C "'' $path" | string replace -r '\\t.*' '')
    switch $lines[1]
        case file
            printf "$lines[2]%%s\\n" $paths
        case dir
            printf "$lines[2]%%s\\n" (string match -r '.*/$' -- $paths)
    end
end
complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""


class _Complete(ShellComplete):
    """The part that is the same for all shells."""

    begins_with_option = False
    """True if the shell replaces the whole word ``--tier=l``, and not only the part after ``=``"""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor, and the beginning of the word at the cursor."""
        line = os.environ.get("COMP_LINE", "")
        words = split_arg_string(line)[1:]
        is_begun = len(words) == len(split_arg_string(f"{line}x")) - 1  # else a letter here begins another word
        return (words[:-1], words[-1]) if words and is_begun else (words, "")

    def complete(self) -> str:
        """Return the answer to the script."""
        args, word = self.get_completion_args()
        items = self.get_completions(args, word)
        path = next((item for item in items if item.type in ("file", "dir")), None)
        begin = word[: word.find("=") + 1] if word.startswith("-") else ""
        if path is not None:
            begin = word[: len(word) - len(path.value)]
        start = begin if self.begins_with_option else ""
        words = [f"{start}{self.format_completion(item)}" for item in items if item.type == "plain"]
        return "\n".join(("none" if path is None else path.type, begin, *words))

    def format_completion(self, item: CompletionItem) -> str:
        """Return the line of a word."""
        return str(item.value)


class _Bash(_Complete):
    name = "bash"
    source_template = _BASH


class _Zsh(_Complete):
    name = "zsh"
    source_template = _ZSH

    def format_completion(self, item: CompletionItem) -> str:
        """Return the line of a word, with its description after a colon."""
        return f"{item.value}:{' '.join(item.help.split())}" if item.help else str(item.value)


class _Fish(_Complete):
    name = "fish"
    source_template = _FISH
    begins_with_option = True

    def format_completion(self, item: CompletionItem) -> str:
        """Return the line of a word, with its description after a tab."""
        return f"{item.value}\t{' '.join(item.help.split())}" if item.help else str(item.value)


for _shell in (_Bash, _Zsh, _Fish):
    add_completion_class(_shell)
