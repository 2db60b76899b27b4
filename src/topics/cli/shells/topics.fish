# Completion of `topics` for fish. Load it with: topics completion fish | source
function __topics_complete
    set --local line (commandline --current-process --cut-at-cursor | string collect)
    set --local found (topics complete-line fish $line 2>/dev/null)
    if set --query found[1]
        printf '%s\n' $found
    else
        __fish_complete_path (commandline --current-token --cut-at-cursor)
    end
end
complete --command topics --no-files --arguments '(__topics_complete)'
