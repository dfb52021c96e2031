//! The pipeline as a whole, over a source and a sink in memory.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::{Array, ArrayRef, BinaryArray, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use bytes::Bytes;
use futures::future::BoxFuture;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use proptest::prelude::*;

use super::*;
use crate::config::export::InvalidUtf8;
use crate::config::output::{JsonLinesCodec, Output};
use crate::error::ErrorKind;
use crate::history::History;
use crate::pipeline::row_size::RowMeasure;
use crate::run::Unfenced;
use crate::sink::object::{PartNumber, UploadedPart};
use crate::source::oversized::LargestValue;
use crate::source::reader::MessageSize;
use crate::stop::Stop;

mod transforms;

/// A store that answers late and out of order, from a seed, and may fail one part.
#[derive(Debug, Default)]
struct SlowSink {
    seed: u64,
    fail_part: Option<u32>,
    shut_down_at: Option<(u32, Stop)>,
    parts: Mutex<BTreeMap<u32, Bytes>>,
    object: Mutex<Option<Vec<u8>>>,
    aborted: AtomicU64,
}

impl SlowSink {
    async fn delay(&self, salt: u64) {
        let mixed = (self.seed ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
        if self.seed != 0 {
            tokio::time::sleep(Duration::from_micros(mixed * 20)).await;
        }
    }
}

impl ObjectSink for SlowSink {
    fn put(&self, body: Bytes) -> BoxFuture<'_, Result<StoredObject>> {
        Box::pin(async move {
            assert!(self.parts.lock().expect("sound").is_empty(), "put after parts");
            *self.object.lock().expect("sound") = Some(body.to_vec());
            Ok(StoredObject { etag: None })
        })
    }

    fn upload_part(&self, number: PartNumber, body: Bytes) -> BoxFuture<'_, Result<UploadedPart>> {
        Box::pin(async move {
            self.delay(u64::from(number.get())).await;
            if let Some((part, stop)) = &self.shut_down_at
                && *part == number.get()
            {
                stop.shut_down();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            if self.fail_part == Some(number.get()) {
                return Err(Error::new(ErrorKind::DestinationUnavailable, format!("upload part {number}: slow down")));
            }
            let before = self.parts.lock().expect("sound").insert(number.get(), body);
            assert!(before.is_none(), "part {number} was uploaded twice");
            Ok(UploadedPart { number, etag: format!("etag-{number}") })
        })
    }

    fn complete(&self, parts: Vec<UploadedPart>) -> BoxFuture<'_, Result<StoredObject>> {
        Box::pin(async move {
            let held = self.parts.lock().expect("sound");
            assert!(parts.iter().map(|part| part.number.get()).eq(1..=held.len() as u32), "not 1..n: {parts:?}");
            let sizes = held.values().map(Bytes::len).collect::<Vec<_>>();
            assert!(sizes[..sizes.len() - 1].iter().all(|size| *size == sizes[0]), "parts of several sizes: {sizes:?}");
            assert!(sizes[sizes.len() - 1] <= sizes[0]);
            *self.object.lock().expect("sound") = Some(held.values().flat_map(|part| part.to_vec()).collect());
            Ok(StoredObject { etag: None })
        })
    }

    fn abort(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.aborted.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
    }
}

/// Batches from memory, with an error at the end if there is one.
struct Batches {
    batches: std::vec::IntoIter<RecordBatch>,
    fails_with: Option<Error>,
}

impl BatchSource for Batches {
    async fn next_size(&mut self) -> Result<Option<MessageSize>> {
        tokio::task::yield_now().await;
        match self.batches.as_slice().first() {
            Some(batch) => {
                let body = RowMeasure::default().sizes(batch).iter().sum();
                Ok(Some(MessageSize { body, cost: body }))
            }
            None => self.fails_with.take().map_or(Ok(None), Err),
        }
    }

    async fn next_batch(&mut self) -> Result<RecordBatch> {
        self.batches.next().ok_or_else(|| Error::internal("no more batches"))
    }

    async fn largest_value(&mut self) -> Option<LargestValue> {
        None
    }
}

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("text", DataType::Utf8, true),
        Field::new("at", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), false),
        Field::new("properties", DataType::Utf8, false),
    ]))
}

/// Rows as the server sends them: text as bytes.
fn batch(first: i64, texts: &[Option<String>]) -> RecordBatch {
    let ids = first..first + texts.len() as i64;
    let columns: [(&str, ArrayRef, bool); 4] = [
        ("id", Arc::new(Int64Array::from_iter_values(ids.clone())), false),
        (
            "text",
            Arc::new(BinaryArray::from_iter(texts.iter().map(|text| text.as_ref().map(|text| text.as_bytes())))),
            true,
        ),
        ("at", Arc::new(TimestampMicrosecondArray::from_iter_values(ids.clone()).with_timezone("UTC")), false),
        (
            "properties",
            Arc::new(BinaryArray::from_iter_values(ids.map(|id| format!("{{\"id\": {id},\n \"half\": \"\\ud83d\"}}")))),
            false,
        ),
    ];
    RecordBatch::try_from_iter_with_nullable(columns).expect("a batch")
}

fn batches(texts: &[Option<String>], batch_rows: usize) -> Batches {
    let batches = texts.chunks(batch_rows).scan(0, |first, chunk| {
        let batch = batch(*first, chunk);
        *first += chunk.len() as i64;
        Some(batch)
    });
    Batches { batches: batches.collect::<Vec<_>>().into_iter(), fails_with: None }
}

struct Setup {
    output: Output,
    consumers: u32,
    part_bytes: u64,
    block_bytes: u64,
    block_rows: u32,
    buffer_bytes: u64,
    sink: Arc<SlowSink>,
    stop: Stop,
    earlier: Earlier,
    transform: Option<(Arc<dyn RowTransform>, TransformConfig)>,
}

/// An earlier attempt that has read so many rows.
#[derive(Debug, Clone, Copy)]
struct Earlier(u64);

impl History for Earlier {
    fn most_rows(&self) -> BoxFuture<'_, u64> {
        Box::pin(std::future::ready(self.0))
    }
}

impl Setup {
    fn new(output: Output, sink: SlowSink) -> Self {
        Self {
            output,
            consumers: 3,
            part_bytes: 700,
            block_bytes: 900,
            block_rows: 40,
            buffer_bytes: 32 << 10,
            sink: Arc::new(sink),
            stop: Stop::new(),
            earlier: Earlier(0),
            transform: None,
        }
    }

    async fn run(&self, source: Batches) -> Result<PipelineReport> {
        let pipeline = Pipeline {
            layout: FileLayout { output: self.output, schema: schema(), json_columns: vec!["properties".to_owned()] },
            invalid_utf8: InvalidUtf8::Replace,
            limits: PipelineLimits {
                memory_bytes: 1 << 30,
                consumers: self.consumers,
                block_rows: self.block_rows,
                block_bytes: self.block_bytes,
                buffer_bytes: self.buffer_bytes,
                part_bytes: self.part_bytes,
                uploads_in_flight: 2,
            },
            fewer_rows: FewerRows::Fail,
            write_empty: true,
            sink: Arc::<SlowSink>::clone(&self.sink),
            cpu: CpuPool::new(2).expect("threads"),
            budget: ByteBudget::new(self.buffer_bytes),
            transform: self.transform.clone(),
            context: RunContext {
                stop: self.stop.clone(),
                progress: Arc::default(),
                fence: Arc::new(Unfenced),
                history: Arc::new(self.earlier),
            },
        };
        let report = tokio::time::timeout(Duration::from_secs(60), pipeline.run(source)).await.expect("no deadlock");
        // After a failure, a block may still be in an encoder's hands for a moment.
        for _ in 0..500 {
            if pipeline.budget.held() == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(pipeline.budget.held(), 0, "budget leaked");
        if let Ok(report) = &report {
            assert_eq!(pipeline.context.progress.snapshot().rows_written, report.num_rows);
        }
        report
    }

    fn object(&self) -> Option<Vec<u8>> {
        self.sink.object.lock().expect("sound").clone()
    }
}

fn in_runtime<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(future)
}

/// The lines that a JSONLines object must hold, written independently of the encoder.
fn expected_lines(texts: &[Option<String>]) -> String {
    let line = |(id, text): (usize, &Option<String>)| {
        let text = serde_json::to_string(text).expect("JSON");
        format!(
            "{{\"id\":{id},\"text\":{text},\"at\":\"1970-01-01T00:00:00.{id:06}Z\",\"properties\":{{\"id\": {id},  \"half\": \"\\ufffd\"}}}}\n"
        )
    };
    texts.iter().enumerate().map(line).collect()
}

/// Reads an object as a reader would that stops after the first member, frame or stream, and says what it left over.
fn decompress(codec: JsonLinesCodec, object: &[u8]) -> (Vec<u8>, usize) {
    let mut rest = object;
    let mut text = Vec::new();
    match codec {
        JsonLinesCodec::Uncompressed => text = std::mem::take(&mut rest).to_vec(),
        JsonLinesCodec::Gzip => {
            flate2::bufread::GzDecoder::new(&mut rest).read_to_end(&mut text).expect("one member");
        }
        JsonLinesCodec::Zstd => {
            zstd::stream::read::Decoder::with_buffer(&mut rest)
                .expect("zstd")
                .single_frame()
                .read_to_end(&mut text)
                .expect("one frame");
        }
        JsonLinesCodec::Brotli => {
            brotli::Decompressor::new(&mut rest, 4096).read_to_end(&mut text).expect("one stream");
        }
    }
    (text, rest.len())
}

fn assert_holds(output: Output, object: &[u8], texts: &[Option<String>]) {
    match output {
        Output::JsonLines(codec) => {
            let (text, left_over) = decompress(codec, object);
            assert_eq!(String::from_utf8(text).expect("UTF-8"), expected_lines(texts), "{output}");
            assert_eq!(left_over, 0, "{output} has bytes after its first member");
        }
        Output::Parquet(_) => {
            let reader = ParquetRecordBatchReaderBuilder::try_new(Bytes::copy_from_slice(object)).expect("Parquet");
            assert_eq!(reader.schema().fields(), schema().fields());
            let mut read = Vec::new();
            for batch in reader.build().expect("a reader") {
                let batch = batch.expect("a batch");
                let column = batch.column(1).as_any().downcast_ref::<StringArray>().expect("text").clone();
                read.extend(column.iter().map(|text| text.map(str::to_owned)).collect::<Vec<_>>());
            }
            assert_eq!(read, texts, "{output}");
        }
    }
}

fn texts() -> impl Strategy<Value = Vec<Option<String>>> {
    let text = prop_oneof![4 => "[a-z\"\\\\é\n]{0,30}".prop_map(Some), 1 => Just(None)];
    proptest::collection::vec(text, 0..300)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_objects_bytes_are_those_of_one_consumer_in_order(
        texts in texts(),
        batch_rows in 1_usize..120,
        consumers in 1_u32..=8,
        part_bytes in 64_u64..2_000,
        block_bytes in 200_u64..4_000,
        seed in 1_u64..,
    ) {
        for output in Output::ALL {
            let mut sequential = Setup::new(output, SlowSink::default());
            (sequential.consumers, sequential.part_bytes, sequential.block_bytes) = (1, part_bytes, block_bytes);
            let mut parallel = Setup::new(output, SlowSink { seed, ..SlowSink::default() });
            (parallel.consumers, parallel.part_bytes, parallel.block_bytes) = (consumers, part_bytes, block_bytes);
            let (one, many) = in_runtime(async {
                (sequential.run(batches(&texts, 250)).await, parallel.run(batches(&texts, batch_rows)).await)
            });
            prop_assert_eq!(one.expect("succeeds").num_rows, texts.len() as u64);
            prop_assert_eq!(many.expect("succeeds").num_rows, texts.len() as u64);
            let object = parallel.object().expect("published");
            prop_assert!(sequential.object().expect("published") == object, "{} differs", output);
            assert_holds(output, &object, &texts);
        }
    }
}

fn some_texts() -> Vec<Option<String>> {
    (0..400).map(|number| Some(format!("row {number}"))).collect()
}

const PLAIN: Output = Output::JsonLines(JsonLinesCodec::Uncompressed);

/// The number of parts that `some_texts` make.
fn num_parts() -> u32 {
    let setup = Setup::new(PLAIN, SlowSink::default());
    in_runtime(setup.run(batches(&some_texts(), 33))).expect("succeeds").object.expect("published").num_parts
}

#[test]
fn one_failed_part_fails_the_file_and_aborts_it_whichever_it_is() {
    let num_parts = num_parts();
    assert!(num_parts > 20);
    for fail_part in 1..=num_parts {
        let setup = Setup::new(PLAIN, SlowSink { seed: 7, fail_part: Some(fail_part), ..SlowSink::default() });
        let error = in_runtime(setup.run(batches(&some_texts(), 33))).expect_err("a part failed");
        assert_eq!(error.kind(), ErrorKind::DestinationUnavailable, "part {fail_part}: {error:?}");
        assert!(error.message().contains(&format!("upload part {fail_part}")), "{error}");
        assert_eq!(setup.object(), None, "published with part {fail_part} missing");
        assert_eq!(setup.sink.aborted.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn an_order_to_stop_is_the_reason_whichever_part_is_under_way() {
    let num_parts = num_parts();
    for part in [1, num_parts / 2, num_parts - 1, num_parts] {
        let stop = Stop::new();
        let sink = SlowSink { shut_down_at: Some((part, stop.clone())), ..SlowSink::default() };
        let setup = Setup { stop, ..Setup::new(PLAIN, sink) };
        let error = in_runtime(setup.run(batches(&some_texts(), 33))).expect_err("stopped");
        assert_eq!(error.kind(), ErrorKind::Shutdown, "part {part} of {num_parts}: {error:?}");
        assert_eq!(setup.object(), None);
    }
}

/// Writers cut pages by rows of one call, and compressors may look at how text comes in: neither may show in the bytes.
#[test]
fn large_blocks_do_not_depend_on_messages_either() {
    let texts =
        (0..70_000).map(|number| (number % 7 != 0 || number > 30_000).then(|| format!("{number}"))).collect::<Vec<_>>();
    for output in Output::ALL {
        let objects = [70_000, 8_192, 8_000, 333].map(|batch_rows| {
            let mut setup = Setup::new(output, SlowSink::default());
            (setup.block_rows, setup.block_bytes, setup.part_bytes, setup.buffer_bytes) =
                (50_000, 1 << 30, 1 << 20, 64 << 20);
            in_runtime(setup.run(batches(&texts, batch_rows))).expect("succeeds");
            setup.object().expect("published")
        });
        assert!(objects.iter().all(|object| *object == objects[0]), "{output} differs");
    }
}

#[test]
fn a_source_that_breaks_off_publishes_nothing() {
    let setup = Setup::new(Output::JsonLines(JsonLinesCodec::Gzip), SlowSink::default());
    let mut source = batches(&some_texts(), 50);
    source.fails_with = Some(Error::new(ErrorKind::SourceUnavailable, "the stream ended early"));
    let error = in_runtime(setup.run(source)).expect_err("cut");
    assert_eq!(error.kind(), ErrorKind::SourceUnavailable);
    assert_eq!(setup.object(), None);
    assert_eq!(setup.sink.aborted.load(Ordering::Relaxed), 1);
}

#[test]
fn an_order_to_stop_is_obeyed_before_publishing() {
    let setup = Setup::new(Output::JsonLines(JsonLinesCodec::Zstd), SlowSink::default());
    setup.stop.shut_down();
    let error = in_runtime(setup.run(batches(&some_texts(), 50))).expect_err("stopped");
    assert_eq!(error.kind(), ErrorKind::Shutdown);
    assert_eq!(setup.object(), None);
}

#[test]
fn a_message_larger_than_the_budget_is_refused_with_the_knob() {
    let setup = Setup::new(Output::JsonLines(JsonLinesCodec::Uncompressed), SlowSink::default());
    let texts = (0..2_000).map(|number| Some(format!("row {number}"))).collect::<Vec<_>>();
    let error = in_runtime(setup.run(batches(&texts, 2_000))).expect_err("too large");
    assert_eq!(error.kind(), ErrorKind::Data);
    assert!(error.message().contains("max_block_size"), "{error}");
}

/// Rows that an earlier attempt has read and this one doesn't: no object, and a sentence that says how many.
#[test]
fn fewer_rows_than_an_earlier_attempt_read_publish_nothing() {
    for (earlier, publishes) in [(9, true), (10, true), (11, false)] {
        let texts = vec![Some("x".to_owned()); 10];
        let output = Output::JsonLines(JsonLinesCodec::Uncompressed);
        let setup = Setup { earlier: Earlier(earlier), ..Setup::new(output, SlowSink::default()) };
        let result = in_runtime(setup.run(batches(&texts, 4)));
        assert_eq!(setup.object().is_some(), publishes, "{earlier}: {result:?}");
        if let Err(error) = result {
            assert_eq!(error.kind(), ErrorKind::Data);
            assert!(error.message().contains("10 rows now") && error.message().contains("read 11"), "{error}");
        }
    }
}

/// One row may be larger than every block and part, but not than what a run may hold; then it is named.
#[test]
fn a_row_that_cannot_be_held_is_named_and_passes_with_more_memory() {
    let mut texts = some_texts();
    texts[120] = Some("x".repeat(20_000));
    let setup = |buffer_bytes| Setup { buffer_bytes, ..Setup::new(PLAIN, SlowSink::default()) };
    let error = in_runtime(setup(64 << 10).run(batches(&texts, 10))).expect_err("too large");
    assert_eq!(error.kind(), ErrorKind::Data);
    assert!(error.message().starts_with("row 121 is too large: its column `text` has 19.5 KiB"), "{error}");
    assert!(error.message().ends_with("raise pipeline.memory_limit, or leave the row out"), "{error}");

    let enough = setup(96 << 10);
    assert_eq!(in_runtime(enough.run(batches(&texts, 10))).expect("fits").num_rows, 400);
    assert_holds(PLAIN, &enough.object().expect("published"), &texts);
}

/// Large rows anywhere, one after the other, and little to hold them in: everybody gets what they wait for.
#[test]
fn large_rows_never_make_the_pipeline_wait_for_itself() {
    for (consumers, distance) in [(1, 1), (8, 1), (8, 3), (3, 50)] {
        let texts = (0..200)
            .map(|row| Some("y".repeat(if row % distance == 0 { 9_000 + row } else { row })))
            .collect::<Vec<_>>();
        for batch_rows in [1, 2, 7] {
            let output = Output::Parquet(crate::config::output::ParquetCodec::Zstd);
            let buffer_bytes = (25 + 10 * batch_rows as u64) << 10;
            let setup = Setup { consumers, buffer_bytes, ..Setup::new(output, SlowSink::default()) };
            assert_eq!(in_runtime(setup.run(batches(&texts, batch_rows))).expect("succeeds").num_rows, 200);
        }
    }
}

/// A block that ends before the first row of a message holds older messages, and the next block holds this one: both count,
/// or it waits for what can never come free.
#[test]
fn a_block_that_ends_between_messages_never_waits_for_the_next_one() {
    let texts = [7_600, 2_000, 7_600, 2_000].map(|size| Some("z".repeat(size))).to_vec();
    for buffer_bytes in (24 << 10..40 << 10).step_by(512) {
        let setup = Setup { block_bytes: 8_000, buffer_bytes, ..Setup::new(PLAIN, SlowSink::default()) };
        let running = setup.run(batches(&texts, 1));
        let result = in_runtime(async { tokio::time::timeout(Duration::from_secs(10), running).await })
            .unwrap_or_else(|_late| panic!("waits for ever with {buffer_bytes} bytes"));
        assert!(result.is_ok() || result.is_err_and(|error| error.kind() == ErrorKind::Data), "{buffer_bytes}");
    }
}
