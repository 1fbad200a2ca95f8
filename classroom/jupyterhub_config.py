"""JupyterHub's configuration for a class on one host; start.py checks the host and runs the hub with this file."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from class_settings import PAM_SERVICE, read_settings  # noqa: E402
from class_spawner import SERVER, spawner_here  # noqa: E402
from host_checks import PROXY, proxy_command  # noqa: E402

settings = read_settings(Path(os.environ["BTTLAB_CLASS"]))
spawner = spawner_here()
c = get_config()  # noqa: F821, JupyterHub's

# --- who may log in: system users with their passwords
c.JupyterHub.authenticator_class = "pam"
c.PAMAuthenticator.open_sessions = False
c.PAMAuthenticator.service = PAM_SERVICE if (Path("/etc/pam.d") / PAM_SERVICE).exists() else "login"
c.Authenticator.blocked_users = {"root"}
c.Authenticator.allowed_users = {*settings.names(), *settings.lecturers}
if settings.group:
    c.LocalAuthenticator.allowed_groups = {settings.group}

# --- addresses: one for users, the others on loopback, with TLS between the hub, the proxy and the servers
host = f"[{settings.address}]" if ":" in settings.address else settings.address
c.JupyterHub.bind_url = f"{'https' if settings.certificate else 'http'}://{host}:{settings.port}"
c.JupyterHub.ssl_cert = str(settings.certificate or "")
c.JupyterHub.ssl_key = str(settings.key or "")
c.JupyterHub.hub_ip = "127.0.0.1"
c.JupyterHub.hub_port = settings.port + 1
c.ConfigurableHTTPProxy.api_url = f"https://127.0.0.1:{settings.port + 2}"
c.ConfigurableHTTPProxy.command = [proxy_command() or PROXY]
c.JupyterHub.internal_ssl = True
c.JupyterHub.internal_certs_location = str(settings.state / "internal-ssl")
c.JupyterHub.db_url = f"sqlite:///{settings.state}/jupyterhub.sqlite"
c.JupyterHub.cookie_secret_file = str(settings.state / "cookie_secret")

# --- each student's server
c.JupyterHub.spawner_class = spawner
c.PrivateFolders.runtime = str(settings.runtime)
c.Spawner.pre_spawn_hook = lambda spawner: spawner.make_private()
c.Spawner.cmd = [str(SERVER), str(settings.python)]
c.Spawner.args = ["--KernelManager.transport=ipc"]
c.Spawner.ip = "127.0.0.1"
c.Spawner.notebook_dir = "~"
c.Spawner.default_url = "/lab/tree/notebooks/00_start_here.ipynb"
c.Spawner.start_timeout = c.Spawner.http_timeout = 180  # thirty servers that start at once
c.Spawner.mem_limit = settings.memory
c.Spawner.cpu_limit = settings.cores
c.LimitedSpawner.processes = settings.processes
c.LimitedSpawner.emulated_cards = settings.emulated_cards
c.SystemdSpawner.unit_extra_properties = {"TasksMax": str(settings.processes), "LimitCORE": "0"}
c.SystemdSpawner.readonly_paths = [str(path) for path in (HERE.parent, settings.data, settings.overlays) if path]
c.SystemdSpawner.isolate_tmp = True
c.Spawner.env_keep = ["PATH", "PYTHONPATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "XILINX_XRT"]
c.Spawner.environment = {
    "OMP_NUM_THREADS": str(settings.cores),
    "OMP_WAIT_POLICY": "passive",  # waiting threads sleep: busy waiting would take cores from other students
    "BTTLAB_EMULATED_CARDS": str(settings.emulated_cards),
    **({"BTTLAB_DATA": str(settings.data)} if settings.data else {}),
    **({"BTTLAB_OVERLAYS": str(settings.overlays)} if settings.overlays else {}),
    **({"BTTLAB_EXCHANGE": str(settings.exchange)} if settings.exchange else {}),
    # without an exchange, do not load nbgrader, which takes seconds to start
    "JUPYTER_CONFIG_PATH": str(HERE / "jupyter" if settings.exchange else HERE.parent / "tools" / "jupyter"),
}

# --- services: servers without activity are stopped
c.JupyterHub.load_roles = [
    {
        "name": "idle-culler",
        "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers"],
        "services": ["idle-culler"],
    }
]
# A page from a student's server can act with the rights of its reader at the same host name. So lecturers cannot open
# servers unless each student's server has its own name.
if settings.domain:
    scheme = "https" if settings.certificate else "http"
    c.JupyterHub.subdomain_host = f"{scheme}://{settings.domain}:{settings.port}"
    # The proxy passes on the host name of a server that does not run to the hub, which offers to start it.
    c.JupyterHub.trusted_alt_names = [f"DNS:*.{settings.domain}"]
    # A page of a student's server can set cookies for the whole domain, but none with this prefix: else it could log
    # its reader in as its author. Browsers take the prefix with a certificate alone.
    c.JupyterHub.cookie_host_prefix_enabled = bool(settings.certificate)
    c.Authenticator.admin_users = set(settings.lecturers)
elif settings.lecturers:
    scopes = ["admin-ui", "list:users", "read:users", "read:servers", "servers", "read:hub"]
    c.JupyterHub.load_roles.append({"name": "lecturer", "scopes": scopes, "users": list(settings.lecturers)})
c.JupyterHub.services = [
    {
        "name": "idle-culler",
        "command": [
            sys.executable,
            "-m",
            "jupyterhub_idle_culler",
            f"--timeout={settings.idle_minutes * 60}",
            "--ssl-enabled=True",
            f"--internal-certs-location={settings.state / 'internal-ssl'}",
        ],
    }
]
