"""Reads exported objects back and compares them with their source, column by column.

    python dev/verify.py --source-sql 'SELECT * FROM flights' --format Parquet \\
        --object s3://bucket/flights.parquet

ClickHouse itself reads the objects, through its `s3` table function: code that has nothing to do
with the program that wrote them. The objects' columns are read as the source's types, so that a
timestamp or UUID in text compares equal to a real one, and a lossy one does not.

Exit status: 0 equal, 1 different, 2 no answer.
"""

import argparse
import json
import os
import sys
from dataclasses import dataclass
from urllib.parse import quote

from clickhouse import ClickHouse, ClickHouseError

FORMATS = {"Parquet": "Parquet", "JSONLines": "JSONEachRow"}

# Nothing may be made up for what an object lacks.
STRICT = {
    "input_format_parquet_allow_missing_columns": 0,
    "input_format_null_as_default": 0,
    "input_format_defaults_for_omitted_fields": 0,
    "input_format_skip_unknown_fields": 1,
    "date_time_input_format": "best_effort",
    "input_format_json_read_objects_as_strings": 1,
    "input_format_json_read_arrays_as_strings": 1,
    "s3_throw_on_zero_files_match": 1,
}


@dataclass(frozen=True)
class Column:
    """A column of the source."""

    name: str
    type: str
    # The objects hold JSON values where the source has their text.
    is_json: bool = False

    @property
    def declaration(self) -> str:
        return f"{_identifier(self.name)} {self.type}"

    @property
    def text(self) -> str:
        """An expression that is equal for equal values."""
        name = _identifier(self.name)
        if self.is_json:
            # Order of keys and blanks mean nothing in JSON.
            return f"toString(CAST(ifNull({name}, '{{}}'), 'JSON'))"
        return f"ifNull(toString({name}), '')"

    @property
    def checksum(self) -> str:
        return f"sum(cityHash64(isNull({_identifier(self.name)}), {self.text}))"


@dataclass(frozen=True)
class Objects:
    """The objects to read, and how ClickHouse gets at them."""

    paths: list[str]
    format: str
    compression: str
    endpoint: str | None

    def table(self, structure: str | None = None, output_format: str | None = None) -> str:
        """The objects as one table."""
        return " UNION ALL ".join(
            f"SELECT * FROM {self._function(path, structure, output_format)}" for path in self.paths
        )

    def _function(self, path: str, structure: str | None, output_format: str | None) -> str:
        arguments = [
            self._url(path),
            os.environ.get("AWS_ACCESS_KEY_ID", ""),
            os.environ.get("AWS_SECRET_ACCESS_KEY", ""),
            output_format or FORMATS[self.format],
            structure or "auto",
            self.compression,
        ]
        return f"s3({', '.join(map(_literal, arguments))})"

    def _url(self, path: str) -> str:
        bucket, _, key = path.removeprefix("s3://").partition("/")
        # `*`, `?` and braces would be patterns.
        key = quote(key, safe="/=-_.~ ")
        if self.endpoint:
            return f"{self.endpoint.rstrip('/')}/{bucket}/{key}"
        region = os.environ.get("AWS_REGION", "us-east-1")
        return f"https://{bucket}.s3.{region}.amazonaws.com/{key}"


def main() -> int:
    options = _options()
    objects = Objects(options.object, options.format, options.compression, options.endpoint)
    try:
        report = compare(ClickHouse.from_environment(), options.source_sql, objects)
    except (ClickHouseError, OSError) as error:
        if options.output == "json":
            print(json.dumps({"equal": False, "error": str(error)}))
        print(f"verify: {error}", file=sys.stderr)
        return 2
    print(json.dumps(report, indent=2) if options.output == "json" else _as_text(report))
    return 0 if report["equal"] else 1


def compare(clickhouse: ClickHouse, source_sql: str, objects: Objects) -> dict:
    """Compares names, rows, every column and whole rows."""
    source = f"({source_sql.strip().rstrip(';')})"
    columns = [Column(row["name"], row["type"]) for row in clickhouse.rows(f"DESCRIBE TABLE {source}")]
    report = {"objects": objects.paths, "format": objects.format, "faults": []}
    if objects.format == "JSONLines":
        columns, faults = _check_json_keys(clickhouse, columns, objects)
    else:
        faults = _check_names(clickhouse, columns, objects)
    report["faults"] += faults
    if faults:
        return report | {"equal": False}
    structure = ", ".join(column.declaration for column in columns)
    here = _checksums(clickhouse, source, columns)
    there = _checksums(clickhouse, f"({objects.table(structure)})", columns)
    report["rows"] = {"source": int(here["rows"]), "object": int(there["rows"])}
    report["columns"] = [
        {"name": each.name, "type": each.type, "equal": here[f"c{n}"] == there[f"c{n}"]}
        for n, each in enumerate(columns)
    ]
    report["whole_rows_equal"] = here["whole"] == there["whole"]
    report["equal"] = here == there
    return report


def _checksums(clickhouse: ClickHouse, table: str, columns: list[Column]) -> dict:
    """Sums of hashes: the order of rows doesn't matter, everything else does."""
    sums = [f"{column.checksum} AS c{n}" for n, column in enumerate(columns)]
    everything = ", ".join(f"isNull({_identifier(column.name)}), {column.text}" for column in columns)
    # Columns could be right one by one and still be mixed up between rows.
    sums.append(f"sum(cityHash64({everything})) AS whole")
    (row,) = clickhouse.rows(
        f"SELECT toString(count()) AS rows, {', '.join(sums)} FROM {table}",
        output_format_json_quote_64bit_integers=1,
        **STRICT,
    )
    return row


def _check_names(clickhouse: ClickHouse, columns: list[Column], objects: Objects) -> list[str]:
    found = clickhouse.rows(f"DESCRIBE TABLE ({objects.table()})", **STRICT)
    wanted, names = [column.name for column in columns], [row["name"] for row in found]
    return [] if wanted == names else [f"columns are {names}, not {wanted}"]


def _check_json_keys(clickhouse: ClickHouse, columns: list[Column], objects: Objects) -> tuple[list[Column], list[str]]:
    """Every line must have exactly the source's keys. Finds out which values are JSON, too."""
    lines = f"({objects.table('line String', 'LineAsString')})"
    texts = [n for n, column in enumerate(columns) if "String" in column.type]
    nested = [f"countIf(JSONType(line, {_literal(columns[n].name)}) IN ('Object', 'Array')) AS n{n}" for n in texts]
    wanted = f"[{', '.join(_literal(column.name) for column in columns)}]"
    (found,) = clickhouse.rows(
        f"SELECT countIf(JSONExtractKeys(line) != {wanted}) AS wrong, any(line) AS example"
        f"{''.join(', ' + each for each in nested)} FROM {lines}",
        output_format_json_quote_64bit_integers=0,
        **STRICT,
    )
    columns = [Column(column.name, column.type, n in texts and found[f"n{n}"] > 0) for n, column in enumerate(columns)]
    if not found["wrong"]:
        return columns, []
    names = [column.name for column in columns]
    return columns, [f"{found['wrong']} lines don't have exactly the keys {names}"]


def _as_text(report: dict) -> str:
    lines = [f"{path}" for path in report["objects"]]
    lines += [f"  {fault}" for fault in report["faults"]]
    if "rows" in report:
        rows = report["rows"]
        lines.append(f"  rows: {rows['source']} in the source, {rows['object']} in the object")
    # With rows too many or missing, no column can be equal.
    if "rows" in report and rows["source"] == rows["object"]:
        different = [each["name"] for each in report["columns"] if not each["equal"]]
        equal = len(report["columns"]) - len(different)
        lines.append(f"  columns: {equal} of {len(report['columns'])} equal")
        lines += [f"  different: {name}" for name in different]
        if not different and not report["whole_rows_equal"]:
            lines.append("  values are mixed up between rows")
    return "\n".join([*lines, "equal" if report["equal"] else "DIFFERENT"])


def _identifier(name: str) -> str:
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--source-sql", required=True, help="the query that was exported")
    parser.add_argument("--object", required=True, action="append", help="s3://bucket/key, once for each file")
    parser.add_argument("--format", required=True, choices=FORMATS)
    parser.add_argument("--compression", default="auto", help="when the key's suffix doesn't tell")
    parser.add_argument(
        "--endpoint",
        default=os.environ.get("AWS_ENDPOINT_URL_S3"),
        help="the S3 store as ClickHouse sees it; in a container that is another address",
    )
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
