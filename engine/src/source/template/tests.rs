use proptest::prelude::*;

use super::*;

fn sql(text: &str) -> String {
    SqlTemplate::parse(text).unwrap_or_else(|error| panic!("{text}: {error}")).sql().to_owned()
}

fn refusal(text: &str) -> String {
    let error = SqlTemplate::parse(text).expect_err(text);
    assert_eq!(error.kind(), crate::error::ErrorKind::Config);
    error.to_string()
}

const START: &str = "{interval_start:DateTime64(6, 'UTC')}";

#[test]
fn placeholders_become_typed_parameters() {
    assert_eq!(
        sql("SELECT * FROM t WHERE ts >= {interval_start} AND ts < { interval_end } -- end\n"),
        "SELECT * FROM t WHERE ts >= {interval_start:DateTime64(6, 'UTC')} \
         AND ts < {interval_end:DateTime64(6, 'UTC')} -- end"
    );
}

#[test]
fn literals_comments_and_map_literals_stay() {
    for kept in [
        "'{interval_start}'",
        r"'it''s \'{nobody}\''",
        "`{nobody}`",
        "\"{nobody:String}\"",
        "/* {nobody} /* ; */ ) */",
        "$x$ {nobody}; ' $x$",
        "-- {nobody} FORMAT CSV\n",
        "# ; {nobody}\n",
        "{'a': 1, 'b': {'c': [2, 3]}}",
        "{}",
        "a ? b : c",
        "?",
    ] {
        let text = format!("SELECT {kept} , {{interval_start}}");
        assert_eq!(sql(&text), format!("SELECT {kept} , {START}"));
    }
}

#[test]
fn one_semicolon_at_the_end_is_tolerated_and_a_second_statement_is_not() {
    assert_eq!(sql("SELECT {interval_start} ; -- done"), format!("SELECT {START}"));
    assert_eq!(
        refusal("SELECT {interval_start};\nDROP TABLE t"),
        "line 2, column 1 of the query: a second statement follows the first; an export runs one SELECT"
    );
    assert!(refusal("SELECT {interval_start};;").contains("second statement"));
}

#[test]
fn clauses_about_the_output_are_refused_with_the_way_out() {
    let base = "SELECT x FROM t WHERE a > {interval_start}";
    assert!(refusal(&format!("{base} FORMAT CSV")).contains("destination.file_format"));
    assert!(refusal(&format!("{base} format CSV;")).contains("destination.file_format"));
    assert!(refusal(&format!("{base} FORMAT CSV SETTINGS max_threads = 1")).contains("FORMAT"));
    assert!(refusal(&format!("{base}\nSETTINGS max_threads=1")).contains("source.settings"));
    assert!(refusal(&format!("{base} INTO OUTFILE 'x'")).contains("INTO OUTFILE"));
    for fine in [
        "SELECT 1 AS format, {interval_start}",
        "SELECT format('{}', 'a'), settings = 1, {interval_start} AS format",
        "SELECT {interval_start} FROM format f",
        "SELECT {interval_start} FROM (SELECT 1 SETTINGS max_threads = 1)",
    ] {
        sql(fine);
    }
}

#[test]
fn other_placeholders_are_refused_by_name() {
    assert!(refusal("SELECT {foo} , {interval_end}").contains("unknown placeholder {foo}"));
    assert!(refusal("SELECT {foo:String}").contains("{foo:…}"));
    assert!(refusal("SELECT {interval_start:String}").contains("without a type"));
    assert!(refusal("SELECT {data_interval_start}").contains("{interval_start} and {interval_end}"));
}

#[test]
fn a_query_without_a_window_is_refused_with_the_way_out() {
    let message = refusal("SELECT * FROM t -- {interval_start}");
    assert!(message.contains("timestamp >= {interval_start} AND timestamp < {interval_end}"), "{message}");
}

#[test]
fn only_one_whole_select_is_taken() {
    for text in ["EXPLAIN SELECT {interval_start}", "INSERT INTO t SELECT 1", "DROP TABLE t", "FROM t", "'a'"] {
        assert!(refusal(text).contains("an export runs a SELECT"), "{text}");
    }
    for text in ["", " -- nothing\n", ";"] {
        assert!(refusal(text).contains("empty"), "{text}");
    }
    sql("((SELECT {interval_start}))");
    sql("with 1 AS one select one, {interval_end}");
    assert!(refusal("SELECT {interval_start}) UNION ALL (SELECT 1").contains(") closes nothing"));
    assert!(refusal("SELECT ({interval_start}").contains("( is never closed"));
    assert!(refusal("SELECT [1), {interval_start}").contains(") closes nothing"));
    assert!(refusal("SELECT 'a, {interval_start}").contains("the string that starts here has no end"));
    assert!(refusal("SELECT {interval_start}\0").contains("NUL"));
}

proptest! {
    #[test]
    fn never_panics(text in "\\PC*") {
        drop(SqlTemplate::parse(&text));
    }

    #[test]
    fn never_panics_on_what_looks_like_sql(
        pieces in prop::collection::vec(prop::sample::select(vec![
            "SELECT", " ", "'", "\\", "\"", "`", "$", "$a$", "--", "/*", "*/", "#", " ", "\n", "{", "}", "(", ")", "[",
            "]", "interval_start", "{interval_end}", ":", ";", "FORMAT", "SETTINGS", "a", "=", "é", "‘", "’", "//", "?",
        ]), 0..40)
    ) {
        drop(SqlTemplate::parse(&pieces.concat()));
    }

    #[test]
    fn text_within_literals_never_changes(inside in "[^\\\\'\0]*") {
        let text = format!("SELECT '{inside}', {{interval_start}}, `x`");
        prop_assert_eq!(sql(&text), format!("SELECT '{inside}', {START}, `x`"));
    }

    #[test]
    fn text_within_comments_never_changes(inside in "[^*/\0]*") {
        let text = format!("SELECT /*{inside}*/ {{interval_start}}");
        prop_assert_eq!(sql(&text), format!("SELECT /*{inside}*/ {START}"));
    }
}
