//! A run as the Temporal UI shows it.

use crate::contract::{Outcome, RunInfo};

/// Markdown for the workflow's page: what runs, and how it ended.
pub(crate) fn markdown(run: &RunInfo, outcome: Option<&Outcome>) -> String {
    let mut lines = vec![format!("**{}** exports `{}`", plain(&run.export_id), run.interval), String::new()];
    let Some(outcome) = outcome else {
        lines.push("- status: Running".to_owned());
        return lines.join("\n");
    };
    lines.push(format!("- status: {}", outcome.status.as_str()));
    lines.push(format!("- rows: {}", grouped(outcome.output.records_completed)));
    lines.push(format!("- bytes: {}", grouped(outcome.output.bytes_exported)));
    for file in &outcome.output.files {
        lines.push(format!("- object: `s3://{}/{}`", plain(&file.bucket), plain(&file.key)));
    }
    let output = &outcome.output;
    for (what, number) in [
        ("repaired values", output.repaired_values),
        ("rows left out by the plugin", output.rows_left_out),
        ("rows that the plugin failed on", output.rows_failed),
    ] {
        if number > 0 {
            lines.push(format!("- {what}: {}", grouped(number)));
        }
    }
    if outcome.attempt > 1 {
        lines.push(format!("- attempts: {}", outcome.attempt));
    }
    if let Some(error) = outcome.full_error() {
        lines.push(format!("- error: {}", plain(&error)));
    }
    lines.join("\n")
}

/// One line for the list of workflows and their activities.
pub(crate) fn summary(run: &RunInfo) -> String {
    format!("{} {}", run.export_id, run.interval)
}

/// Text that can't end a line or a code span of Markdown.
fn plain(text: &str) -> String {
    text.replace('`', "'").replace(['\n', '\r'], " ")
}

/// A number in groups of three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::Bounds;
    use crate::contract::{ExportedFile, InsertOutput};

    fn run() -> RunInfo {
        let at = |text: &str| text.parse().expect("an instant");
        RunInfo {
            run_id: "orders-1".to_owned(),
            export_id: "orders".to_owned(),
            interval: Bounds { start: at("2026-01-01T00:00:00Z"), end: at("2026-01-01T01:00:00Z") },
            started_at: at("2026-01-01T01:00:00Z"),
        }
    }

    #[test]
    fn a_run_reads_as_a_short_list() {
        assert_eq!(
            markdown(&run(), None),
            "**orders** exports `[2026-01-01T00:00:00Z, 2026-01-01T01:00:00Z)`\n\n- status: Running"
        );
        let file =
            ExportedFile { bucket: "lake".to_owned(), key: "a/b.parquet".to_owned(), rows: 1_234_567, bytes: 1_000 };
        let output = InsertOutput {
            records_completed: 1_234_567,
            bytes_exported: 1_000,
            files: vec![file],
            attempt: 2,
            ..InsertOutput::default()
        };
        let text = markdown(&run(), Some(&Outcome::completed(output)));
        assert!(text.ends_with(
            "- status: Completed\n- rows: 1,234,567\n- bytes: 1,000\n- object: `s3://lake/a/b.parquet`\n- attempts: 2"
        ));
    }

    #[test]
    fn a_cancelled_run_says_why() {
        let text = markdown(&run(), Some(&Outcome::cancelled(1, Some("wrong\nday"))));
        assert!(text.ends_with("- error: Cancelled: the run was cancelled: wrong day"), "{text}");
        assert_eq!([0, 7, 999, 1_000].map(grouped), ["0", "7", "999", "1,000"]);
    }
}
