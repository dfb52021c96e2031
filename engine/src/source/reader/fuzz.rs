use arrow_array::builder::{ListBuilder, MapBuilder, StringBuilder, UInt64Builder};
use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, Decimal128Array, FixedSizeBinaryArray, Int32Array, RecordBatch, StructArray,
    TimestampMicrosecondArray,
};
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{DataType, Field};
use bytes::Bytes;
use futures::StreamExt as _;

use super::*;
use crate::config::export::InvalidUtf8;
use crate::fuzz::fuzz;
use crate::pipeline::row_size::RowMeasure;
use crate::source::conform::conform;

/// What a run would refuse to hold.
const TOO_LARGE: u64 = 16 << 20;

fn batch(rows: i32) -> RecordBatch {
    let mut lists = ListBuilder::new(StringBuilder::new());
    let mut maps = MapBuilder::new(None, StringBuilder::new(), UInt64Builder::new());
    for row in 0..rows {
        lists.append_value((0..row % 4).map(|item| (item != 2).then(|| "item".repeat(item as usize))));
        maps.keys().append_value(format!("key{row}"));
        maps.values().append_value(row as u64);
        maps.append(row % 3 != 0).expect("a map");
    }
    let numbers: ArrayRef = Arc::new(Int32Array::from_iter((0..rows).map(|row| (row % 5 != 0).then_some(row))));
    let fields = vec![(Arc::new(Field::new("inner", DataType::Int32, true)), Arc::clone(&numbers))];
    let texts = (0..rows).map(|row| (row % 7 != 0).then(|| format!("text {row}").into_bytes()));
    let decimals = Decimal128Array::from_iter_values((0..rows).map(i128::from)).with_precision_and_scale(20, 4);
    let fixed = (0..rows).map(|row| (row % 6 != 0).then_some([7_u8; 5]));
    let fixed = FixedSizeBinaryArray::try_from_sparse_iter_with_size(fixed, 5).expect("five bytes each");
    let columns: [(&str, ArrayRef); 9] = [
        ("number", numbers),
        ("text", Arc::new(BinaryArray::from_iter(texts))),
        ("flag", Arc::new(BooleanArray::from_iter((0..rows).map(|row| Some(row % 2 == 0))))),
        ("at", Arc::new(TimestampMicrosecondArray::from_iter_values((0..rows).map(i64::from)).with_timezone("UTC"))),
        ("list", Arc::new(lists.finish())),
        ("map", Arc::new(maps.finish())),
        ("struct", Arc::new(StructArray::from(fields))),
        ("decimal", Arc::new(decimals.expect("fits"))),
        ("fixed", Arc::new(fixed)),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).expect("a batch")
}

fn stream(batches: &[i32]) -> Vec<u8> {
    let mut writer = StreamWriter::try_new(Vec::new(), &batch(1).schema()).expect("a writer");
    batches.iter().for_each(|rows| writer.write(&batch(*rows)).expect("is written"));
    writer.finish().expect("ends");
    writer.into_inner().expect("the bytes")
}

/// Reads a stream as a run does, to its end or to the first error.
async fn read(bytes: &[u8], schema: &SchemaRef) -> Result<u64> {
    let chunks = bytes.chunks(997).map(|chunk| Ok(Bytes::copy_from_slice(chunk))).collect::<Vec<_>>();
    let patience = std::time::Duration::from_secs(5);
    let body = Body::new(futures::stream::iter(chunks).boxed(), Some("abcdefghijklmnop".to_owned()), patience);
    let mut reader = ArrowStreamReader::open(body).await?;
    let mut rows = 0;
    while let Some(size) = reader.next_size().await? {
        if size.body > TOO_LARGE {
            let _named = reader.largest_value().await;
            break;
        }
        let batch = reader.next_batch().await?;
        rows += RowMeasure { as_json: true, per_row: 0 }.sizes(&batch).len() as u64;
        conform(&batch, schema, InvalidUtf8::Replace, 0)?;
    }
    Ok(rows)
}

#[test]
fn broken_streams_are_errors_and_never_panics() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let corpus = [stream(&[]), stream(&[1]), stream(&[100]), stream(&[3, 0, 40])];
    let schema = batch(1).schema();
    for (bytes, rows) in corpus.iter().zip([0, 1, 100, 43]) {
        assert_eq!(runtime.block_on(read(bytes, &schema)).expect("is whole"), rows);
    }
    let exception = b"\r\n__exception__\r\nabcdefghijklmnop\r\nCode: 241. DB::Exception: x";
    let words: [&[u8]; 3] = [b"Code: 241. DB::Exception: x", exception, b"\xff\xff\xff\xff\0\0\0\0"];
    fuzz("arrow-reader", &corpus, &words, |bytes| {
        // An error is as good as rows: what counts is that it returns.
        let _outcome = runtime.block_on(read(bytes, &schema));
    });
}
