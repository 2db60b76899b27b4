"""`topics sql`: query topics and lakes, from the command line or at a prompt."""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from time import sleep
from typing import TYPE_CHECKING, TextIO

from topics.cli import connect as targets
from topics.cli.options import add_parser, one_of, option
from topics.cli.output.failures import EXIT_DONE, EXIT_INTERRUPTED, Failure, usage
from topics.cli.output.screen import Screen
from topics.cli.output.units import parse_count
from topics.cli.pipeline import TOKENS, setting
from topics.cli.tree import Subparsers
from topics.installation import install_command, is_installed
from topics.plurals import counted

if TYPE_CHECKING:
    from topics.spark.sql.tables import Tables

FORMS = ("table", "json", "jsonl", "csv", "arrays")
SPARK, DUCKDB = "spark", "duckdb"
LOOK_S = 0.1
CANCEL_S = 10.0  # time for an interrupted query to stop
SHOWN_CHARS = 60  # of a statement in an error message
EPILOG = """\
examples:
  topics sql "select tag, count(*) from orders group by tag"
  topics sql "select data.sku, sum(data.qty) as sold from orders where ts > now() - interval 1 day group by 1" --csv
  topics sql --lake /lake "select count(*) from orders"          only the lake
  topics sql --lake /lake --url http://127.0.0.1:4000 "…"         lake and server as one history
  topics sql                                                     a prompt
"""


def register(subparsers: Subparsers) -> None:
    parser = add_parser(
        subparsers,
        "sql",
        "",
        option(
            "[QUERY]", "statements, separated by semicolons and run in order; - reads them from standard input",
            metavar="query",
        ),
        lambda to: targets.add_address(to, "address of the server; none if only --lake or --path is given"),
        option("--lake DIR", "lake: alone, or with --url for records that the server no longer has"),
        option(
            "--storage-option KEY=VALUE", "setting of the object store of a lake; repeatable",
            action="append", type=setting, default=[],
        ),
        option("--path DIR", "data directory of a stopped server, or a backup"),
        TOKENS,
        one_of(
            option("--format", "output format [%(default)s]", choices=FORMS, default="table"),
            option("--json", "print one JSON array of objects", dest="format", action="store_const", const="json"),
            option("--csv", "print CSV with a header line", dest="format", action="store_const", const="csv"),
            option("--parquet FILE", "write the rows of one statement to a Parquet file"),
        ),
        one_of(
            option("--duckdb", "answer in this process", dest="engine", action="store_const", const=DUCKDB),
            option("--spark", "answer through Spark [if installed]", dest="engine", action="store_const", const=SPARK),
        ),
        option("--no-files", "--duckdb: refuse functions that read files of this machine, such as read_csv"),
        option("--watch DURATION", "run one statement again after this time, until Ctrl-C"),
        option("--limit N", "maximum rows per statement", type=parse_count),
        option("--gaps", "continue at lost records, with a row of kind gap (columns kind, gap_to, reason)"),
        option("--master M", "Spark master [local[*]]"),
        details="Without a query, starts a prompt.",
        epilog=EPILOG,
    )  # fmt: skip
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Return the exit status: 0 success, 1 a query failed, 2 invalid arguments or statement, 130 interrupted."""
    try:
        engine = _engine(args)
        from topics.spark.sql.text import split

        options, is_prompt = _options(args), args.query is None and sys.stdin.isatty()
        statements = [] if is_prompt else split(sys.stdin.read() if args.query in (None, "-") else args.query)
        if not statements and not is_prompt:
            raise usage("there is no statement to run; pass one as an argument or on standard input")
        if len(statements) != 1 and (args.parquet is not None or args.watch is not None or args.format == "arrays"):
            raise usage("--parquet, --watch and --format arrays: pass one statement")
        _check(options, statements)
        with warnings.catch_warnings(), ENGINES[engine](options, args) as tables:
            warnings.simplefilter("ignore")  # pyspark warns about package versions newer than itself
            if is_prompt:
                return _prompt(tables, args)
            if args.watch is not None:
                _watch(tables, statements[0], args)
            for number, statement in enumerate(statements, 1):
                with _named(number, statements):
                    answer(tables, statement, args)
            return EXIT_DONE
    except (Failure, BrokenPipeError):
        raise
    except ImportError as error:
        raise Failure(f"sql needs more packages: {error}", next_step=install_command("sql")) from None
    except KeyboardInterrupt:
        if args.watch is None:
            raise Failure("interrupted", status=EXIT_INTERRUPTED) from None
        return EXIT_DONE
    except Exception as error:
        raise _failure_of(error, args) from None


def _engine(args: argparse.Namespace) -> str:
    """Return the engine of the arguments; without one, Spark if it is installed."""
    asked = args.engine
    if asked is None:
        args.engine = SPARK if args.master is not None or is_installed("pyspark") else DUCKDB
    if not is_installed("pyspark" if args.engine == SPARK else "duckdb"):
        name, extra = ("Spark", "spark") if args.engine == SPARK else ("DuckDB" if asked else "DuckDB or Spark", "sql")
        raise Failure(f"sql needs {name}, which is not installed", next_step=install_command(extra))
    if args.engine == SPARK and args.no_files:
        raise usage("--no-files: Spark has no such limit; add --duckdb")
    if args.engine == DUCKDB and args.master is not None:
        raise usage("--master: only Spark has a master; remove --duckdb")
    return str(args.engine)


def _watch(tables: Tables, statement: str, args: argparse.Namespace) -> None:
    """Run a statement again and again, until Ctrl-C. On a terminal each answer replaces the one before."""
    while True:
        began_s = time.monotonic()
        shown = io.StringIO()
        answer(tables, statement, args, shown)
        if sys.stdout.isatty():
            print(f"\x1b[H\x1b[2J{datetime.now():%H:%M:%S}  {' '.join(statement.split())}\n")
        print(shown.getvalue(), end="" if args.format != "table" else "\n", flush=True)
        sleep(max(args.watch / 1000 - (time.monotonic() - began_s), 0))


@contextmanager
def _named(number: int, statements: list[str]) -> Iterator[None]:
    """Add the number of the statement to its error if there are several."""
    try:
        yield
    except Exception as error:
        if (count := len(statements)) > 1:
            start = " ".join(statements[number - 1].split())
            shown = start if len(start) <= SHOWN_CHARS else start[: SHOWN_CHARS - 1] + "…"
            rest = f", {count - number} more not run" if number < count else ""
            error.add_note(f"statement {number} of {count} ({shown}){rest}")
        raise


def _check(options: dict[str, str], statements: list[str]) -> None:
    """Check the options and the topics of the first statement before Spark starts, so that mistakes fail fast.

    Later statements are checked when they run, because earlier ones run in any case.
    """
    from topics.spark.options import read_options
    from topics.spark.sql.tables import check, names_of

    read_options({**options, "subscribe": "t"})
    names = names_of({**options, "retries": "1"})
    if statements:
        with _named(1, statements):
            check(statements[0], names)


def _prompt(tables: Tables, args: argparse.Namespace) -> int:
    """Read and run statements until the end of input. Print errors and continue."""
    for statement in prompt_statements(tables.words, f"Topics are tables, {tables.engine} answers."):
        try:
            answer(tables, statement, args)
        except KeyboardInterrupt:
            print("interrupted")
        except BrokenPipeError:
            raise
        except Exception as error:
            failure = _failure_of(error, args)
            Screen().fail(str(failure), failure.next_step)
    return EXIT_DONE


def answer(tables: Tables, statement: str, args: argparse.Namespace, out: TextIO | None = None) -> None:
    """Run a statement and print its rows, in a thread. Cancel its Spark jobs on Ctrl-C.

    A Ctrl-C during a call to the JVM would break the connection, so the main thread only waits. It waits for an event,
    because an interrupted `Thread.join` treats a running thread as ended (Python 3.11).
    """
    from topics.spark.sql.show import lines, write_parquet

    failure: list[BaseException] = []
    ended = threading.Event()

    def run() -> None:
        try:
            found = tables.run(statement)
            for note in found.notes:
                print(f"note: {note}", file=sys.stderr)
            if args.parquet is not None:
                print(f"{args.parquet}: {counted(write_parquet(found, args.parquet, limit=args.limit), 'row')}")
            for line in lines(found, args.format, limit=args.limit) if args.parquet is None else ():
                print(line, file=out)
            sys.stdout.flush()
        except BaseException as error:
            failure.append(error)
        finally:
            ended.set()

    threading.Thread(target=run, daemon=True).start()
    try:
        while not ended.wait(LOOK_S):
            pass
    except KeyboardInterrupt:
        # Spark starts a statement's jobs one after the other: one that starts after a cancel is cancelled by the next.
        give_up_s = time.monotonic() + CANCEL_S
        while not ended.is_set() and time.monotonic() < give_up_s:
            tables.cancel()
            ended.wait(LOOK_S)
        raise
    if failure:
        raise failure[0]


@contextmanager
def _on_duckdb(options: dict[str, str], args: argparse.Namespace) -> Iterator[Tables]:
    from topics.spark.sql.on_duckdb import DuckTables

    with closing(DuckTables(options, gaps=args.gaps, files=not args.no_files)) as tables:
        yield tables


@contextmanager
def _on_spark(options: dict[str, str], args: argparse.Namespace) -> Iterator[Tables]:
    """Yield the tables of the active Spark session, or of a new one that writes nothing to the working directory."""
    from pyspark.sql import SparkSession

    from topics.spark import warm
    from topics.spark.jvm import SESSION, quiet_start
    from topics.spark.pipelines.run.report import progress_for
    from topics.spark.spark_session import register as known_to
    from topics.spark.spark_session import session
    from topics.spark.sql.on_spark import SparkTables

    running = SparkSession.getActiveSession()
    if running is None and args.master is None and (state := warm.usable()) is not None:
        running = warm.connect(state, "topics sql")
    if running is not None:
        yield SparkTables(known_to(running), options, gaps=args.gaps)
        return
    progress = progress_for()
    progress.step(warm.STARTING)
    with tempfile.TemporaryDirectory(prefix="topics-sql-") as folder:
        config = {**SESSION, "spark.sql.warehouse.dir": folder, "spark.sql.shuffle.partitions": 8}
        with quiet_start():
            spark = session("topics sql", master=args.master or "local[*]", config=config)
        progress.close()
        try:
            yield SparkTables(spark, options, gaps=args.gaps)
        finally:
            spark.stop()


ENGINES = {SPARK: _on_spark, DUCKDB: _on_duckdb}


def _options(args: argparse.Namespace) -> dict[str, str]:
    """Return the options of the data source for the arguments. Settings of the object store go to the environment."""
    if args.storage_option:
        from topics.lake.storage import set_options

        set_options(dict(args.storage_option))
    if args.url or args.context or (args.lake is None and args.path is None):
        chosen = targets.choose(args, os.environ)
        args.url, args.token_file = chosen.url, chosen.token_file
    given = {"url": args.url, "lake": args.lake, "path": args.path, "token": args.token, "tokenFile": args.token_file}
    options = {name: value for name, value in given.items() if value is not None}
    if args.lake is not None and args.url is None:
        options["lakeOnly"] = "true"
    return options


def _failure_of(error: Exception, args: argparse.Namespace) -> Failure:
    """Return what is reported for an error: what to do next, too, unless the statement itself is wrong."""
    from topics.spark.failures import FailureKind, explain, kind_of, next_step
    from topics.spark.sql.text import BadQuery

    if os.environ.get("TOPICS_TRACEBACK"):
        raise error
    text, kind, step = explain(error), kind_of(error), ""
    if "are lost (" in text:
        text, step = text.partition("; with failOnDataLoss")[0], _after_loss(args)
    elif not isinstance(error, BadQuery) and kind is not FailureKind.FAILED:
        step = next_step(error).partition(", then run")[0]
    message = ": ".join([*getattr(error, "__notes__", ()), text])
    return Failure(message, status=kind.exit_status, next_step=step)


def _after_loss(args: argparse.Namespace) -> str:
    if args.lake is None:
        return "pass --lake to read archived records, or --gaps to continue without the lost ones"
    if args.url is None:
        return "the lake lacks these records: pass --url to read them from a server, or --gaps to continue without them"
    return "neither the server nor the lake has these records: pass --gaps to continue without them"


# --- the prompt: statements on one or several lines, with a history and completion

HISTORY = "~/.topics_sql_history"
HISTORY_LINES = 1000
PROMPT, MORE = "topics> ", "     -> "
QUIT, ASK_HELP = ("quit", "exit", "\\q"), ("help", "\\h", "?")
HELP = """\
  select …;           a query, on one or several lines; ends with a semicolon
  show tables;        list the tables
  describe orders;    list the columns of a table and the fields of its data
  help, quit          print this text; end the prompt (also Ctrl-D)

Tab completes names. Every topic is a table with the columns topic, seq, ts, node, tag, meta, data. Use paths for fields
of data and meta: data.customer.name, data.items[0].qty. `from orders.*` reads all topics that start with "orders.".
"""
KEYWORDS = (
    "select", "from", "where", "group by", "order by", "limit", "join", "left join", "on", "as", "and", "or", "not",
    "is null", "in", "like", "between", "having", "union all", "with", "case when", "count(*)", "sum(", "min(", "max(",
    "avg(", "distinct", "show tables", "describe", "desc", "interval", "now()",
)  # fmt: skip


def prompt_statements(words: Callable[[], list[str]], greeting: str) -> Iterator[str]:
    """Yield the statements that are typed, until quit or the end of input. `words` returns the names to complete."""
    from topics.spark.sql.text import is_whole, split

    print(f"{greeting} End statements with a semicolon. Type help; or quit;.")
    held = ""
    with _line_editing(words):
        while True:
            try:
                line = input(MORE if held else PROMPT)
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print()
                held = ""
                continue
            word = "" if held else line.strip().rstrip(";").lower()
            if word in QUIT:
                return
            if word in ASK_HELP:
                print(HELP)
                continue
            held = f"{held}\n{line}" if held else line
            if is_whole(held):
                yield from split(held)
                held = ""
            elif not held.strip():
                held = ""


def completions(words: list[str], begun: str) -> list[str]:
    """Return the keywords and names that begin so, whatever their case."""
    return [word for word in (*KEYWORDS, *words) if word.lower().startswith(begun.lower())]


@contextmanager
def _line_editing(words: Callable[[], list[str]]) -> Iterator[None]:
    """Load and save the history, and complete names, if this Python has readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    found: list[str] = []

    def complete(begun: str, state: int) -> str | None:
        if state == 0:
            found.clear()
            with suppress(Exception):  # a server that does not answer must not end the prompt
                found.extend(completions(words(), begun))
        return found[state] if state < len(found) else None

    path = os.path.expanduser(HISTORY)
    with suppress(OSError):
        readline.read_history_file(path)
    readline.set_completer(complete)
    readline.set_completer_delims(re.sub(r"[.:\-*]", "", readline.get_completer_delims()))  # these are part of names
    is_libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
    try:
        yield
    finally:
        readline.set_completer(None)
        with suppress(OSError):
            readline.set_history_length(HISTORY_LINES)
            readline.write_history_file(path)
