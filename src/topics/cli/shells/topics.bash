# Completion of `topics` for bash. Load it with: source <(topics completion bash)
_topics_complete() {
  local line
  COMPREPLY=()
  while IFS= read -r line; do
    COMPREPLY+=("$line")
  done < <("${COMP_WORDS[0]}" complete-line bash "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
}
complete -o default -o bashdefault -F _topics_complete topics
