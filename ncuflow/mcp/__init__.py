"""Questions of programs: what the other rooms know, over the Model Context Protocol."""
