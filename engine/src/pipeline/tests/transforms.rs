//! Rows that are changed and left out on their way.

use serde_json::Value;

use super::*;
use crate::config::output::ParquetCodec;
use crate::transform::{OnError, TransformBatch, TransformedRow};

/// Leaves out every third row, shouts, and fails on the row with this id.
#[derive(Debug)]
struct Shouter {
    fails_on: Option<u64>,
    growth: usize,
}

impl RowTransform for Shouter {
    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn apply(&self, batch: TransformBatch) -> BoxFuture<'_, Result<Vec<TransformedRow>>> {
        let rows = batch.rows.into_iter().map(|before| {
            let after = self.change(before.clone());
            TransformedRow { before, after }
        });
        let rows = rows.collect();
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            Ok(rows)
        })
    }
}

impl Shouter {
    fn change(&self, mut row: Value) -> Result<Option<Value>, String> {
        let id = row["id"].as_u64();
        if id == self.fails_on {
            return Err("plugin `shouter` failed".to_owned());
        }
        if id.is_some_and(|id| id % 3 == 0) {
            return Ok(None);
        }
        if let Some(text) = row["text"].as_str() {
            row["text"] = Value::from(text.to_uppercase().repeat(self.growth));
        }
        Ok(Some(row))
    }
}

fn setup(output: Output, on_error: OnError, shouter: Shouter) -> Setup {
    let buffer_bytes = 4 << 20;
    let config = TransformConfig { name: "shouter".to_owned(), on_error };
    Setup { buffer_bytes, transform: Some((Arc::new(shouter), config)), ..Setup::new(output, SlowSink::default()) }
}

fn texts(number: usize) -> Vec<Option<String>> {
    (0..number).map(|row| (row % 5 != 0).then(|| format!("text {row}"))).collect()
}

fn shouted(texts: &[Option<String>], growth: usize) -> String {
    let texts = texts.iter().map(|text| text.as_ref().map(|text| text.to_uppercase().repeat(growth)));
    let lines = expected_lines(&texts.collect::<Vec<_>>());
    let kept = lines.split_inclusive('\n').enumerate().filter(|(id, _)| id % 3 != 0);
    kept.map(|(_, line)| line).collect()
}

#[test]
fn what_is_left_of_the_rows_is_written_in_their_order_whatever_batches_they_came_in() {
    for batch_rows in [1, 7, 1_000] {
        let texts = texts(2_000);
        let output = Output::JsonLines(JsonLinesCodec::Uncompressed);
        let setup = setup(output, OnError::FailRun, Shouter { fails_on: None, growth: 3 });
        let report = in_runtime(setup.run(batches(&texts, batch_rows))).expect("is written");
        assert_eq!((report.num_rows, report.read.num_rows, report.read.rows_left_out), (1_333, 2_000, 667));
        let object = String::from_utf8(setup.object().expect("an object")).expect("text");
        assert_eq!(object, shouted(&texts, 3), "batches of {batch_rows}");
    }
}

#[test]
fn a_row_that_fails_ends_the_run_or_is_counted() {
    let texts = texts(500);
    let run = |on_error| {
        let setup = setup(Output::Parquet(ParquetCodec::Zstd), on_error, Shouter { fails_on: Some(400), growth: 1 });
        (in_runtime(setup.run(batches(&texts, 100))), setup)
    };
    let (failed, setup) = run(OnError::FailRun);
    let error = failed.expect_err("fails");
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Data, "row 401: plugin `shouter` failed"));
    assert!(setup.object().is_none());
    for (on_error, num_rows) in [(OnError::DropRow, 332), (OnError::PassRow, 333)] {
        let (report, _) = run(on_error);
        let report = report.expect("is written");
        assert_eq!((report.num_rows, report.read.rows_failed), (num_rows, 1), "{on_error:?}");
        assert_eq!(report.read.rows_left_out, 500 - num_rows);
    }
}

#[test]
fn rows_that_grow_beyond_what_a_run_may_hold_are_refused() {
    let output = Output::Parquet(ParquetCodec::Uncompressed);
    let mut small = setup(output, OnError::FailRun, Shouter { fails_on: None, growth: 1 });
    small.buffer_bytes = 1 << 20;
    let error = in_runtime(small.run(batches(&texts(100), 100))).expect_err("doesn't fit");
    assert!(error.to_string().starts_with("row 1 takes up to 2."), "{error}");
    assert!(error.to_string().contains("raise pipeline.memory_limit"), "{error}");
    // A block of its own for each row, which is much more than the row was.
    let grown = setup(output, OnError::FailRun, Shouter { fails_on: None, growth: 20_000 });
    let report = in_runtime(grown.run(batches(&texts(30), 10))).expect("is written");
    assert_eq!(report.num_rows, 20);
}
