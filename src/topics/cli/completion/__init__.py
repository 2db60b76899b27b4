"""Shell completion: the scripts for bash, zsh and fish, and the candidates for a command line."""
