"""The paths of secrets, and the programs that may read them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from workers.report.job_paths import JobPaths
from workers.report.processes import Program

_NPM = frozenset(
    {"npm", "npm-cli.js", "npx", "npx-cli.js", "pnpm", "pnpm.cjs", "pnpx"}
    | {"yarn", "yarn.js", "yarnpkg", "corepack", "corepack.js", "bun"}
)
_SSH = frozenset({"ssh", "ssh-add", "ssh-agent", "ssh-keygen", "scp", "sftp"})
_NETRC = frozenset({"git", "git-remote-http", "git-remote-https", "curl", "wget", "pip", "pip3", "uv"})
_CONTAINERS = frozenset({"docker", "podman", "buildah", "skopeo"})
_GIT = frozenset({"git"})


@dataclass(frozen=True, slots=True)
class _Secret:
    pattern: str
    owners: frozenset[str] = frozenset()
    directories_too: bool = True


# Searched after a slash, anywhere in the path: other homes count like one's own.
_SECRETS = (
    _Secret(r"\.ssh(?:/(?!.*\.pub$).*)?$", _SSH),
    _Secret(r"id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)?$", _SSH),
    _Secret(r"\.npmrc$|\.yarnrc\.yml$", _NPM),
    _Secret(r"\.netrc$", _NETRC),
    _Secret(r"\.git-credentials$|\.config/git/credentials$", frozenset({"git", "git-credential-store"})),
    _Secret(r"\.pypirc$", frozenset({"twine"})),
    _Secret(r"\.docker/config\.json$|\.config/containers/auth\.json$", _CONTAINERS),
    _Secret(r"\.aws(?:/.*)?$", frozenset({"aws"})),
    _Secret(r"\.kube(?:/.*)?$", frozenset({"kubectl", "helm"})),
    _Secret(r"\.azure(?:/.*)?$", frozenset({"az"})),
    _Secret(r"\.config/gcloud(?:/.*)?$", frozenset({"gcloud"})),
    _Secret(r"\.config/gh/hosts\.yml$", frozenset({"gh"})),
    _Secret(r"\.cargo/credentials(?:\.toml)?$", frozenset({"cargo"})),
    _Secret(r"\.gem/credentials$", frozenset({"gem"})),
    _Secret(r"\.m2/settings(?:-security)?\.xml$", frozenset({"java", "mvn"})),
    _Secret(r"\.terraformrc$|\.terraform\.d/credentials\.tfrc\.json$", frozenset({"terraform"})),
    _Secret(r"\.vault-token$", frozenset({"vault"})),
    _Secret(r"\.gnupg(?:/.*)?$", frozenset({"gpg", "gpg2", "gpg-agent", "gpgv", "gpgconf"})),
    _Secret(r"\.pgpass$", frozenset({"psql", "pg_dump", "pg_restore"})),
    _Secret(r"\.my\.cnf$", frozenset({"mysql", "mysqldump", "mariadb"})),
    _Secret(r"\.env(?:\.(?:local|prod|production|dev|development|staging|test))?$", directories_too=False),
    _Secret(r"\.(?:bash|zsh|python|node_repl|psql|mysql)_history$", frozenset({"bash", "zsh"})),
    _Secret(
        r"\.mozilla/firefox/.*(?:logins\.json|key4\.db)$|\.config/(?:google-chrome|chromium)/.*(?:Login Data|Cookies)$"
    ),
    _Secret(r"etc/g?shadow-?$|etc/sudoers(?:\.d/.*)?$", frozenset({"sudo", "su", "login", "unix_chkpwd"})),
    _Secret(r"etc/ssh/ssh_host_[^/]*_key$", frozenset({"sshd"})),
    _Secret(r"run/secrets(?:/.*)?$"),
    _Secret(r"proc/\d+/(?:environ|mem)$"),
)
_ANY = re.compile("/(?:" + "|".join(f"({secret.pattern})" for secret in _SECRETS) + ")", re.DOTALL)


def is_credential(path: str, program: Program, paths: JobPaths, *, is_directory: bool = False) -> bool:
    """Report whether reading `path` exposes a secret.

    A tool may read its own secrets, unless its file is one of the job, and git may read what is in the checkout.
    """
    found = _ANY.search(path)
    if not found or found.lastindex is None:
        return False
    secret = _SECRETS[found.lastindex - 1]
    if is_directory and not secret.directories_too:
        return False
    owners = secret.owners | _GIT if paths.is_checkout(path) else secret.owners
    return program.own or not program.is_one_of(owners)
