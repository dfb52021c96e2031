//! What an object's bytes look like: format and compression.

use std::fmt;

/// The name of no compression.
const NO_CODEC: &str = "none";

/// A file format with its compression: only pairs that exist can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Apache Parquet; the codec is inside the file.
    Parquet(ParquetCodec),
    /// One JSON object per line; the stream as a whole is compressed.
    JsonLines(JsonLinesCodec),
}

/// Compression of Parquet pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParquetCodec {
    /// None.
    Uncompressed,
    /// Snappy.
    Snappy,
    /// Gzip.
    Gzip,
    /// Brotli.
    Brotli,
    /// Zstandard.
    Zstd,
    /// LZ4, as `LZ4_RAW`.
    Lz4,
}

/// Compression of a JSONLines stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JsonLinesCodec {
    /// None.
    Uncompressed,
    /// One gzip member.
    Gzip,
    /// One brotli stream.
    Brotli,
    /// One zstd frame.
    Zstd,
}

impl Output {
    /// Every pair, for matrices and error texts.
    pub const ALL: [Self; 10] = [
        Self::Parquet(ParquetCodec::Uncompressed),
        Self::Parquet(ParquetCodec::Snappy),
        Self::Parquet(ParquetCodec::Gzip),
        Self::Parquet(ParquetCodec::Brotli),
        Self::Parquet(ParquetCodec::Zstd),
        Self::Parquet(ParquetCodec::Lz4),
        Self::JsonLines(JsonLinesCodec::Uncompressed),
        Self::JsonLines(JsonLinesCodec::Gzip),
        Self::JsonLines(JsonLinesCodec::Brotli),
        Self::JsonLines(JsonLinesCodec::Zstd),
    ];

    /// The pair of a format's and a codec's configured names, or the sentence that says what would fit. `none` is the same
    /// as no name.
    ///
    /// # Errors
    /// A sentence for the user when the format is unknown or the codec doesn't fit it.
    pub fn from_names(format: &str, compression: Option<&str>) -> Result<Self, String> {
        if !Self::ALL.iter().any(|output| output.format_name() == format) {
            return Err(format!("file format {format} is not supported; use Parquet or JSONLines"));
        }
        let compression = compression.filter(|name| *name != NO_CODEC);
        let fitting = Self::ALL.iter().filter(|output| output.format_name() == format).collect::<Vec<_>>();
        fitting.iter().find(|output| output.codec_name() == compression).map(|output| **output).ok_or_else(|| {
            let names = fitting.iter().filter_map(|output| output.codec_name()).collect::<Vec<_>>().join(", ");
            format!(
                "compression {} is not supported for file format {format}; use one of {names} or {NO_CODEC}",
                compression.unwrap_or(NO_CODEC)
            )
        })
    }

    /// `Parquet` or `JSONLines`.
    #[must_use]
    pub const fn format_name(self) -> &'static str {
        match self {
            Self::Parquet(_) => "Parquet",
            Self::JsonLines(_) => "JSONLines",
        }
    }

    /// The codec's configured name; `None` without compression.
    #[must_use]
    pub const fn codec_name(self) -> Option<&'static str> {
        match self {
            Self::Parquet(ParquetCodec::Uncompressed) | Self::JsonLines(JsonLinesCodec::Uncompressed) => None,
            Self::Parquet(ParquetCodec::Snappy) => Some("snappy"),
            Self::Parquet(ParquetCodec::Lz4) => Some("lz4"),
            Self::Parquet(ParquetCodec::Gzip) | Self::JsonLines(JsonLinesCodec::Gzip) => Some("gzip"),
            Self::Parquet(ParquetCodec::Brotli) | Self::JsonLines(JsonLinesCodec::Brotli) => Some("brotli"),
            Self::Parquet(ParquetCodec::Zstd) | Self::JsonLines(JsonLinesCodec::Zstd) => Some("zstd"),
        }
    }

    /// The end of the object's name, without the first dot. Parquet never shows its codec: readers would take the
    /// whole file for compressed.
    #[must_use]
    pub const fn extension(self) -> &'static str {
        match self {
            Self::Parquet(_) => "parquet",
            Self::JsonLines(JsonLinesCodec::Uncompressed) => "jsonl",
            Self::JsonLines(JsonLinesCodec::Gzip) => "jsonl.gz",
            Self::JsonLines(JsonLinesCodec::Brotli) => "jsonl.br",
            Self::JsonLines(JsonLinesCodec::Zstd) => "jsonl.zst",
        }
    }

    /// The object's honest `Content-Type`. There is never a `Content-Encoding`: clients would undo it unasked.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Parquet(_) => "application/vnd.apache.parquet",
            Self::JsonLines(JsonLinesCodec::Uncompressed) => "application/x-ndjson",
            Self::JsonLines(JsonLinesCodec::Gzip) => "application/gzip",
            Self::JsonLines(JsonLinesCodec::Brotli) => "application/octet-stream",
            Self::JsonLines(JsonLinesCodec::Zstd) => "application/zstd",
        }
    }
}

impl fmt::Display for Output {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.codec_name() {
            Some(codec) => write!(formatter, "{}+{codec}", self.format_name()),
            None => formatter.write_str(self.format_name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_is_found_by_its_names() {
        for output in Output::ALL {
            assert_eq!(Output::from_names(output.format_name(), output.codec_name()), Ok(output));
            let name = output.codec_name().unwrap_or("none");
            assert_eq!(Output::from_names(output.format_name(), Some(name)), Ok(output));
        }
    }

    #[test]
    fn says_what_would_fit() {
        assert_eq!(
            Output::from_names("JSONLines", Some("snappy")).expect_err("doesn't fit"),
            "compression snappy is not supported for file format JSONLines; use one of gzip, brotli, zstd or none"
        );
        assert!(Output::from_names("CSV", None).expect_err("unknown").contains("Parquet or JSONLines"));
    }
}
