#!/usr/bin/env python3
"""Writes a Parquet file of rows as JSON Lines, which Tailrace reads.

    python3 scripts/parquet_to_jsonl.py train.parquet train.jsonl.gz [--columns prompt,reward_model]

All columns are kept: lists and structs become JSON lists and objects, and a column of a chat keeps
its list of messages. Parquet gives each struct of a column the keys of all of them, with null where
it had none; in "arguments" of calls and in "tools" such keys are left out and counted, because a
chat template would write them. NaN and infinite numbers become null, and bytes that are not UTF-8
base64; standard error says how many. Two columns of one name are an error. A name that ends in .gz
is compressed. It needs pyarrow, or pandas with an engine for Parquet, in the Python that runs it.
"""
import argparse
import base64
import datetime
import decimal
import gzip
import json
import math
import os
import sys

BATCH_ROWS = 1024


def fail(text):
    sys.exit(f"parquet_to_jsonl: {text}")


class Changed:
    """Counts values that JSON cannot say as they are, by what becomes of them."""

    NOT_FINITE = "numbers that are NaN or infinite, written as null"
    NOT_TEXT = "values of bytes that are not UTF-8, written as base64"

    def __init__(self):
        self.counts = {}

    def count(self, kind):
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def plain(self, value):
        """The value as JSON can say it."""
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            if math.isfinite(value):
                return value
            self.count(self.NOT_FINITE)
            return None
        if isinstance(value, dict):
            return {str(key): self.plain(item) for key, item in value.items()}
        if isinstance(value, (list, tuple, set)):
            return [self.plain(item) for item in value]
        if isinstance(value, (datetime.date, datetime.time)):
            return value.isoformat()
        if isinstance(value, decimal.Decimal):
            return str(value)
        if isinstance(value, (bytes, bytearray)):
            try:
                return bytes(value).decode("utf-8")
            except UnicodeDecodeError:
                self.count(self.NOT_TEXT)
                return base64.b64encode(bytes(value)).decode("ascii")
        if hasattr(value, "tolist"):  # arrays and numbers of numpy
            return self.plain(value.tolist())
        return str(value)

    def tell(self):
        for kind, count in sorted(self.counts.items()):
            print(f"parquet_to_jsonl: {kind}: {count}", file=sys.stderr)


class NullKeys:
    """Leaves out keys that are null below "arguments" and "tools", and counts them."""

    def __init__(self):
        self.count = 0

    def left_out(self, value, inside=False):
        if isinstance(value, list):
            return [self.left_out(item, inside) for item in value]
        if not isinstance(value, dict):
            return value
        kept = {}
        for key, item in value.items():
            if inside and item is None:
                self.count += 1
            else:
                kept[key] = self.left_out(item, inside or key in ("arguments", "tools"))
        return kept


def rows_of_arrow(parquet, path, columns):
    with parquet.ParquetFile(path) as file:
        check_columns(columns, file.schema_arrow.names)
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=columns or None):
            yield from batch.to_pylist()


def rows_of_pandas(pandas, path, columns):
    frame = pandas.read_parquet(path)
    check_columns(columns, list(frame.columns))
    if columns:
        frame = frame[columns]
    names = list(frame.columns)
    for values in frame.itertuples(index=False, name=None):
        yield dict(zip(names, values))


def check_columns(wanted, present):
    # A row as an object would keep the last of them.
    doubled = sorted({name for name in present if present.count(name) > 1})
    if doubled:
        fail(f"there are several columns with the name {', '.join(doubled)}; rename all but one")
    missing = [name for name in wanted if name not in present]
    if missing:
        fail(f"there is no column {', '.join(missing)}; the file has {', '.join(present)}")


def rows_of(path, columns):
    try:
        import pyarrow.parquet
        return rows_of_arrow(pyarrow.parquet, path, columns)
    except ImportError:
        pass
    try:
        import pandas
        return rows_of_pandas(pandas, path, columns)
    except ImportError:
        fail(
            "neither pyarrow nor pandas is installed for this Python "
            f"({sys.executable}).\n  Try: {sys.executable} -m pip install pyarrow"
        )


def main():
    parser = argparse.ArgumentParser(description="Parquet to JSON Lines")
    parser.add_argument("source", metavar="FILE.parquet")
    parser.add_argument("target", metavar="FILE.jsonl[.gz]")
    parser.add_argument(
        "--columns", default="", metavar="A,B", help="keep these columns alone"
    )
    arguments = parser.parse_args()
    if not os.path.isfile(arguments.source):
        fail(f"{arguments.source} is no file")
    columns = [name for name in arguments.columns.split(",") if name]
    # Written beside the target and renamed at the end: what is there is whole.
    unfinished = f"{arguments.target}.unfinished.{os.getpid()}"
    opener = gzip.open if arguments.target.endswith(".gz") else open
    count = 0
    nulls = NullKeys()
    changed = Changed()
    try:
        rows = rows_of(arguments.source, columns)
        with opener(unfinished, "wt", encoding="utf-8") as out:
            for row in rows:
                row = nulls.left_out(changed.plain(row))
                json.dump(row, out, ensure_ascii=False, allow_nan=False)
                out.write("\n")
                count += 1
        os.replace(unfinished, arguments.target)
    except (OSError, ValueError, ImportError) as error:
        fail(f"{arguments.source}: {error}")
    finally:
        if os.path.exists(unfinished):
            os.remove(unfinished)
    print(f"{arguments.target}: {count} rows")
    changed.tell()
    if nulls.count:
        print(f"keys that are null in arguments or tools, left out: {nulls.count}")


if __name__ == "__main__":
    main()
