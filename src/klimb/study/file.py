"""The file of a study: schema, migrations, transactions, and what goes wrong with files, in words.

One SQLite file. While a study is open, two more stand beside it: ``-wal``, the log of what is new, and
``-shm``. The last process to close the study leaves one file again.
"""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

# "klmb": tells a study from any other SQLite file
APPLICATION_ID = 0x6B6C6D62

# How long to wait for another process that writes; an update of very many parameters takes its time.
BUSY_SECONDS = 60.0

# The log is brought into the file proper when it is longer than this.
LARGEST_LOG = 4 * 2**20

# A sample is written once; a trial, one run of it, changes as it is handed out, told and learned from, and
# stays small however many parameters there are. The view is for people and other programs.
FIRST_VERSION = """
CREATE TABLE study (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    uid TEXT NOT NULL,
    created TEXT NOT NULL,
    klimb TEXT NOT NULL,
    algorithm TEXT NOT NULL,
    measure TEXT,
    n_parameters INTEGER NOT NULL CHECK (n_parameters > 0),
    batch INTEGER NOT NULL CHECK (batch > 1),
    repeats INTEGER NOT NULL CHECK (repeats > 0),
    seed TEXT NOT NULL,
    outside TEXT NOT NULL CHECK (outside IN ('resample', 'clip')),
    names TEXT,
    run TEXT,
    low BLOB,
    high BLOB
);
CREATE TABLE state (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    iteration INTEGER NOT NULL,
    optimizer BLOB NOT NULL
);
CREATE TABLE updates (
    number INTEGER PRIMARY KEY CHECK (number > 0),
    made TEXT NOT NULL,
    episodes INTEGER NOT NULL,
    n_used INTEGER NOT NULL,
    n_failed INTEGER NOT NULL,
    mean_return REAL NOT NULL,
    best_return REAL NOT NULL,
    kl REAL NOT NULL,
    entropy REAL NOT NULL,
    entropy_drop REAL NOT NULL,
    eta REAL,
    omega REAL,
    temperature REAL,
    effective_sample_size REAL,
    informative INTEGER NOT NULL,
    mean BLOB NOT NULL,
    std BLOB NOT NULL,
    effectiveness BLOB,
    selected BLOB
);
CREATE TABLE samples (
    id INTEGER PRIMARY KEY CHECK (id > 0),
    iteration INTEGER NOT NULL,
    position INTEGER,
    origin TEXT NOT NULL CHECK (origin IN ('asked', 'inserted', 'imported')),
    bounds TEXT NOT NULL CHECK (bounds IN ('inside', 'resampled', 'clipped', 'outside')),
    parameters BLOB NOT NULL,
    drawn BLOB,
    UNIQUE (iteration, position)
);
CREATE TABLE trials (
    id INTEGER PRIMARY KEY CHECK (id > 0),
    sample INTEGER NOT NULL REFERENCES samples (id),
    repeat INTEGER NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('pending', 'done', 'failed')),
    return REAL CHECK ((return IS NOT NULL) = (status = 'done')),
    reason TEXT CHECK (status = 'failed' OR reason IS NULL),
    seed TEXT,
    asked TEXT,
    told TEXT CHECK ((told IS NULL) = (status = 'pending')),
    issued INTEGER NOT NULL,
    used INTEGER REFERENCES updates (number),
    extra TEXT,
    UNIQUE (sample, repeat)
);
CREATE INDEX pending ON trials (asked, id) WHERE status = 'pending';
CREATE INDEX unused ON trials (used, sample, status) WHERE used IS NULL;
CREATE VIEW episodes AS SELECT
    trials.id AS episode, sample, iteration, position, repeat, origin, status, return, reason, bounds, seed,
    asked, told, issued, used AS "update", extra, parameters, drawn
    FROM trials JOIN samples ON samples.id = trials.sample;
"""

# Baselines: whose search distribution nobody knows, and whose updates may rest on failed episodes alone.
SECOND_VERSION = """
CREATE TABLE new_study (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    uid TEXT NOT NULL,
    created TEXT NOT NULL,
    klimb TEXT NOT NULL,
    algorithm TEXT NOT NULL,
    learner TEXT NOT NULL CHECK (learner IN ('optimizer', 'conversation', 'agent')),
    measure TEXT,
    n_parameters INTEGER NOT NULL CHECK (n_parameters > 0),
    batch INTEGER NOT NULL CHECK (batch > 0),
    repeats INTEGER NOT NULL CHECK (repeats > 0),
    seed TEXT NOT NULL,
    outside TEXT NOT NULL CHECK (outside IN ('resample', 'clip')),
    names TEXT,
    run TEXT,
    low BLOB,
    high BLOB
);
INSERT INTO new_study SELECT
    one, uid, created, klimb, algorithm, 'optimizer', measure, n_parameters, batch, repeats, seed, outside,
    names, run, low, high
    FROM study;
DROP TABLE study;
ALTER TABLE new_study RENAME TO study;
CREATE TABLE new_updates (
    number INTEGER PRIMARY KEY CHECK (number > 0),
    made TEXT NOT NULL,
    episodes INTEGER NOT NULL,
    n_used INTEGER NOT NULL,
    n_failed INTEGER NOT NULL,
    mean_return REAL,
    best_return REAL NOT NULL,
    kl REAL,
    entropy REAL,
    entropy_drop REAL,
    eta REAL,
    omega REAL,
    temperature REAL,
    effective_sample_size REAL,
    informative INTEGER NOT NULL,
    mean BLOB NOT NULL,
    std BLOB,
    effectiveness BLOB,
    selected BLOB
);
INSERT INTO new_updates SELECT
    number, made, episodes, n_used, n_failed, mean_return, best_return, kl, entropy, entropy_drop, eta, omega,
    temperature, effective_sample_size, informative, mean, std, effectiveness, selected
    FROM updates;
DROP TABLE updates;
ALTER TABLE new_updates RENAME TO updates;
CREATE TABLE mean_policy (
    number INTEGER PRIMARY KEY,
    return REAL NOT NULL
);
"""

# Entry k leads from version k to version k + 1. Entries are never changed, only added.
MIGRATIONS: list[str] = [FIRST_VERSION, SECOND_VERSION]

INSERT_SAMPLE = (
    "INSERT INTO samples (id, iteration, position, origin, bounds, parameters, drawn) "
    "VALUES (?, ?, ?, ?, ?, ?, ?)"
)


class StudyError(RuntimeError):
    """A study cannot go on, through no fault of the call: damaged, busy, disk full, or no update possible."""


def damaged(path: Path, what: object) -> StudyError:
    """The error for contents that no klimb wrote."""
    return StudyError(
        f"{path} is damaged ({what}). Restore a copy, or save what can be read with: "
        f'sqlite3 "{path}" .recover | sqlite3 rescued.db'
    )


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn errors of SQLite into sentences: ValueError where the call is wrong, else StudyError."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest tells kinds of these apart
        if code == sqlite3.SQLITE_FULL:
            what = f"{path} cannot grow: the disk is full. The study is as it was; make room and try again."
            raise StudyError(what) from None
        if code == sqlite3.SQLITE_IOERR:
            raise StudyError(
                f"{path} cannot be read or written ({error}): the disk is full or failing. The study is as "
                "it was; try again once that is mended."
            ) from None
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise StudyError(
                f"{path} has been kept busy by another process for {BUSY_SECONDS:g} s. Nothing was changed; "
                "try again, or end that process."
            ) from None
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
            raise ValueError(f"{path} cannot be opened or written: {error}.") from None
        if code == sqlite3.SQLITE_NOTADB:
            raise not_a_study(path) from None
        if code == sqlite3.SQLITE_NOMEM:
            raise MemoryError(f"no memory left for {path}.") from None
        if isinstance(error, sqlite3.ProgrammingError) and not code:
            raise ValueError(f"the study {path} cannot be used: {error}") from None
        raise damaged(path, error) from None
    except (TypeError, LookupError, ArithmeticError, AttributeError) as error:
        # calls are checked before a transaction begins: what fits no type now comes from the file
        raise damaged(path, f"{type(error).__name__}: {error}") from error


def is_study(path: Path) -> bool:
    """Whether a file says that it is a study, in SQLite's header."""
    try:
        if not path.is_file():  # a pipe would keep us waiting
            return False
        with open(path, "rb") as file:
            header = file.read(72)
    except OSError:
        return False
    return header[:16] == b"SQLite format 3\0" and header[68:72] == APPLICATION_ID.to_bytes(4, "big")


def not_a_study(path: Path) -> ValueError:
    """The error for a file of another kind."""
    return ValueError(f"{path} is not a study; make one with: klimb study create FILE")


def log_of(path: Path) -> Path:
    """Where SQLite keeps what is new: beside the file itself, not beside a link to it."""
    return Path(f"{os.path.realpath(path)}-wal")


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """A connection without transactions of its own; `mode` as in SQLite's URIs."""
    connection = sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?{mode}", uri=True, timeout=BUSY_SECONDS, isolation_level=None
    )
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")  # what was told survives a loss of power
        connection.execute("PRAGMA cell_size_check = ON")
        connection.execute("PRAGMA trusted_schema = OFF")
        # bringing the log into the file costs two more syncs: see File.writing
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("PRAGMA journal_size_limit = 0")
    except BaseException:
        connection.close()
        raise
    return connection


def open_file(path: Path) -> tuple[sqlite3.Connection, bool]:
    """Open the study at `path`, brought to this klimb's version; and whether it can be written."""
    if not path.exists():
        raise FileNotFoundError(f"there is no study at {path}; make one with: klimb study create {path}")
    if not path.is_file():
        raise not_a_study(path)
    if not os.access(path, os.R_OK):
        raise ValueError(f"{path} cannot be read: permission denied.")
    # SQLite makes its two other files beside the study, so that the directory counts as well
    writable = os.access(path, os.W_OK) and os.access(Path(os.path.realpath(path)).parent, os.W_OK)
    unlogged = not log_of(path).exists()
    with explained(path):
        mode = "mode=rw" if writable else "mode=ro&immutable=1" if unlogged else "mode=ro"
        connection = connect(path, mode)
        try:
            migrate(connection, path, writable)
        except BaseException:
            connection.close()
            raise
    return connection, writable


def migrate(connection: sqlite3.Connection, path: Path, writable: bool) -> None:
    """Bring an older study to this version in one transaction; refuse what is none, or is newer."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    version, newest = schema_version(connection), len(MIGRATIONS)
    if application != APPLICATION_ID or version < 1:
        raise not_a_study(path)
    if version > newest:
        raise ValueError(
            f"{path} was made by a newer klimb (its version is {version}, this klimb reads up to {newest}); "
            "upgrade klimb."
        )
    if version == newest:
        return
    if not writable:
        raise ValueError(
            f"{path} was made by an older klimb and is read-only; copy it to where it can be written, and "
            "open the copy."
        )
    # while a table is replaced, what refers to it would be in the way; a transaction cannot change this
    connection.execute("PRAGMA foreign_keys = OFF")
    with transaction(connection):
        for migration in MIGRATIONS[schema_version(connection) :]:  # another process may have been faster
            run_script(connection, migration)
        if connection.execute("PRAGMA foreign_key_check").fetchall():
            raise damaged(path, "rows refer to rows that are not there")
        connection.execute(f"PRAGMA user_version = {newest}")
    connection.execute("PRAGMA foreign_keys = ON")


def schema_version(connection: sqlite3.Connection) -> int:
    """Version of the file; 0 if it is no study."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def run_script(connection: sqlite3.Connection, script: str) -> None:
    """Run statements within the transaction at hand, which sqlite3's executescript would end."""
    for statement in script.split(";"):
        if statement.strip():
            connection.execute(statement)


def create_file(path: Path, fill: Callable[[sqlite3.Connection], None]) -> None:
    """Make a new study, filled by `fill`: it is there complete or not at all."""
    if path.exists() or path.is_symlink():
        raise ValueError(f"{path} exists already: choose another name, or remove it.")
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}.part")
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}.") from None
    try:
        with explained(path):
            connection = connect(part, "mode=rw")
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                with transaction(connection):
                    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
                    for migration in MIGRATIONS:
                        run_script(connection, migration)
                    fill(connection)
            finally:
                connection.close()
        _publish(part, path)
    finally:
        for ending in ("", "-wal", "-shm"):
            Path(f"{part}{ending}").unlink(missing_ok=True)


def _publish(part: Path, path: Path) -> None:
    """Give the finished file its name, unless that was taken meanwhile, for good."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise ValueError(f"{path} exists already: choose another name, or remove it.") from None
    except OSError:  # a file system without links
        os.rename(part, path)
    with suppress(OSError):  # not every system can sync a directory
        directory = os.open(path.absolute().parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


@contextmanager
def transaction(connection: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    """All or nothing. "IMMEDIATE" waits for its turn to write; "DEFERRED" reads one state of the file."""
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            with suppress(sqlite3.Error):  # the first error is the one to tell
                connection.execute("ROLLBACK")
        raise


class File:
    """An open study file: statements, and the transactions that they belong in."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._log = log_of(path)
        self._process = os.getpid()
        self._connection, self._writable = open_file(path)

    def close(self) -> None:
        """Let go of the file."""
        if os.getpid() == self._process:
            self._connection.close()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A transaction that sees one state of the file."""
        self._check_process()
        with explained(self.path), transaction(self._connection, "DEFERRED"):
            yield

    @contextmanager
    def writing(self, *, tidied: bool = False) -> Iterator[None]:
        """A transaction that changes the file, all or nothing; `tidied` cares for the log before."""
        self._check_process()
        if not self._writable:
            raise ValueError(
                f"{self.path} is read-only: make the file and its directory writable, or work on a copy."
            )
        with explained(self.path):
            if tidied:
                self._tidy()
            with transaction(self._connection):
                yield

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Contents that make no sense are damage."""
        try:
            yield
        except (StudyError, ImportError):
            raise
        except Exception as error:
            raise damaged(self.path, str(error) or type(error).__name__) from None

    def all(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """All rows."""
        return self._connection.execute(statement, values).fetchall()

    def one(self, statement: str, *values: Any) -> tuple[Any, ...]:
        """The one row there must be."""
        rows = self.all(statement, *values)
        if not rows:
            raise damaged(self.path, "a row is missing")
        return rows[0]

    def rows(self, statement: str, *values: Any) -> sqlite3.Cursor:
        """Row by row, for what may not fit into memory."""
        return self._connection.execute(statement, values)

    def change(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Run a statement for each of the rows of values."""
        self._connection.executemany(statement, rows)

    def insert(self, table: str, row: Mapping[str, Any]) -> None:
        """Add a row."""
        insert(self._connection, table, row)

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise ValueError(
                "a study that was opened before a fork must not be used after it: open it in each process."
            )

    def _tidy(self) -> None:
        """Bring a long log into the file proper.

        Before the transaction of an ask: so that, not a tell, pays for it and for the fresh log's header.
        """
        try:
            size = self._log.stat().st_size
        except OSError:
            return
        if size > LARGEST_LOG:
            self.all("PRAGMA wal_checkpoint(PASSIVE)")


def insert(connection: sqlite3.Connection, table: str, row: Mapping[str, Any]) -> None:
    """Add a row to a table."""
    places = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})", tuple(row.values()))
