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
