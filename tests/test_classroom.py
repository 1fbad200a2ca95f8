"""A class on one host: its settings, its list, what the host must have, and each server's limits; without a browser."""

import os
import pwd
import re
import resource
import socket
import stat
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fake_trainer import until
from subprocess_env import environment
from two_users import run_as_nobody, shared_folder

from conftest import ROOT

sys.path.append(str(ROOT / "classroom"))

import accounts
import class_spawner
import host_checks
import start
from class_settings import ClassError, read_class_list, read_settings

pytestmark = pytest.mark.long

LIST = 'students = "students.txt"'


def settings_file(folder: Path, text: str = "", names: str = "ada\nbob\n", who: str = LIST) -> Path:
    (folder / "students.txt").write_text(names)
    separate = "" if re.search("^(domain|open|address) =", text, re.MULTILINE) else 'domain = "class.localhost"\n'
    (folder / "class.toml").write_text(f"{who}\ncores = 1\n{separate}{text}")
    return folder / "class.toml"


NBGRADER = """
import subprocess, sys
child = subprocess.Popen(["sleep", "300"])  # as nbgrader starts alembic
print(child.pid, file=open(sys.argv[1], "w"), flush=True)
child.wait()
"""


def test_a_demo_that_is_ended_while_it_releases_leaves_no_process(tmp_path, monkeypatch):
    script = "import signal, sys, demo\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
    script += f"demo.run_whole([sys.executable, '-c', {NBGRADER!r}, sys.argv[1]])"
    process = subprocess.Popen([sys.executable, "-c", script, tmp_path / "pid"], env=environment())
    assert until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    child = int((tmp_path / "pid").read_text())
    process.terminate()
    assert process.wait(60) == 143
    assert until(lambda: _has_ended(child))


def _has_ended(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize(
    "text, said",
    [
        ("ada\nbob\n# \nada\n", "list, line 4: ada is also in line 1: list each name once"),
        ("ada\nBob", "line 2: 'Bob' is not a name of a system user: a lower-case letter"),
        ("a" * 32, "at most 31"),
        ("# nobody yet\n", "has no names"),
        (None, "cannot be read"),
    ],
)
def test_a_bad_class_list(tmp_path, text, said):
    if text is not None:
        (tmp_path / "list").write_text(text)
    with pytest.raises(ClassError) as caught:
        read_class_list(tmp_path / "list")
    assert said in str(caught.value)


def test_settings(tmp_path):
    path = settings_file(tmp_path, 'memory = "512M"\nlecturers = ["smith"]\ndata = "corpora"\n')
    for file in (path, tmp_path / "students.txt"):  # with a byte order mark, as editors of Windows write it
        file.write_text(file.read_text(), encoding="utf-8-sig")
    settings = read_settings(path)
    assert settings.names() == ["ada", "bob"] and settings.lecturers == ("smith",)
    assert settings.data == tmp_path / "corpora" and settings.memory == "512M" and settings.is_local
    example = read_settings(ROOT / "classroom" / "class.toml")
    assert example.students == ROOT / "classroom" / "students.txt" and example.port == 8000


@pytest.mark.parametrize(
    "text, said",
    [
        ("color = 1", "color is not a setting of ClassSettings; do you mean cores?"),
        ("port = 80", "greater than or equal to 1024"),
        ('memory = "lots"', "memory, as 512M or 4G, is 'lots'"),
        ("cores = 100000", "this machine has"),
        ('group = "x"', "give students, a class list, or group"),
        ('lecturers = ["a b"]', "lecturers.0 is 'a b'"),
        ('lecturers = "eva"', """lecturers is 'eva': give a list of names, as ["eva"]"""),
        ('data = ["corpora"]', "data is ['corpora']: give a path, or leave it out"),
        ('key = ""', "key is '': give a path, or leave it out"),
        ('domain = "Lab.example.org"', "domain, as class.localhost, in lower case, is 'Lab.example.org'"),
        ('address = "lab"', "is not an IP address"),
        ('address = "0.0.0.0"', "passwords would cross the network in the clear"),
        ("port =", "cannot read settings from"),
    ],
)
def test_bad_settings(tmp_path, text, said):
    path = settings_file(tmp_path, text)
    if "cores" in text:
        path.write_text(path.read_text().replace("cores = 1\n", ""))
    with pytest.raises(ClassError) as caught:
        read_settings(path)
    assert said in str(caught.value)


# --- the host


def run_start(path: Path, **variables: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "classroom" / "start.py"), str(path), "--check"]
    return subprocess.run(command, env=environment() | variables, capture_output=True, text=True)


def test_what_is_wrong_is_one_line_and_exit_code_2(tmp_path):
    done = run_start(settings_file(tmp_path, names="ada\nada\n"))
    assert (done.returncode, done.stdout) == (2, "") and len(done.stderr.splitlines()) == 1
    assert "line 2: ada is also in line 1" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start a hub")
def test_a_host_without_the_proxy(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(host_checks, "PROXY_FOLDER", tmp_path)
    with pytest.raises(ClassError, match=f"there is no configurable-http-proxy: .*npm ci --prefix {tmp_path}"):
        host_checks.check_host(read_settings(settings_file(tmp_path)))
    program = tmp_path / "node_modules" / ".bin" / "configurable-http-proxy"
    program.parent.mkdir(parents=True)
    program.touch(0o755)
    assert host_checks.proxy_command() == str(program)


def test_an_exchange_that_students_could_not_use_or_could_own(monkeypatch):
    with shared_folder() as folder:
        exchange, course = folder / "exchange", folder / "exchange" / "bttlab"
        with pytest.raises(ClassError, match=r"cannot submit to the exchange .*: mkdir -p"):
            host_checks.check_exchange(exchange, [])
        exchange.mkdir()
        for mode in (0o755, 0o777):  # not for students; without the sticky bit they could remove each other's
            exchange.chmod(mode)
            with pytest.raises(ClassError, match=f"chmod 1777 {exchange}"):
                host_checks.check_exchange(exchange, [])
        exchange.chmod(0o1777)
        with pytest.raises(ClassError, match="has no folder bttlab for the course: release an assignment first"):
            host_checks.check_exchange(exchange, [])
        course.mkdir()
        if os.geteuid() == 0:
            host_checks.check_exchange(exchange, [])
            os.chown(course, 4711, -1)
        with pytest.raises(ClassError, match=r"bttlab belongs to .*, who is not a lecturer: remove it"):
            host_checks.check_exchange(exchange, [])
        monkeypatch.setattr(host_checks.pwd, "getpwnam", lambda name: SimpleNamespace(pw_uid=course.stat().st_uid))
        host_checks.check_exchange(exchange, ["eva"])


def test_every_user_may_take_the_port_of_a_hub_that_is_down(tmp_path):
    """Ports below 1024, which only root may take, are refused: the hub's proxy need not be root then."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert read_settings(settings_file(tmp_path, f"port = {max(port, 1024)}")).port >= 1024
    take = "import socket, sys; s = socket.socket(); s.bind(('127.0.0.1', int(sys.argv[1]))); print('taken')"
    assert run_as_nobody(take, port) == "taken"


def test_an_exchange_in_a_closed_folder(tmp_path):
    with shared_folder() as folder:
        exchange = folder / "course" / "exchange"
        (exchange / "bttlab").mkdir(parents=True)
        exchange.chmod(0o1777)
        host_checks.check_exchange(exchange, [pwd.getpwuid(os.geteuid()).pw_name])
        (folder / "course").chmod(0o700)
        with pytest.raises(ClassError, match=f"students cannot enter {folder}/course, in which the exchange"):
            host_checks.check_exchange(exchange, [])


def test_data_and_overlays_that_students_share(tmp_path, monkeypatch):
    """A lecturer may write corpora; what a manifest lists is code, so its folder is root's alone."""
    import bttlab.util.trust

    monkeypatch.setattr(host_checks.shutil, "which", lambda name, path=None: name)
    monkeypatch.setattr(host_checks, "check_python", lambda python: None)
    monkeypatch.setattr(host_checks, "check_cards", lambda names: None)
    monkeypatch.setattr(host_checks, "check_port", lambda address, port: None)
    monkeypatch.setattr(host_checks, "check_accounts", lambda names: None)
    monkeypatch.setattr(host_checks, "check_readable", lambda folder, names: None)
    monkeypatch.setattr(host_checks.os, "geteuid", lambda: 0)
    lecturer = SimpleNamespace(pw_uid=4711, pw_name="eva")
    monkeypatch.setattr(host_checks.pwd, "getpwnam", lambda name: lecturer)
    real = bttlab.util.trust.os.stat

    def owned(path, *rest, **options):
        found = real(path, *rest, **options)
        return os.stat_result((*found[:4], 4711, *found[5:])) if str(path).endswith("shared") else found

    (tmp_path / "shared").mkdir()
    monkeypatch.setattr(bttlab.util.trust.Path, "stat", lambda self: owned(self))
    for setting, refused in (("data", False), ("overlays", True)):
        path = settings_file(tmp_path, f'{setting} = "shared"\nlecturers = ["eva"]\n')
        if refused:
            with pytest.raises(ClassError, match=r"students share .*shared, but .*shared belongs to the user"):
                host_checks.check_host(read_settings(path))
        else:
            host_checks.check_host(read_settings(path))
    with pytest.raises(ClassError, match="emulated_cards = 0, and this host has no card"):
        monkeypatch.setattr(host_checks, "card_nodes", dict)
        host_checks.check_host(read_settings(settings_file(tmp_path, "emulated_cards = 0\n")))


def test_passwords_go_through_a_pipe_to_a_sheet_of_your_own(tmp_path, monkeypatch):
    ran = []

    def run(command, text=""):
        ran.append((command, text))
        if command[0] == "useradd":
            (tmp_path / command[-1]).mkdir()

    monkeypatch.setattr(accounts, "_run", run)
    sheet = tmp_path / "sheet"
    assert accounts.make_accounts(["root", "no-such-student"], sheet, homes=tmp_path) == ["no-such-student"]
    name, password = sheet.read_text().split()
    assert name == "no-such-student" and len(password) == accounts.LENGTH and sheet.stat().st_mode & 0o777 == 0o600
    assert ran[1] == (["chpasswd"], f"{name}:{password}\n") and password not in " ".join(ran[0][0])
    with pytest.raises(ClassError, match="no-such-student is there, and no-such-student has no account: move it away"):
        accounts.make_accounts(["no-such-student"], tmp_path / "other", homes=tmp_path)
    (tmp_path / "no-such-student").rmdir()
    with pytest.raises(ClassError, match="name a new file"):
        accounts.make_accounts(["no-such-student"], sheet, homes=tmp_path)
    with pytest.raises(ClassError, match="there is no group no-such-group: groupadd no-such-group"):
        accounts.make_accounts(["no-such-student"], tmp_path / "other", "no-such-group", tmp_path)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("command", ["useradd", "chpasswd"])
def test_a_sheet_has_the_passwords_of_accounts_that_were_made(tmp_path, monkeypatch, command):
    """The system refuses the second of three, or the first; an account without its password is removed."""
    ran, refused = [], "stu-b"

    def run(parts, text=""):
        ran.append(parts)
        if parts[0] == command and refused in (parts[-1], text.partition(":")[0]):
            raise ClassError(f"{command}: refused")
        if parts[0] == "useradd":
            (tmp_path / parts[-1]).mkdir()
        if parts[0] == "userdel":
            (tmp_path / parts[-1]).rmdir()

    monkeypatch.setattr(accounts, "_run", run)
    sheet = tmp_path / "sheet"
    said = f"{command}: refused; accounts made before it: 1, with passwords in {sheet}; name a new sheet for the others"
    with pytest.raises(ClassError, match=f"^{re.escape(said)}$"):
        accounts.make_accounts(["stu-a", "stu-b", "stu-c"], sheet, homes=tmp_path)
    assert [line.split()[0] for line in sheet.read_text().splitlines()] == ["stu-a"]
    assert not (tmp_path / "stu-b").exists() and (["userdel", "--remove", "stu-b"] in ran) == (command == "chpasswd")
    with pytest.raises(ClassError, match=r"refused$"):
        accounts.make_accounts(["stu-b", "stu-c"], tmp_path / "second", homes=tmp_path)
    assert not (tmp_path / "second").exists()


def _certificate(folder: Path, *names: str, days: int = 1) -> tuple[Path, Path]:
    """Make a certificate for names, signed by itself, which was made today or has expired for `-days`."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "lab")])
    now = datetime.now(timezone.utc)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(30)).not_valid_after(now + timedelta(days))
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName([*map(x509.DNSName, names)]), critical=False)
    pem = serialization.Encoding.PEM
    files = folder / "lab.pem", folder / "lab.key"
    files[0].write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(pem))
    files[1].write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    return files


def test_a_certificate_that_browsers_would_refuse(tmp_path):
    domain = "lab.example.org"
    host_checks.check_certificate(*_certificate(tmp_path, domain, f"*.{domain}"), domain)
    host_checks.check_certificate(*_certificate(tmp_path), "")
    for names, said in (((domain,), f"is for {domain}, and not for "), ((), "is for no name, and not for ")):
        with pytest.raises(ClassError, match=said):
            host_checks.check_certificate(*_certificate(tmp_path, *names), domain)
    with pytest.raises(ClassError, match=r"is valid from .* to .*: browsers refuse it; renew it"):
        host_checks.check_certificate(*_certificate(tmp_path, domain, f"*.{domain}", days=-1), domain)
    other = tmp_path / "other"
    other.mkdir()
    certificate, key = _certificate(tmp_path)[0], _certificate(other)[1]
    for file in (key, certificate, tmp_path / "none"):  # another's, no key, not there
        with pytest.raises(ClassError, match="are no certificate with its key"):
            host_checks.check_certificate(certificate, file, "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may ask as another user")
def test_a_corpus_that_students_cannot_read():
    with shared_folder() as folder:
        data = folder / "data" / "atis"
        data.mkdir(parents=True)
        (data / "train").touch()
        host_checks.check_readable(folder / "data", ["root", "nobody"])
        for closed in (data / "train", data, folder / "data"):
            mode = closed.stat().st_mode
            closed.chmod(0o600)
            with pytest.raises(ClassError, match=f"^nobody cannot read the shared folder {folder}/data .*chmod -R o"):
                host_checks.check_readable(folder / "data", ["root", "nobody"])
            closed.chmod(mode)


def test_an_address_of_ipv6_is_in_brackets(config):
    assert config('address = "::1"\ndomain = "class.localhost"\n').JupyterHub.bind_url == "http://[::1]:8000"


# --- servers


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Return a function that reads JupyterHub's configuration for settings, with or without systemd."""
    from traitlets.config import PyFileConfigLoader

    def read(text: str = "", systemd: bool = False, who: str = LIST):
        monkeypatch.setenv("BTTLAB_CLASS", str(settings_file(tmp_path, text, who=who)))
        monkeypatch.setattr(class_spawner, "SYSTEMD", tmp_path if systemd else tmp_path / "none")
        return PyFileConfigLoader(str(ROOT / "classroom" / "jupyterhub_config.py")).load_config()

    return read


def test_lecturers_open_servers_only_where_each_has_a_name_of_its_own(config, tmp_path):
    """A page of a student's server could act as the lecturer who opens it, if both had one host name."""
    from jupyterhub.scopes import scope_definitions

    found = config('open = true\nlecturers = ["ann"]')
    (role,) = [role for role in found.JupyterHub.load_roles if role["name"] == "lecturer"]
    assert role["users"] == ["ann"] and set(role["scopes"]) <= set(scope_definitions)
    assert not any(scope.startswith("access:") or scope == "admin:servers" for scope in role["scopes"])
    assert "admin_users" not in found.Authenticator
    certificate = 'certificate = "a"\nkey = "b"\nlecturers = ["ann"]\ndomain = "lab.example.org"'
    found = config(certificate)
    assert found.JupyterHub.subdomain_host == "https://lab.example.org:8000"
    assert found.Authenticator.admin_users == {"ann"}
    with pytest.raises(ClassError, match=r"needs a certificate for it and \*\.lab\.example\.org"):
        read_settings(settings_file(tmp_path, 'domain = "lab.example.org"'))
    with pytest.raises(ClassError, match="in lower case, is 'lab example'"):
        read_settings(settings_file(tmp_path, certificate.replace("lab.example.org", "lab example")))


def test_a_login_without_a_certificate_is_open(config, tmp_path):
    """A classmate's page can set the hub's cookie for the whole domain, unless its name has the prefix __Host-."""
    found, settings = config(), read_settings(tmp_path / "class.toml")
    assert not found.JupyterHub.cookie_host_prefix_enabled
    assert "a page of one student can log its reader in as that student" in " ".join(start.open_doors(settings))
    found = config('domain = "lab.example.org"\ncertificate = "a"\nkey = "b"')
    settings = read_settings(tmp_path / "class.toml")
    assert found.JupyterHub.cookie_host_prefix_enabled and "log its reader in" not in str(start.open_doors(settings))


def test_the_hub_s_own_certificate_is_for_the_servers_names(config, tmp_path):
    """The proxy asks the hub by the name of a server that does not run; certificates of before are made again."""
    from certipy import Certipy

    assert config().JupyterHub.trusted_alt_names == ["DNS:*.class.localhost"]
    settings = read_settings(settings_file(tmp_path, f'state = "{tmp_path / "state"}"'))
    folder = tmp_path / "state" / "internal-ssl"
    assert not start.forget_certificates(settings)
    for name, kept in (("DNS:localhost", False), ("DNS:*.class.localhost", True)):
        maker = Certipy(store_dir=str(folder))
        maker.create_ca("hub-ca")
        maker.create_signed_pair("hub-internal", "hub-ca", alt_names=[name])
        assert start.forget_certificates(settings) != kept and folder.exists() == kept


@pytest.mark.parametrize("who", [LIST, 'group = "students"'])
def test_a_class_of_more_than_one_user_separates_them_or_is_open(tmp_path, who):
    path = settings_file(tmp_path, "open = false", who=who)
    with pytest.raises(
        ClassError, match=r"a click on a classmate's link could give away an account: set domain .*open"
    ):
        read_settings(path)
    assert read_settings(settings_file(tmp_path, "open = true", who=who)).open
    assert read_settings(settings_file(tmp_path, 'domain = "class.localhost"', who=who)).domain
    if who == LIST:  # alone there is nobody to separate
        assert not read_settings(settings_file(tmp_path, "open = false", names="ada\n")).domain


def test_an_account_is_locked_after_wrong_passwords(tmp_path):
    """With the file that start.py asks for; its tally is kept in a folder of the test."""
    import pamela

    if os.geteuid() != 0 or not Path("/etc/pam.d").is_dir():
        pytest.skip("takes root and PAM")
    name, service = "bttlab-locked", Path("/etc/pam.d/bttlab-test")
    text = (ROOT / "classroom" / "pam.d" / "bttlab-class").read_text()
    service.write_text(text.replace("pam_faillock.so", f"pam_faillock.so dir={tmp_path}"))
    subprocess.run(["useradd", "--no-create-home", name], check=True)
    try:
        subprocess.run(["chpasswd"], input=f"{name}:right", text=True, check=True)
        pamela.authenticate(name, "right", service=service.name)
        for _ in range(5):
            with pytest.raises(pamela.PAMError):
                pamela.authenticate(name, "wrong", service=service.name)
        with pytest.raises(pamela.PAMError):
            pamela.authenticate(name, "right", service=service.name)
    finally:
        service.unlink()
        subprocess.run(["userdel", name])


def test_who_gets_in_and_where_it_listens(config):
    found = config('lecturers = ["smith"]\n')
    assert found.Authenticator.allowed_users == {"ada", "bob", "smith"}
    assert "allow_all" not in found.Authenticator
    assert found.JupyterHub.bind_url == "http://127.0.0.1:8000" and found.JupyterHub.internal_ssl
    assert found.Spawner.ip == found.JupyterHub.hub_ip == "127.0.0.1"
    assert "--KernelManager.transport=ipc" in found.Spawner.args
    found = config('lecturers = ["smith"]\n', who='group = "students"')
    assert found.Authenticator.allowed_users == {"smith"} and found.LocalAuthenticator.allowed_groups == {"students"}
    found = config('address = "192.0.2.1"\ncertificate = "c"\nkey = "k"\nopen = true\n')
    assert found.JupyterHub.bind_url == "https://192.0.2.1:8000" and found.JupyterHub.ssl_key.endswith("/k")


@pytest.fixture
def student(tmp_path, monkeypatch):
    """An account of this user's, whose home is in a folder of the test."""
    user = SimpleNamespace(pw_name="ada", pw_dir=str(tmp_path / "home"), pw_uid=os.getuid(), pw_gid=os.getgid())
    monkeypatch.setattr(pwd, "getpwnam", lambda name: user)
    (tmp_path / "home").mkdir(mode=0o755)
    return user


def spawner(config, kind: type, **traits):
    return kind(user=SimpleNamespace(name="ada", id=1, url="/", settings={}), config=config, **traits)


def test_limits_of_a_process_hold_for_its_children(config, student, monkeypatch):
    server = spawner(config('memory = "1G"\nprocesses = 300\nemulated_cards = 0\n'), class_spawner.LimitedSpawner)
    monkeypatch.setattr("jupyterhub.spawner.set_user_setuid", lambda name, **options: lambda: None)
    code = (
        "import os, resource, subprocess, sys\n"
        "print(resource.getrlimit(resource.RLIMIT_DATA), resource.getrlimit(resource.RLIMIT_NPROC)[1],\n"
        "      resource.getrlimit(resource.RLIMIT_CORE)[1], len(os.sched_getaffinity(0)),\n"
        "      resource.getrlimit(resource.RLIMIT_FSIZE)[0], flush=True)\n"
        "subprocess.run([sys.executable, '-c', 'bytearray(1 << 31)'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], preexec_fn=server.make_preexec_fn("ada"), capture_output=True, text=True
    )
    assert done.stdout.split("\n")[0] == f"({1 << 30}, {1 << 30}) 300 0 1 -1" and "MemoryError" in done.stderr
    assert resource.getrlimit(resource.RLIMIT_NPROC)[1] != 300  # ours are as they were


def test_home_and_sockets_are_the_student_s_alone(config, student, tmp_path, monkeypatch):
    monkeypatch.setattr(class_spawner.LocalProcessSpawner, "get_env", lambda self: {})
    server = spawner(config(f'runtime = "{tmp_path / "run"}"\n'), class_spawner.LimitedSpawner)
    server.make_private()
    (server.private / "left").touch()
    server.make_private()
    assert list(server.private.iterdir()) == []
    for folder in (tmp_path / "home", server.private):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert server.get_env()["JUPYTER_RUNTIME_DIR"] == str(server.private)
    student.pw_uid += 1
    with pytest.raises(PermissionError, match="does not belong to ada"):
        server.make_private()
    (tmp_path / "home").rename(tmp_path / "away")
    (tmp_path / "home").symlink_to(tmp_path / "away")
    with pytest.raises(NotADirectoryError):
        server.make_private()


def test_certificates_do_not_follow_a_student_s_links(config, student, tmp_path):
    import asyncio

    server = spawner(config(f'runtime = "{tmp_path / "run"}"\n'), class_spawner.LimitedSpawner)
    server.make_private()
    (tmp_path / "ada.key").write_text("secret")
    (tmp_path / "home" / ".jupyterhub").symlink_to(tmp_path)
    moved = asyncio.run(server.move_certs({"keyfile": str(tmp_path / "ada.key")}))
    assert Path(moved["keyfile"]).read_text() == "secret" and Path(moved["keyfile"]).parent == server.private
    assert stat.S_IMODE(Path(moved["keyfile"]).stat().st_mode) == 0o400
