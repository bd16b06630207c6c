"""Make a server's data directory and the command line that serves it."""

import os
import secrets
import shutil
import tempfile
from pathlib import Path
from threading import Event

from tests.servers import net
from tests.servers.binaries import Program
from tests.servers.process import StepFailed, run_logged, unprivileged_user
from tests.servers.state import Record

ACCOUNT = "jobqueue"
DATABASE = "jobqueue"
# Far from UTC and from each other, so that a time handled wrongly shows up.
_TIME_ZONES = {"mysql": "+09:00", "mariadb": "-08:00", "postgres": "Asia/Seoul"}
_MARIADB_SHARES = ("/usr/share/mysql", "/usr/share/mariadb")
_MARIADB_SCRIPTS = (
    "*_system_tables.sql",
    "*_performance_tables.sql",
    "*_system_tables_data.sql",
    "fill_help_tables.sql",
    "*_add_gis_sp_bootstrap.sql",
    "*_sys_schema.sql",
)
_APPARMOR_PROFILE = Path("/etc/apparmor.d/usr.sbin.mysqld")


def new_record(kind: str, program: Program, provided: str) -> Record:
    """Create the directory of a new server and return a record that has everything but a command."""
    if program.root:
        base = program.root / "var/lib" / f"jobqueue-{secrets.token_hex(6)}"
        base.mkdir(mode=0o700)
    else:
        base = Path(tempfile.mkdtemp(prefix=f"jobqueue-{kind}-"))
    user = "root" if os.geteuid() == 0 else ""
    if kind == "postgres" and (user := unprivileged_user()):
        shutil.chown(base, user)
    return Record(
        kind=kind,
        provided=provided,
        version=program.version,
        base=str(base),
        datadir=str(base / "data"),
        log=str(base / "server.log"),
        user=user,
    )


def initialise(record: Record, program: Program, cancel: Event) -> None:
    """Fill the data directory, and set the record's URL without a port."""
    password = secrets.token_urlsafe(18)
    if record.kind == "postgres":
        _initialise_postgres(record, program, password, cancel)
    elif record.kind == "redis":
        Path(record.datadir).mkdir()
        _server_link(record, program)
    elif record.kind == "mysql":
        _initialise_mysql(record, program, password, cancel)
    else:
        _initialise_mariadb(record, program, password, cancel)
    scheme = "mysql" if record.kind == "mariadb" else record.kind
    path = f"{ACCOUNT}:{password}@{net.HOST}:%d/{DATABASE}"
    record.url = f"redis://{net.HOST}:%d/0" if record.kind == "redis" else f"{scheme}://{path}"


def assign_port(record: Record, program: Program, port: int) -> None:
    """Set the command line for a port, and everything of the record that depends on it."""
    builders = {"mysql": _mysql, "mariadb": _mariadb, "postgres": _postgres, "redis": _redis}
    record.command = builders[record.kind](record, program, port)
    prefix, _, path = record.url.rpartition(":")
    record.url = f"{prefix}:{port}/{path.partition('/')[2]}"
    record.port = port
    # Of its command line Redis keeps nothing but its own name.
    record.marker = record.command[0] if record.kind == "redis" else _inside(record, program, "data")


def _inside(record: Record, program: Program, name: str) -> str:
    path = Path(record.base, name)
    return f"/{path.relative_to(program.root)}" if program.root else str(path)


def _mysqld(record: Record, program: Program) -> list[str]:
    command = [program.path]
    if program.root:
        command = ["chroot", str(program.root), program.path]
    elif record.kind == "mysql" and program.path == "/usr/sbin/mysqld" and _APPARMOR_PROFILE.exists():
        # Ubuntu's AppArmor profile of that path allows no data directory but the system's own.
        copy = Path(record.base, "mysqld")
        if not copy.exists():
            shutil.copy2(program.path, copy)
        command = [str(copy), "--no-defaults", "--basedir=/usr"]
    if "--no-defaults" not in command:
        command.append("--no-defaults")
    user = [f"--user={record.user}"] if record.user else []
    return [*command, *user, f"--datadir={_inside(record, program, 'data')}"]


def _accounts(password: str) -> str:
    # One statement per line: that is all MariaDB's bootstrap mode understands.
    return (
        f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4;\n"
        f"CREATE USER '{ACCOUNT}'@'%' IDENTIFIED BY '{password}';\n"
        f"GRANT ALL PRIVILEGES ON *.* TO '{ACCOUNT}'@'%' WITH GRANT OPTION;\n"
    )


def _initialise_mysql(record: Record, program: Program, password: str, cancel: Event) -> None:
    script = Path(record.base, "accounts.sql")
    script.write_text(_accounts(password))
    options = ["--initialize-insecure", f"--init-file={_inside(record, program, 'accounts.sql')}"]
    run_logged([*_mysqld(record, program), *options], Path(record.log), cancel)


def _initialise_mariadb(record: Record, program: Program, password: str, cancel: Event) -> None:
    # What mariadb-install-db does; Debian's server package lacks a program that script calls.
    Path(record.datadir).mkdir()
    script = Path(record.base, "bootstrap.sql")
    parts = ["CREATE DATABASE mysql;\n", "USE mysql;\n", "SET @auth_root_socket=NULL;\n"]
    parts += [path.read_text() for path in _mariadb_scripts(program)]
    # Bootstrap mode refuses account statements until the grant tables are loaded.
    parts += ["FLUSH PRIVILEGES;\n", _accounts(password)]
    script.write_text("".join(parts))
    options = ["--bootstrap", "--max-allowed-packet=8M", "--net-buffer-length=16K", "--skip-log-bin"]
    # Two that are made at the same time would use the same names of temporary tables in /tmp.
    options.append(f"--tmpdir={_inside(record, program, '.')}")
    run_logged([*_mysqld(record, program), *options], Path(record.log), cancel, stdin=script)
    script.unlink()


def _mariadb_scripts(program: Program) -> list[Path]:
    shares = [(program.root or Path("/")) / share.lstrip("/") for share in _MARIADB_SHARES]
    shares.append(Path(program.path).resolve().parents[1] / "share/mysql")
    for share in shares:
        found = [next(iter(sorted(share.glob(pattern))), None) for pattern in _MARIADB_SCRIPTS]
        scripts = [path for path in found if path]
        if len(scripts) == len(_MARIADB_SCRIPTS):
            return scripts
    raise StepFailed("MariaDB's SQL scripts for a new data directory were not found")


def _mysql_common(record: Record, program: Program, port: int) -> list[str]:
    return [
        *_mysqld(record, program),
        f"--port={port}",
        f"--bind-address={net.HOST}",
        f"--socket={_inside(record, program, 'server.sock')}",
        f"--default-time-zone={_TIME_ZONES[record.kind]}",
        "--character-set-server=utf8mb4",
        "--max-connections=400",
    ]


def _mysql(record: Record, program: Program, port: int) -> list[str]:
    return [*_mysql_common(record, program, port), "--loose-mysqlx=OFF", "--secure-file-priv=NULL"]


def _mariadb(record: Record, program: Program, port: int) -> list[str]:
    return _mysql_common(record, program, port)


def _initialise_postgres(record: Record, program: Program, password: str, cancel: Event) -> None:
    base, log, bin_dir = Path(record.base), Path(record.log), Path(program.path).parent
    secret, script = base / "password", base / "database.sql"
    secret.write_text(password)
    script.write_text(f"CREATE DATABASE {DATABASE};\n")
    if record.user:
        shutil.chown(secret, record.user)
    options = ["--encoding=UTF8", "--no-locale", "--auth=scram-sha-256"]
    account = [f"--username={ACCOUNT}", f"--pwfile={secret}"]
    command = [str(bin_dir / "initdb"), "-D", record.datadir, *options, *account]
    run_logged(command, log, cancel, user=record.user, cwd=base, env={"HOME": record.base})
    secret.unlink()
    # In the file, not on the command line: there ALTER SYSTEM in a test could not override them.
    with Path(record.datadir, "postgresql.conf").open("a") as settings:
        settings.write(f"timezone = '{_TIME_ZONES['postgres']}'\nmax_connections = 200\n")
        settings.write(f"listen_addresses = '{net.HOST}'\nunix_socket_directories = '{base}'\n")
    single = [program.path, "--single", "-D", record.datadir, "postgres"]
    run_logged(single, log, cancel, user=record.user, cwd=base, stdin=script)
    if record.user:
        shutil.chown(log, record.user)


def _postgres(record: Record, program: Program, port: int) -> list[str]:
    return [program.path, "-D", record.datadir, "-p", str(port)]


def _server_link(record: Record, program: Program) -> None:
    Path(record.base, "redis-server").symlink_to(program.path)


def _redis(record: Record, program: Program, port: int) -> list[str]:
    address = ["--port", str(port), "--bind", net.HOST]
    persistence = ["--save", "", "--appendonly", "no"]
    return [str(Path(record.base, "redis-server")), *address, *persistence, "--dir", record.datadir]
