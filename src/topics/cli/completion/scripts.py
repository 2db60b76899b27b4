"""`topics completion SHELL`: print the script that a shell loads to complete `topics`.

The scripts are short: they pass the line up to the cursor to `topics complete-line`, which prints the candidates.
"""

from __future__ import annotations

import argparse
import sys

from topics.cli.output.screen import Screen
from topics.cli.tree import Subparsers, add_parser

BASH = """\
# Completion of `topics` for bash. Load it with: source <(topics completion bash)
_topics_complete() {
  local line
  COMPREPLY=()
  while IFS= read -r line; do
    COMPREPLY+=("$line")
  done < <("${COMP_WORDS[0]}" complete-line bash "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
}
complete -o default -o bashdefault -F _topics_complete topics
"""

ZSH = """\
#compdef topics
# Completion of `topics` for zsh. Load it with: source <(topics completion zsh)
_topics_complete() {
  local -a found
  local line="${(j: :)words[1,CURRENT-1]} $QIPREFIX$PREFIX"
  found=("${(@f)$(topics complete-line zsh "$line" 2>/dev/null)}")
  if [[ -n "${found[*]}" ]]; then
    compadd -- "${found[@]}"
  else
    _files
  fi
}
compdef _topics_complete topics
"""

FISH = """\
# Completion of `topics` for fish. Load it with: topics completion fish | source
function __topics_complete
    set --local line (commandline --current-process --cut-at-cursor | string collect)
    set --local found (topics complete-line fish $line 2>/dev/null)
    if set --query found[1]
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline --current-token --cut-at-cursor)
    end
end
complete --command topics --no-files --arguments '(__topics_complete)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def register(subparsers: Subparsers) -> None:
    parser = add_parser(
        subparsers, "completion", details="It completes commands, options and topic names.",
        epilog="load it now, or in the start file of the shell:\n"
        "  source <(topics completion bash)        # ~/.bashrc\n"
        "  source <(topics completion zsh)         # ~/.zshrc, after compinit\n"
        "  topics completion fish | source         # ~/.config/fish/config.fish",
    )  # fmt: skip
    parser.add_argument("shell", choices=SCRIPTS, metavar="SHELL", help="bash, zsh or fish")
    parser.add_argument("--json", action="store_true", help="print the script as a member of one JSON object")
    parser.set_defaults(execute=_print)


def _print(args: argparse.Namespace) -> int:
    if args.json:
        Screen(as_json=True).json({"shell": args.shell, "script": SCRIPTS[args.shell]})
    else:
        sys.stdout.write(SCRIPTS[args.shell])
    return 0
