//! Broken inputs, made of good ones at random from a seed, for as long as it is let.
//!
//! `BATCH_EXPORT_FUZZ_SECONDS` says how long each target runs, `BATCH_EXPORT_FUZZ_SEED` where it begins, and
//! `BATCH_EXPORT_RELIABILITY` names the folder for its figures.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Numbers that lengths, offsets and counts like to break at.
const EDGES: [u64; 12] =
    [0, 1, 7, 8, 0x7f, 0x80, 0xff, 0xffff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0x7fff_ffff_ffff_ffff];

/// SplitMix64.
///
/// Source: <https://prng.di.unimi.it/splitmix64.c>.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) as usize % end.max(1)
    }

    /// One change: a bit, a byte, a number, a run of bytes that goes, comes twice or comes from elsewhere.
    fn change(&mut self, bytes: &mut Vec<u8>, words: &[&[u8]]) {
        let at = self.below(bytes.len());
        let length = 1 + self.below(32);
        let end = (at + length).min(bytes.len());
        match self.below(9) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
            1 if !bytes.is_empty() => bytes[at] = self.below(256) as u8,
            2 | 3 if bytes.len() > at + 8 => {
                let width = [2, 4, 8][self.below(3)];
                let number = EDGES[self.below(EDGES.len())].to_le_bytes();
                bytes[at..at + width].copy_from_slice(&number[..width]);
            }
            4 => drop(bytes.drain(at..end)),
            5 => bytes.truncate(at),
            6 => {
                let copy = bytes[at..end].to_vec();
                let to = self.below(bytes.len() + 1);
                drop(bytes.splice(to..to, copy));
            }
            7 if !words.is_empty() => {
                let word = words[self.below(words.len())];
                drop(bytes.splice(at..at, word.iter().copied()));
            }
            _ => bytes.insert(at.min(bytes.len()), self.below(256) as u8),
        }
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Gives `check` broken inputs; whatever it makes of them, it may not panic.
pub(crate) fn fuzz(target: &str, corpus: &[Vec<u8>], words: &[&[u8]], check: impl Fn(&[u8])) {
    let seed = variable("BATCH_EXPORT_FUZZ_SEED").unwrap_or(20_261_130);
    let end = Instant::now() + Duration::from_secs(variable("BATCH_EXPORT_FUZZ_SECONDS").unwrap_or(3));
    let mut random = Random(seed);
    let mut tried = 0_u64;
    while Instant::now() < end {
        let mut input = corpus[random.below(corpus.len())].clone();
        for _ in 0..=random.below(4) {
            random.change(&mut input, words);
        }
        tried += 1;
        if catch_unwind(AssertUnwindSafe(|| check(&input))).is_err() {
            let file = std::env::temp_dir().join(format!("batch-export-fuzz-{target}-{seed}-{tried}"));
            std::fs::write(&file, &input).expect("a file");
            panic!("{target} panics on input {tried} of seed {seed}: {}", file.display());
        }
    }
    assert!(tried > 100, "{target} tried {tried} inputs only");
    println!("{target}: {tried} inputs of seed {seed}, no panic");
    if let Some(folder) = std::env::var_os("BATCH_EXPORT_RELIABILITY").map(PathBuf::from) {
        std::fs::create_dir_all(&folder).expect("a folder");
        let figures = format!("{{\"inputs\": {tried}, \"panics\": 0}}\n");
        std::fs::write(folder.join(format!("fuzz-{target}.json")), figures).expect("a file");
    }
}
